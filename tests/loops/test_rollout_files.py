"""Rollouts as JSON lines."""

import json

import pytest
import tiny_runs

from rlhf.loops.online import OnlineTrainer
from rlhf.loops.rollout_files import experience_rows, rollout_rows, write_rows
from rlhf.models.rewards import Ensemble, LengthPenalty


def test_rows_have_figures_of_real_tokens_only(tmp_path):
    trainer = OnlineTrainer(tiny_runs.ppo(kl=None), tiny_runs.context(tmp_path))
    experience = trainer.generate_experience()
    rows = experience_rows(experience, 3, trainer.tokenizer)
    assert len(rows) == 3 and len(rollout_rows(experience.rollout)) == 8
    for index, row in enumerate(rows):
        length = int(experience.rollout.mask[index].sum())
        assert len(row["tokens"]) == len(row["advantages"]) == len(row["values"]) == length
        assert row["score"] == pytest.approx(sum(row["rewards"]))
        assert "ref_logprobs" not in row  # there is no reference without a KL
        assert len(row["token_texts"]) == length
        end = trainer.tokenizer.decode(row["tokens"][-1:]) if row["ended"] else ""
        assert (row["response"] + end).startswith("".join(row["token_texts"]))  # all but half a character at the end
        assert row["tokens"] == experience.rollout.sequences.response_ids[index, :length].tolist()


def test_rows_have_the_parts_of_their_score(tmp_path):
    ensemble = Ensemble(models={"a": tiny_runs.LETTERS, "b": LengthPenalty(target=2, per_token=1.0)}, combine="min")
    trainer = OnlineTrainer(tiny_runs.ppo(reward=ensemble, missing_end_penalty=1.0), tiny_runs.context(tmp_path))
    experience = trainer.generate_experience()
    for row in experience_rows(experience, 8, trainer.tokenizer):
        letters, penalty = row["reward/a"], row["reward/b"]
        assert row["reward/disagreement"] == pytest.approx(abs(letters - penalty) / 2)  # of two, half their distance
        assert row["raw_score"] == min(letters, penalty)
        assert row["score"] == row["raw_score"] - (not row["ended"])  # what was taken off is no part
    figures = experience.metrics.compute()
    assert figures["reward/disagreement"] == pytest.approx(float(experience.raw.parts["disagreement"].mean()))


def test_writing_replaces(tmp_path):
    path = tmp_path / "deep" / "rows.jsonl"
    write_rows(path, [{"a": 1}, {"a": "é"}])
    write_rows(path, [{"a": "é"}])
    assert [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] == [{"a": "é"}]

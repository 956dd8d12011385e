"""Evaluation on fixed prompts, with the same random numbers every time."""

import json

import pytest
import tiny_runs

from rlhf.algorithms.averaging import EMA
from rlhf.algorithms.objectives import Mixture
from rlhf.algorithms.ppo import Evaluation
from rlhf.engines.inference.sampling import Sampling
from rlhf.loops.evaluation import Evaluator, distinct, response_ids
from rlhf.loops.online import OnlineTrainer
from rlhf.models.rewards import Ensemble, LengthPenalty, Weighted


def evaluator(directory, **settings):
    usual = {"evaluation": Evaluation(every=2, prompts=4)}
    trainer = OnlineTrainer(tiny_runs.ppo(**{**usual, **settings}), tiny_runs.context(directory))
    return trainer, Evaluator(trainer)


def test_distinct_by_hand():
    assert distinct([[1, 2, 1, 2], [1, 2]], 2) == 2 / 4  # 12, 21, 12 and 12
    assert distinct([[1]], 2) == 0 and distinct([[1, 2, 3]], 1) == 1


def test_evaluations_are_paired_and_move_nothing(tmp_path):
    trainer, evaluate = evaluator(tmp_path)
    first, second = evaluate(tmp_path / "a.jsonl"), evaluate(tmp_path / "b.jsonl")
    assert first == second and (tmp_path / "a.jsonl").read_text() == (tmp_path / "b.jsonl").read_text()
    rows = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert len(rows) == 4 and {"prompt", "response", "ended", "score"} <= rows[0].keys()
    assert first["eval/score"] == pytest.approx(sum(row["score"] for row in rows) / 4)
    assert first["eval/kl"] == pytest.approx(0, abs=1e-5) and trainer.responses == 0
    assert first["step"] == first["iteration"] == 0
    held = {example.prompt for example in trainer.data.heldout}
    assert {row["prompt"] for row in rows} <= held


def test_the_average_is_evaluated_beside(tmp_path):
    trainer, evaluate = evaluator(tmp_path, averaging=EMA(decay=1.0))
    before = evaluate()
    trainer.train_rlhf(trainer.generate_experience())
    figures = evaluate(tmp_path / "a.jsonl")
    assert "eval/ema/score" not in before
    # decay 1 never moves: the average is the start, and nothing of it stays in the policy
    assert figures["eval/ema/score"] == before["eval/score"] and figures["eval/ema/kl"] == pytest.approx(0, abs=1e-5)
    assert figures["eval/kl"] != pytest.approx(0, abs=1e-4)
    assert (tmp_path / "a_ema.jsonl").exists()


def test_other_sampling_is_used_for_samples_stops_and_kl(tmp_path):
    short = Sampling(max_new_tokens=3, greedy=True)
    trainer, evaluate = evaluator(tmp_path, evaluation=Evaluation(every=1, prompts=4, sampling=short))
    figures = evaluate()
    assert figures["eval/length"] == 3 and figures["eval/truncated_fraction"] == 1
    trainer.train_rlhf(trainer.generate_experience())
    cold = Sampling(max_new_tokens=8, temperature=0.2)
    object.__setattr__(evaluate.settings, "sampling", cold)
    found = evaluate()["eval/kl"]
    rollout = trainer.sample(evaluate.prompts, seed=trainer.context.seed_for("evaluation"), sampling=cold)
    policy, reference = (
        trainer.infer(engine, rollout, ("logprobs",), temperature=0.2)["logprobs"]
        for engine in (trainer.policy, trainer.reference)
    )
    assert found == pytest.approx(float((policy - reference).sum(1).mean()), rel=1e-5)


def test_parts_of_the_reward_and_of_judges(tmp_path):
    penalty = LengthPenalty(target=2, per_token=1.0)
    summed = Weighted(models={"letters": tiny_runs.LETTERS, "length": penalty}, weights={"letters": 1.0, "length": 0.5})
    judges = {"both": Ensemble(models={"a": tiny_runs.LETTERS, "b": penalty})}
    settings = Evaluation(every=1, prompts=4, rewards=judges)
    figures = evaluator(tmp_path, reward=summed, evaluation=settings)[1](tmp_path / "a.jsonl")
    assert figures["eval/score/letters"] + 0.5 * figures["eval/score/length"] == pytest.approx(figures["eval/score"])
    assert figures["eval/both_score/a"] == figures["eval/score/letters"]
    rows = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    spread = [abs(row["both_score/a"] - row["both_score/b"]) / 2 for row in rows]
    assert [row["both_score/disagreement"] for row in rows] == pytest.approx(spread)
    assert figures["eval/both_score/disagreement"] == pytest.approx(sum(spread) / 4)


def test_the_held_out_texts_of_a_mixture_are_evaluated_on(tmp_path):
    mixture = Mixture(data=tiny_runs.data("text", 10, eval_rows=6))
    trainer, evaluate = evaluator(tmp_path, mixture=mixture, evaluation=Evaluation(every=1, prompts=4))
    assert evaluate.texts is not None and len(evaluate.texts) == 4
    (output,) = trainer.policy.evaluate([evaluate.texts], want=("logprobs",))
    expected = float(-output.logprobs[evaluate.texts.mask].mean())
    assert evaluate()["eval/mixture_loss"] == pytest.approx(expected) and expected > 1
    none = evaluator(tmp_path, mixture=Mixture(data=tiny_runs.data("text", 10, eval_rows=0)))[1]
    assert "eval/mixture_loss" not in none()


def test_when_it_is_due(tmp_path):
    trainer, evaluate = evaluator(tmp_path, iterations=3)
    due = []
    for trainer.iteration in range(4):
        due.append(evaluate.due())
    assert due == [True, False, True, True]
    assert not evaluator(tmp_path, evaluation=Evaluation())[1].due()


def test_without_held_out_prompts_it_cannot_be_asked_for(tmp_path):
    with pytest.raises(ValueError, match=r"evaluation\.every: 2, but data holds out no prompt"):
        evaluator(tmp_path, data=tiny_runs.data("prompt", eval_rows=0))


def test_response_ids_are_without_pads(tmp_path):
    trainer, evaluate = evaluator(tmp_path)
    rollout = trainer.sample(evaluate.prompts, seed=1)
    assert [len(ids) for ids in response_ids(rollout)] == rollout.mask.sum(1).tolist()

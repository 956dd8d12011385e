"""The on-policy loop: from what a reward model says to the rewards of tokens."""

import copy
import dataclasses
import math
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tiny_runs
import torch
from online_runs import same, same_tokenizer, trainer, weights

from rlhf.algorithms.critics import OwnTrunk
from rlhf.algorithms.normalization import ScoreNormalization
from rlhf.data.collate import collate_prompts
from rlhf.data.sources import Generator
from rlhf.engines.inference.sampling import Sampling
from rlhf.interfaces import RewardModel, Scorer
from rlhf.loops.offline import OfflineTrainer
from rlhf.models.rewards import ArithmeticReward, StepFunctionReward
from rlhf.types import Scores


@dataclasses.dataclass(frozen=True, kw_only=True)
class PerToken(RewardModel):
    """One for every token."""

    def build(self, engine, tokenizer) -> Scorer:
        return _PerToken()


class _PerToken(Scorer):
    def __call__(self, rollout) -> Scores:
        return Scores(torch.ones(rollout.mask.shape), {"tokens": rollout.mask.sum(1)})


def test_a_response_without_its_end_loses_the_penalty(tmp_path):
    for reward in (tiny_runs.LETTERS, PerToken()):
        plain = trainer(tmp_path, reward=reward).generate_experience()
        run = trainer(tmp_path, reward=reward, missing_end_penalty=1.5)
        experience = run.generate_experience()
        ended = experience.rollout.ended
        assert ended.any() and not ended.all()
        taken = plain.scored.scores - experience.scored.scores
        torch.testing.assert_close(taken, torch.where(ended, 0.0, 1.5))
        # logged as the reward model gave it
        assert experience.metrics.compute()["reward/score"] == plain.metrics.compute()["reward/score"]
        torch.testing.assert_close(plain.scored.rewards.sum(1) - experience.scored.rewards.sum(1), taken)


def test_scores_per_token(tmp_path):
    run = trainer(tmp_path, reward=PerToken(), kl=None)
    experience = run.generate_experience()
    mask = experience.rollout.mask
    assert torch.equal(experience.scored.rewards, mask.float())
    assert torch.equal(experience.scored.scores, mask.sum(1).float())
    figures = experience.metrics.compute()
    assert figures["reward/tokens"] == figures["reward/score"] == figures["rollout/length"]


def test_scores_are_measured_in_the_starting_policys(tmp_path):
    run = trainer(tmp_path, score_normalization=ScoreNormalization(samples=64), score_clip=None)
    experience = run.generate_experience()
    measured = run.normalization.state_dict()
    raw = run.scorer(experience.rollout).total
    expected = (raw - run.normalization.mean) / run.normalization.std
    torch.testing.assert_close(experience.scored.scores, expected.float())
    assert experience.metrics.compute()["reward/score"] == pytest.approx(float(raw.mean()))
    run.train_rlhf(experience)
    run.generate_experience()
    assert run.normalization.state_dict() == measured  # of the start, and only once


def test_running_statistics_take_in_an_iteration_after_its_update(tmp_path):  # case D7
    run = trainer(tmp_path, score_normalization=ScoreNormalization(samples=16, running=True), missing_end_penalty=1.0)
    seen = []
    for _ in range(3):
        experience = run.generate_experience()
        if not seen:
            prompts = collate_prompts(run._stream("normalization").next(16))
            start = run.sample(prompts, seed=run.context.seed_for("normalization"))
            seen = run.scorer(start).total.tolist()
        again = run.assess(experience.rollout)  # looking twice counts nothing twice
        assert torch.equal(again.scored.scores, experience.scored.scores)
        figures = run.train_rlhf(experience)
        assert figures["normalisation/mean"] == pytest.approx(np.mean(seen))
        assert figures["normalisation/std"] == pytest.approx(np.std(seen, ddof=1))
        seen += experience.raw.total.tolist()  # as the reward model gave them, without the penalty
    assert run.normalization.moments.number == len(seen) == 16 + 3 * 8
    other = trainer(tmp_path, score_normalization=ScoreNormalization(samples=16, running=True))
    other.load_state_dict(copy.deepcopy(run.state_dict()))
    assert other.normalization.moments == run.normalization.moments


def sums(n: int) -> Iterator[dict[str, Any]]:
    for number in range(n):
        yield {"prompt": f"{number} + {number} = ", "answer": 2 * number}


def test_columns_of_the_data_reach_rules(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "my_sums", sys.modules[__name__])
    source = Generator(function="my_sums.sums", arguments={"n": 24})
    data = dataclasses.replace(tiny_runs.data("prompt"), sources={"sums": source})
    run = trainer(tmp_path, data=data, reward=ArithmeticReward(otherwise=-1.0), samples_per_prompt=2)
    rollout = run.generate_experience().rollout
    assert [f"{n // 2} + {n // 2} = " for n in rollout.prompts.columns["answer"]] == list(rollout.prompts.text)
    texts = [f"it is {n}." for n in rollout.prompts.columns["answer"][:4]] + ["it is 1."] * 4
    assert run.scorer(dataclasses.replace(rollout, text=texts)).total.tolist() == [1.0] * 4 + [-1.0] * 4


def by_letter(prompts: list[str], steps: list[list[str]]) -> list[list[float]]:
    return [[1.0 + sum("a" <= letter <= "z" for letter in step) for step in row] for row in steps]


def test_scores_per_step_go_through_two_iterations(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "my_steps", sys.modules[__name__])
    sampling = Sampling(max_new_tokens=32, stop_tokens=tiny_runs.STOPS[:6])
    probe = trainer(tmp_path, sampling=sampling)
    pieces = "".join(probe.tokenizer.decode([id]) for id in range(len(probe.tokenizer)))
    letters = Counter(letter for text in probe.generate_experience().rollout.text for letter in text[:-1])
    # the commonest that no token holds together with other letters: such a token might end two steps
    mark = next(m for m, _ in letters.most_common() if m.isascii() and m.isalnum() and pieces.count(m) == 1)
    run = trainer(
        tmp_path,
        sampling=sampling,
        reward=StepFunctionReward(function="my_steps.by_letter", separator=mark),
        score_normalization=ScoreNormalization(samples=16, running=True),
        missing_end_penalty=0.5,
        kl=None,
        score_clip=None,
    )
    counts = []
    for _ in range(2):
        experience = run.generate_experience()
        rollout, rewards = experience.rollout, experience.scored.rewards
        mean, std = run.normalization.mean, run.normalization.std
        for row, text in enumerate(rollout.text):
            ids = rollout.sequences.response_ids[row][rollout.mask[row]].tolist()
            last = len(ids) - 1
            # a step ends with a token that brings the mark, the last one with the response
            ends = {last, *(t for t, id in enumerate(ids) if mark in run.tokenizer.decode([id]))}
            assert set(experience.raw.total[row].nonzero().flatten().tolist()) <= ends
            steps = [piece for piece in text.split(mark) if piece.strip()] or [""]
            raw = sum(by_letter([], [steps])[0])
            assert float(experience.raw.total[row].sum()) == raw and experience.raw.parts["steps"][row] == len(steps)
            expected = (raw - mean) / std - (0.0 if rollout.ended[row] else 0.5)
            assert float(experience.scored.scores[row]) == pytest.approx(expected, abs=1e-5)
            assert float(rewards[row].sum()) == pytest.approx(expected, abs=1e-5)
            # the shift and the penalty are at the end; before it there is only the scale
            torch.testing.assert_close(rewards[row][:last], experience.raw.total[row][:last] / std)
        figures = run.train_rlhf(experience)
        assert math.isfinite(figures["loss/total"])
        counts.append(figures["reward/steps"])
    assert run.iteration == 2 and counts[0] > 1


def test_what_was_cut_goes_on_with_its_value_and_what_ended_does_not(tmp_path):
    run = trainer(tmp_path)
    scored = run.generate_experience().scored
    rollout = trainer(tmp_path).generate_experience().rollout
    assert scored.bootstrap[rollout.ended].eq(0).all()
    assert scored.bootstrap[~rollout.ended].ne(0).all()
    # the state after the last token is where a reward model would read
    assert torch.equal(
        scored.bootstrap[~rollout.ended],
        run.infer(run.critic, rollout, ("scores",))["scores"][~rollout.ended],
    )


def test_a_critic_that_was_a_reward_model_is_brought_to_the_units_of_the_scores(tmp_path):
    OfflineTrainer(tiny_runs.reward_modelling(steps=2), tiny_runs.context(tmp_path)).fit()
    run = trainer(
        tmp_path,
        policy=same_tokenizer("comparison"),
        critic=OwnTrunk(path=str(tmp_path / "model")),
        score_normalization=ScoreNormalization(samples=32),
    )
    before = float(run.critic.model.mean), float(run.critic.model.std)
    run.generate_experience()
    assert (float(run.critic.model.mean), float(run.critic.model.std)) != before
    prompts = collate_prompts(run._stream("normalization").next(32))
    rollout = run.sample(prompts, seed=run.context.seed_for("normalization"))
    answers = run.infer(run.critic, rollout, ("scores",))["scores"]
    assert answers.mean().item() == pytest.approx(0, abs=1e-4) and answers.std().item() == pytest.approx(1, abs=1e-4)
    run.train_rlhf(run.generate_experience())
    other = trainer(
        tmp_path,
        policy=same_tokenizer("comparison"),
        critic=OwnTrunk(path=str(tmp_path / "model")),
        score_normalization=ScoreNormalization(samples=32),
    )
    other.load_state_dict(copy.deepcopy(run.state_dict()))
    assert same(weights(run.critic), weights(other.critic))  # mean and deviation are in the checkpoint

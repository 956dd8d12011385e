"""What metrics ask an evaluation for: samples that are paired and shared, and scores that are made once."""

from dataclasses import dataclass

import pytest
import tiny_runs
import torch

from rlhf import Evaluation, FunctionReward, Sampling
from rlhf.interfaces import RewardModel, Scorer
from rlhf.loops.evaluation import Evaluator
from rlhf.loops.held_out import STRIDE, Responses
from rlhf.loops.online import OnlineTrainer
from rlhf.types import Scores


@dataclass
class Counting(Scorer):
    """Counts what it is asked to score; no hash, as it can be compared."""

    asked: int = 0

    def __call__(self, rollout):
        self.asked += len(rollout)
        return Scores(rollout.mask.sum(1).float())


@dataclass(frozen=True, kw_only=True)
class Counted(RewardModel):
    """Builds a new counter each time."""

    name: str = ""

    def build(self, engine, tokenizer):
        return Counting()


def responses(directory, prompts=4, **settings):
    evaluation = Evaluation(every=1, prompts=prompts, **settings)
    trainer = OnlineTrainer(tiny_runs.ppo(evaluation=evaluation), tiny_runs.context(directory))
    setup = Evaluator(trainer).setup
    return setup, Responses(setup)


def test_more_samples_are_the_same_ones_and_others(tmp_path):
    _, one = responses(tmp_path)
    few, many = one.samples(2), one.samples(5)
    assert [a is b for a, b in zip(few, many, strict=False)] == [True, True] and len(many) == 5
    _, other = responses(tmp_path)
    assert [rollout.text for rollout in other.samples(5)] == [rollout.text for rollout in many]
    assert len({tuple(rollout.text) for rollout in many}) == 5


def test_a_prompt_has_the_same_samples_whatever_prompts_stand_beside_it(tmp_path):
    _, whole = responses(tmp_path)
    _, part = responses(tmp_path, prompts=2)
    assert [rollout.text[:2] for rollout in whole.samples(3)] == [list(rollout.text) for rollout in part.samples(3)]


def test_samples_of_another_kind_are_drawn_apart(tmp_path):
    _, one = responses(tmp_path)
    (usual,), (cold,) = one.samples(), one.samples(1, Sampling(max_new_tokens=2))
    assert usual is one.samples()[0] and cold is one.samples(1, Sampling(max_new_tokens=2))[0]
    assert cold.mask.shape[1] == 2 and usual.mask.shape[1] > 2
    assert all(long.startswith(short) for long, short in zip(usual.text, cold.text, strict=True))  # the same draws


def test_each_response_is_scored_once(tmp_path):
    _, one = responses(tmp_path)
    judge = Counting()
    four = one.scores(judge, 4)
    assert four.shape == (4, 4) and judge.asked == 16
    assert torch.equal(one.scores(judge, 2), four[:, :2]) and judge.asked == 16
    assert one.scores(judge, 5).shape == (4, 5) and judge.asked == 20
    lengths = [rollout.mask.sum(1).float() for rollout in one.samples(5)]
    assert torch.equal(one.scores(judge, 5), torch.stack(lengths, 1))


def test_what_the_evaluation_has_scored_is_not_scored_again(tmp_path):
    setup, one = responses(tmp_path)
    judge, known = Counting(), torch.arange(4.0)
    one.note(judge, known)
    assert torch.equal(one.scores(judge)[:, 0], known) and judge.asked == 0
    one.note(judge, known + 1)  # the same again changes nothing
    assert torch.equal(one.scores(judge, 2)[:, 0], known) and judge.asked == len(setup.prompts)


def test_equal_judges_are_built_once_and_null_is_the_stages_own(tmp_path):
    setup, _ = responses(tmp_path, rewards={"gold": Counted()})
    assert setup.judge(Counted()) is setup.judge(Counted()) is not setup.judge(Counted(name="other"))
    assert setup.judge(None) is setup.judge(tiny_runs.LETTERS) is setup.trainer.scorer
    assert setup.judge(FunctionReward(function="tiny_runs.letters")) is setup.trainer.scorer


def test_numbers_leave_room_for_any_evaluation():
    assert STRIDE * 10_000 < 2**63 and STRIDE > 10**9


def test_scores_per_token_count_by_response(tmp_path):
    setup, _ = responses(tmp_path)
    rollout = setup.trainer.sample(setup.prompts, seed=1)
    found = setup.scores(lambda rollout: Scores(torch.ones(rollout.mask.shape)), rollout)
    assert torch.equal(found, rollout.mask.sum(1).float())


def test_columns_that_judges_of_metrics_read_must_be_there(tmp_path):
    from rlhf import ExactMatchReward, PassAtK

    right = PassAtK(judge=ExactMatchReward(column="answer"))
    with pytest.raises(ValueError, match=r"evaluation\.metrics\.right\.judge: .*answer"):
        responses(tmp_path, metrics={"right": right})

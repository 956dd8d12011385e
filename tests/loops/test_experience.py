"""Sampling and assessing: filters, greedy baselines, references that follow, exact KL."""

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import pytest
import tiny_runs
import torch

from rlhf.algorithms.advantages import GAE, GroupNorm, Returns
from rlhf.algorithms.averaging import EMA
from rlhf.algorithms.constraints import Constraint
from rlhf.algorithms.filters import BestOfGroup, InformativeGroups, ScoresAbove
from rlhf.algorithms.kl import KL, Fixed
from rlhf.algorithms.optimizers import SGD
from rlhf.algorithms.rejection_sampling import RejectionSampling
from rlhf.engines.local import Local
from rlhf.errors import UserError
from rlhf.interfaces import AdvantageEstimator, RolloutFilter
from rlhf.loops.experience import joined
from rlhf.loops.online import OnlineTrainer
from rlhf.models.rewards import FunctionReward
from rlhf.types import Advantages

GROUPED = {"advantage": GroupNorm(), "critic": None, "samples_per_prompt": 4}


def trainer(directory, **settings) -> OnlineTrainer:
    return OnlineTrainer(tiny_runs.ppo(**settings), tiny_runs.context(directory))


# ---------------------------------------------------------------------------------------------------------- filters


@dataclass(frozen=True, kw_only=True)
class FirstOfGroup(RolloutFilter):
    """Keeps a number of responses that does not fill an iteration at once."""

    tries: int

    def attempts(self):
        return self.tries

    def __call__(self, scores, groups):
        kept = torch.zeros(len(scores), dtype=torch.bool)
        kept[:4] = True
        return kept


def test_without_a_filter_an_iteration_is_what_was_sampled(tmp_path):
    run = trainer(tmp_path, **GROUPED)
    experience = run.generate_experience()
    assert len(experience.batch) == 8 and run.responses == 8
    assert "rollout/kept_fraction" not in experience.metrics.compute()


def test_prompts_are_drawn_until_an_iteration_is_full(tmp_path):
    run = trainer(tmp_path, **GROUPED, filter=FirstOfGroup(tries=5))
    experience = run.generate_experience()
    figures = experience.metrics.compute()
    assert len(experience.batch) == 8 and run.responses == 16
    assert figures["rollout/attempts"] == 2 and figures["rollout/kept_fraction"] == 0.5
    assert experience.rollout.groups.tolist() == [0] * 4 + [1] * 4  # two draws' first groups have numbers of their own
    assert figures["reward/score"] != pytest.approx(float(experience.raw.total.mean()))  # of all that was sampled


def test_a_filter_gives_up_after_its_attempts(tmp_path):
    run = trainer(tmp_path, **GROUPED, filter=FirstOfGroup(tries=1))
    experience = run.generate_experience()
    assert len(experience.batch) == 4 and experience.metrics.compute()["rollout/attempts"] == 1
    assert run.train_rlhf(experience)["update/samples"] == 4


def constant(prompts, responses):
    return [1.0 for _ in responses]


def test_where_nothing_is_kept_the_last_responses_are_taken_and_teach_nothing(tmp_path):
    run = trainer(
        tmp_path,
        **GROUPED,
        kl=None,
        optimizer=SGD(lr=1.0),
        filter=InformativeGroups(max_attempts=3),
        reward=FunctionReward(function=f"{__name__}.constant"),
    )
    before = run.policy.full_state()["lm.lm_head.weight"].clone()
    figures = run.train_rlhf(run.generate_experience())
    assert run.responses == 24 and figures["rollout/attempts"] == 3 and figures["rollout/kept_fraction"] == 0
    assert torch.equal(before, run.policy.full_state()["lm.lm_head.weight"])


def test_where_nothing_is_kept_nothing_is_imitated(tmp_path):
    settings = {"filter": ScoresAbove(threshold=1e9, max_attempts=2), "optimizer": SGD(lr=1.0)}
    run = OnlineTrainer(tiny_runs.ppo(RejectionSampling, **settings), tiny_runs.context(tmp_path))
    before = run.policy.full_state()["lm.lm_head.weight"].clone()
    figures = run.train_rlhf(run.generate_experience())
    assert figures["advantage/mean"] == 1 and figures["rollout/kept_fraction"] == 0 and figures["loss/policy"] == 0
    assert torch.equal(before, run.policy.full_state()["lm.lm_head.weight"])


def test_the_best_of_each_group_are_learnt_from(tmp_path):
    run = trainer(tmp_path, **{**GROUPED, "advantage": Returns()}, mini_batch_size=2, filter=BestOfGroup())
    experience = run.generate_experience()
    assert len(experience.batch) == 2
    judged, _ = run.judge(experience.rollout)
    again = trainer(tmp_path, **{**GROUPED, "advantage": Returns()}, mini_batch_size=2)
    whole = again.generate_experience()
    best = whole.scored.scores.view(2, 4).amax(1)
    torch.testing.assert_close(experience.scored.scores, best)
    torch.testing.assert_close(judged.scores, best)


def test_joining_is_selecting_backwards(tmp_path):
    run = trainer(tmp_path, **GROUPED)
    judged, _ = run.judge(run.generate_experience().rollout)
    parts = [judged.select(torch.arange(0, 4)), judged.select(torch.arange(4, 8))]
    whole = joined(parts, pad_id=run.pad_id)
    for name in ("mask", "rollout_logprobs", "behaviour_logprobs", "ended", "groups"):
        torch.testing.assert_close(getattr(whole.rollout, name), getattr(judged.rollout, name))
    real = judged.rollout.sequences.attention_mask
    torch.testing.assert_close(whole.rollout.sequences.attention_mask, real)
    torch.testing.assert_close(whole.rollout.sequences.ids[real], judged.rollout.sequences.ids[real])
    assert whole.rollout.text == judged.rollout.text and whole.rollout.prompts == judged.rollout.prompts
    torch.testing.assert_close(whole.scores, judged.scores)


# ------------------------------------------------------------------------------------------ what estimators ask for


@dataclass(frozen=True, kw_only=True)
class AgainstGreedy(AdvantageEstimator):
    needs_greedy: ClassVar[bool] = True
    needs_collision: ClassVar[bool] = True

    def __call__(self, scored):
        assert scored.greedy is not None and scored.collision is not None and scored.old_logprobs is not None
        assert scored.collision.shape == scored.mask.shape and scored.collision[scored.mask].gt(0).all()
        advantage = (scored.scores - scored.greedy)[:, None].expand(scored.mask.shape)
        return Advantages(advantage.masked_fill(~scored.mask, 0.0), None)


def test_greedy_responses_are_scored_once_for_a_group(tmp_path):
    run = trainer(tmp_path, **{**GROUPED, "advantage": AgainstGreedy()})
    experience = run.generate_experience()
    greedy = experience.scored.greedy
    assert greedy is not None
    sampling = dataclasses.replace(run.algorithm.sampling, greedy=True)
    alone = run.sample(experience.rollout.prompts.select([4]), seed=99, sampling=sampling)
    judged, _ = run.judge(alone)
    torch.testing.assert_close(greedy[4:], judged.scores.expand(4))
    clipped = trainer(tmp_path, **{**GROUPED, "advantage": AgainstGreedy()}, score_clip=0.5).generate_experience()
    assert clipped.scored.greedy is not None and clipped.scored.greedy.abs().max() <= 0.5 < greedy.abs().max()
    assert run.responses == 8  # greedy responses do not move the counter of the sampled ones


def test_collision_is_not_known_without_the_trainers_own_pass():
    (problem,) = tiny_runs.ppo(**{**GROUPED, "advantage": AgainstGreedy()}, rescore=False).check()
    assert problem == "rescore: is false, but AgainstGreedy reads what only the trainer knows; set it to true"


# -------------------------------------------------------------------------------------------------------- reference


@pytest.mark.parametrize("decay", [0.0, 1.0])
def test_a_reference_that_follows(tmp_path, decay):
    """At decay 0 it is the policy itself, at 1 its start, as a frozen copy is."""
    run = trainer(tmp_path / "a", reference_average=EMA(decay=decay))
    frozen = trainer(tmp_path / "b")
    figures = []
    for one in (run, frozen):
        one.train_rlhf(one.generate_experience())
        figures.append(one.generate_experience().metrics.compute()["kl/sequence"])
    assert figures[1] > 1e-3
    assert figures[0] == pytest.approx(0.0 if decay == 0 else figures[1], abs=1e-5)


def test_a_following_reference_goes_on_from_its_state(tmp_path):
    one, other = (trainer(tmp_path / name, reference_average=EMA(decay=0.5)) for name in "ab")
    one.train_rlhf(one.generate_experience())
    other.load_state_dict(one.state_dict())
    first, second = one.generate_experience().batch, other.generate_experience().batch
    assert first.ref_logprobs is not None and second.ref_logprobs is not None
    assert torch.equal(first.ref_logprobs, second.ref_logprobs)
    assert not torch.allclose(first.ref_logprobs, first.old_logprobs, atol=1e-4)


def test_references_that_do_not_go_together_are_refused():
    (problem,) = tiny_runs.ppo(reference=tiny_runs.policy(), reference_average=EMA()).check()
    assert problem.startswith("reference: a frozen model")
    (problem,) = tiny_runs.ppo(kl=None, reference_average=EMA()).check()
    assert problem.startswith("reference_average: is given, but kl is null")


# --------------------------------------------------------------------------------------------------------- exact KL


def test_exact_kl_in_the_reward_is_that_of_the_distributions(tmp_path):
    run = trainer(tmp_path, kl=KL(estimator="exact", controller=Fixed(coef=0.5)), score_clip=None)
    run.train_rlhf(run.generate_experience())
    experience = run.generate_experience()
    rollout, mask = experience.rollout, experience.rollout.mask
    p = run.infer(run.policy, rollout, ("distribution",))["distribution"]
    q = run.infer(run.reference, rollout, ("distribution",))["distribution"]
    expected = (p.exp() * (p - q)).sum(-1).masked_fill(~mask, 0.0)
    assert expected.sum() > 1e-3
    inner = mask.clone()
    inner[torch.arange(len(inner)), mask.sum(1) - 1] = False  # the last token has the score too
    torch.testing.assert_close(experience.scored.rewards[inner], -0.5 * expected[inner], atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("micro", [None, 2])
def test_exact_kl_in_the_loss_pulls_the_policy_back(tmp_path, micro):
    """Without a reward that tells responses apart, only the KL acts: it must fall, however a batch is cut."""
    model = tiny_runs.SameTokenizer(form="prompt", config=tiny_runs.policy().config, vocab_size=280)
    settings = {
        "kl": KL(estimator="exact", where="loss", controller=Fixed(coef=1.0)),
        "reference": model,  # other weights: its seed is another
        "policy": model,
        "engine": Local(micro_batch_size=micro),
        "reward": FunctionReward(function=f"{__name__}.constant"),
        "advantage": Returns(whiten=True),
        "iterations": 6,
    }
    run = trainer(tmp_path, **settings)
    found = [run.train_rlhf(run.generate_experience())["loss/kl"] for _ in range(6)]
    assert found[0] > 0.01 and found[-1] < 0.5 * found[0]


def test_constraints_are_part_of_the_state(tmp_path):
    settings = {"constraints": {"letters": Constraint(cost=tiny_runs.LETTERS, limit=0.5)}}
    one, other = (trainer(tmp_path / name, **settings) for name in "ab")
    figures = one.train_rlhf(one.generate_experience())
    assert figures["constraint/letters/multiplier"] == 1.0 and figures["constraint/letters/cost"] > 0
    assert one.constraints["letters"].multiplier != 1.0
    other.load_state_dict(one.state_dict())
    assert other.constraints["letters"].multiplier == one.constraints["letters"].multiplier


def test_the_critic_learns_what_constraints_leave_of_the_score(tmp_path):
    run = trainer(tmp_path, advantage=GAE(lam=1.0), constraints={"same": Constraint(cost=tiny_runs.LETTERS)})
    scored = run.generate_experience().scored
    # the cost is the reward, limit 0 and multiplier 1: (R − R) / 2
    assert scored.scores.abs().max() == 0


def wants_answer(prompts, responses, answer):
    return [0.0 for _ in responses]


def test_columns_that_a_cost_reads_are_looked_for_before_a_prompt_is_answered(tmp_path):
    cost = FunctionReward(function=f"{__name__}.wants_answer")
    with pytest.raises(UserError, match=r"constraints.exact.cost: .*answer"):
        trainer(tmp_path, constraints={"exact": Constraint(cost=cost)})

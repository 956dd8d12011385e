"""PPO's own arithmetic and checks; how it runs and learns is in tests/loops."""

import math

import pytest
import tiny_runs
import torch

from rlhf.algorithms.advantages import GAE, GreedyBaseline, GroupNorm
from rlhf.algorithms.averaging import EMA, SWA
from rlhf.algorithms.critics import OwnTrunk, SharedTrunk
from rlhf.algorithms.filters import BestOfGroup
from rlhf.algorithms.kl import KL, Adaptive, Budget, Fixed
from rlhf.algorithms.objectives import Entropy, Mixture
from rlhf.algorithms.policy_losses import Clip
from rlhf.algorithms.ppo import Evaluation
from rlhf.engines.inference.sampling import Sampling
from rlhf.engines.local import Local
from rlhf.errors import UserError
from rlhf.interfaces import AdvantageEstimator, PolicyLoss
from rlhf.types import Advantages, Batch, Outputs, Scored

NAN = float("nan")
MASK3 = torch.tensor([[True, True, True, False, False]])
LOG_RATIOS = torch.tensor([[0.5, -0.2, 0.3, NAN, NAN]])  # of the policy to the reference
ZEROS = torch.zeros(1, 5)


def rewards(score, *, coef=0.1, **settings):
    return tiny_runs.ppo(**settings).rewards(torch.tensor([score]), LOG_RATIOS, ZEROS, MASK3, kl_coef=coef)


def test_reward_is_the_score_on_the_last_token_less_the_kl():  # case B4
    torch.testing.assert_close(rewards(2.0), torch.tensor([[-0.05, 0.02, 1.97, 0, 0]]))
    torch.testing.assert_close(rewards(7.0), torch.tensor([[-0.05, 0.02, 4.97, 0, 0]]))  # clipped to 5, the KL is not
    torch.testing.assert_close(rewards(7.0, score_clip=None), torch.tensor([[-0.05, 0.02, 6.97, 0, 0]]))


def test_scores_per_token_stay_where_they_are():
    scores = torch.tensor([[1.0, 0.0, 9.0, NAN, 3.0]])
    found = tiny_runs.ppo().rewards(scores, LOG_RATIOS, ZEROS, MASK3, kl_coef=0.1)
    torch.testing.assert_close(found, torch.tensor([[0.95, 0.02, 4.97, 0, 0]]))


def test_a_kl_in_the_loss_or_none_leaves_the_reward_alone():
    plain = torch.tensor([[0.0, 0.0, 2.0, 0.0, 0.0]])
    assert torch.equal(rewards(2.0, kl=KL(estimator="k2", where="loss")), plain)
    assert torch.equal(rewards(2.0, kl=None), plain)
    torch.testing.assert_close(rewards(2.0, kl=KL(estimator="k2")), plain - 0.05 * LOG_RATIOS.nan_to_num() ** 2)


def batch(**fields) -> Batch:
    sequences, mask = tiny_runs.right_padded([[1, 2, 3], [4, 5]])
    usual = {
        "rollout_logprobs": torch.zeros(2, 2),
        "old_logprobs": torch.tensor([[-1.0, -2.0], [-1.5, NAN]]),
        "ref_logprobs": torch.tensor([[-1.5, -2.5], [-1.5, NAN]]),
        "advantages": torch.tensor([[1.0, -1.0], [2.0, NAN]]),
        "returns": torch.tensor([[10.0, 10.0], [0.0, NAN]]),
        "values": torch.tensor([[5.0, 5.0], [1.0, NAN]]),
    }
    return Batch(sequences=sequences, mask=mask, **{**usual, **fields})


def test_terms_and_denominators():
    settings = tiny_runs.ppo(
        kl=KL(estimator="k2", where="loss", controller=Fixed(coef=0.3)),
        entropy=Entropy(coef=0.2),
        critic=SharedTrunk(coef=0.5),
    )
    assert settings.want == ("logprobs", "entropy", "values")
    logprobs = torch.tensor([[-1.0, -2.0], [-1.5, -9.0]])
    outputs = Outputs(logprobs=logprobs, entropy=torch.ones(2, 2), values=torch.tensor([[1.0, 9.0], [1.0, 7.0]]))
    terms, tally = settings.loss(outputs, batch(), kl_coef=0.3)
    by_name = {term.name: term for term in terms}
    assert [(t.name, t.coef) for t in terms] == [("policy", 1.0), ("kl", 0.3), ("entropy", 0.2), ("value", 0.5)]
    torch.testing.assert_close(by_name["policy"].values, torch.tensor([[-1.0, 1.0], [-2.0, 0.0]]))
    torch.testing.assert_close(by_name["kl"].values, torch.tensor([[0.125, 0.125], [0.0, 0.0]]))
    # case C3: ½ · max form, old 5, new 1 and 9, return 10
    torch.testing.assert_close(by_name["value"].values, torch.tensor([[40.5, 11.52], [0.5, 0.0]]))
    assert settings.denominators(batch()) == {"policy": 3.0, "value": 3.0, "kl": 3.0, "entropy": 3.0}
    figures = tally.compute()
    assert figures["policy/ratio_max"] == 1 and figures["policy/clip_fraction"] == 0
    assert figures["policy/approx_kl"] == 0


def test_a_null_value_clip_is_the_plain_error():
    settings = tiny_runs.ppo(critic=OwnTrunk(clip=None))
    (term,), _ = settings.value_loss(Outputs(values=torch.tensor([[1.0, 9.0], [1.0, 7.0]])), batch())
    torch.testing.assert_close(term.values, torch.tensor([[40.5, 0.5], [0.5, 0.0]]))


@pytest.mark.parametrize(("aggregation", "denominator"), [("token", 3.0), ("sequence", 2.0), ("constant", 16.0)])
def test_denominator_of_each_aggregation(aggregation, denominator):
    settings = tiny_runs.ppo(policy_loss=Clip(aggregation=aggregation), sampling=Sampling(max_new_tokens=8))
    found = settings.denominators(batch())
    # constant: 2 responses of at most 8 tokens, whatever the longest of this batch is
    assert found["policy"] == denominator and found["value"] == 3.0
    (term, *_), _ = settings.loss(Outputs(logprobs=torch.zeros(2, 2)), batch(), kl_coef=0.0)
    assert term.mode == aggregation


def test_figures_of_the_update():
    settings = tiny_runs.ppo()
    moved = torch.tensor([[-1.0 + math.log(1.5), -2.0 + math.log(1.1)], [-1.5 + math.log(0.5), 3.0]])
    _, tally = settings.loss(Outputs(logprobs=moved), batch(), kl_coef=0.0)
    figures = tally.compute()
    assert figures["policy/ratio_max"] == pytest.approx(1.5)
    # A = 1 at 1.5 is clipped; A = −1 at 1.1 is in range; A = 2 at 0.5 is below the range, but would still be raised
    assert figures["policy/clip_fraction"] == pytest.approx(1 / 3)
    # k3 of KL(old ‖ new): mean of r − 1 − ln r
    expected = sum(r - 1 - math.log(r) for r in (1.5, 1.1, 0.5)) / 3
    assert figures["policy/approx_kl"] == pytest.approx(expected, abs=1e-6)


def test_clip_fraction_counts_what_the_dual_clip_stops_too():
    settings = tiny_runs.ppo(policy_loss=Clip(dual=3.0))
    moved = torch.tensor([[-1.0, -2.0 + math.log(10)], [-1.5, 0.0]])
    _, tally = settings.loss(Outputs(logprobs=moved), batch(), kl_coef=0.0)
    assert tally.compute()["policy/clip_fraction"] == pytest.approx(1 / 3)


def test_outputs_and_used_critic():
    assert tiny_runs.ppo().outputs() == ("model",)
    assert tiny_runs.ppo(averaging=EMA()).outputs() == ("model", "ema")
    assert tiny_runs.ppo().used_critic == tiny_runs.ppo().critic
    assert tiny_runs.ppo(advantage=GroupNorm(), samples_per_prompt=4).used_critic is None
    assert tiny_runs.ppo().want == ("logprobs",)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"iterations": 0}, "iterations: is 0; must be at least 1"),
        ({"samples_per_prompt": 3}, "batch_size: 8 % 3 = 2, not 0; make batch_size a multiple of samples_per_prompt"),
        ({"mini_batch_size": 5}, "batch_size: 8 % 5 = 3, not 0; make batch_size a multiple of mini_batch_size"),
        ({"advantage": GAE(), "critic": None}, "critic: is null, but GAE needs values"),
        ({"advantage": GroupNorm()}, "samples_per_prompt: is 1, but GroupNorm compares"),
        ({"engine": Local(micro_batch_size=3)}, "mini_batch_size: 4 % 3 = 1"),
        (
            {
                "mixture": Mixture(data=tiny_runs.data("text"), batch_size=3),
                "engine": Local(micro_batch_size=2),
            },
            "mixture.batch_size: 3 % 2 = 1",
        ),
    ],
)
def test_impossible_settings_are_known_before_anything_loads(settings, text):  # case H4
    (problem,) = tiny_runs.ppo(**settings).check()
    assert text.replace("\\", "") in problem


def test_possible_settings():
    assert tiny_runs.ppo(samples_per_prompt=4, evaluation=Evaluation(every=2)).check() == []


@pytest.mark.parametrize(
    "settings", [{"score_clip": 0.0}, {"target_kl": -1.0}, {"max_grad_norm": 0.0}, {"save_every": -1}]
)
def test_settings_out_of_range_are_refused(settings):
    with pytest.raises(ValueError, match=f"{next(iter(settings))} is .*; must be "):
        tiny_runs.ppo(**settings)


def test_a_policy_that_would_only_wait_for_its_critic_is_refused():
    problems = tiny_runs.ppo(critic=OwnTrunk(warmup_iterations=2), iterations=2).check()
    assert ["policy would never learn" in problem for problem in problems] == [True]


def test_parts_that_do_not_fit_the_length_of_a_run_are_refused():
    for controller in (Adaptive(horizon=1), Budget(horizon=1)):
        (problem,) = tiny_runs.ppo(kl=KL(controller=controller)).check()
        assert problem.startswith("kl.controller.horizon: 1, but an iteration of 8 responses and clip 0.2 could")
        assert tiny_runs.ppo(kl=KL(controller=type(controller)(horizon=2))).check() == []
    for setting in ("averaging", "reference_average"):
        (problem,) = tiny_runs.ppo(**{setting: SWA(start=6)}).check()
        assert problem.startswith(f"{setting}.start: 6, but the policy makes 6 optimiser steps")
        assert tiny_runs.ppo(**{setting: SWA(start=5)}).check() == []


def test_equal_responses_are_not_compared():
    greedy = Sampling(greedy=True, max_new_tokens=4)
    for advantage in (GroupNorm(), GreedyBaseline()):
        (problem,) = tiny_runs.ppo(advantage=advantage, samples_per_prompt=2, sampling=greedy).check()
        assert problem.startswith("sampling.greedy: is true") and type(advantage).__name__ in problem
    assert tiny_runs.ppo(sampling=greedy).check() == []


class Hasty(AdvantageEstimator):
    def __init__(self, answer):
        self.answer = answer

    def __call__(self, scored):
        return self.answer


class Unsummed(PolicyLoss):
    def __call__(self, logprobs, batch):
        return logprobs


def test_parts_of_ones_own_that_are_unfinished_are_told_what_they_lack():
    mask = torch.ones(2, 3, dtype=torch.bool)
    scored = Scored(torch.zeros(2, 3), torch.zeros(2), None, None, mask, torch.arange(2))
    with pytest.raises(UserError, match=r"Hasty answers a Tensor, not Advantages\(advantages, returns\)"):
        tiny_runs.ppo(advantage=Hasty(torch.zeros(2, 3))).advantages(scored)
    with pytest.raises(UserError, match=r"advantages \[2\] for tokens \[2, 3\]"):
        tiny_runs.ppo(advantage=Hasty(Advantages(torch.zeros(2), None))).advantages(scored)
    (problem,) = tiny_runs.ppo(policy_loss=Unsummed()).check()
    assert problem.startswith("policy_loss: Unsummed has no aggregation; give it a field of that name, one of token,")


def test_what_a_filter_keeps_must_fill_optimiser_steps():
    settings = {"batch_size": 16, "samples_per_prompt": 8, "mini_batch_size": 4, "filter": BestOfGroup()}
    (problem,) = tiny_runs.ppo(**settings).check()
    assert problem.startswith("batch_size: filter keeps 2 of 16 responses, and 2 % 4 = 2, not 0; make them a multiple")

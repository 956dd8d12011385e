"""REINFORCE++ with and without baseline on two responses by hand; see tests/objectives.py."""

import math

import pytest
import tiny_runs
from objectives import OLD, slope

from rlhf.algorithms.reinforce_plus_plus import ReinforcePlusPlus, ReinforcePlusPlusBaseline

# Returns 1 | 0, 0: mean 1/3, variance (4/9 + 1/9 + 1/9) / 3 = 2/9; whitened √2 | −√½, −√½. Less their group's mean, ½
# | −½, −½, they are the same up to a shift.
WHITE = [-math.sqrt(2) / 3, math.sqrt(0.5) / 3, math.sqrt(0.5) / 3]


@pytest.mark.parametrize("kind", [ReinforcePlusPlus, ReinforcePlusPlusBaseline])
def test_advantages_are_whitened_over_all_tokens(kind):
    settings = tiny_runs.ppo(kind, samples_per_prompt=2)
    assert slope(settings) == pytest.approx(WHITE, rel=1e-5)
    assert slope(settings, log_ratio=math.log(1.21))[0] == 0  # PPO's clip


def test_the_kl_is_in_the_return_of_each_token_or_in_the_loss():
    reference = OLD.clone()
    reference[1, 1] -= 1.0  # the last token of the second response costs β = 0.5, and lowers the return of both
    # returns 1 | −½, −½: the same shape again, so only its scale is whitened away
    assert slope(tiny_runs.ppo(ReinforcePlusPlus), coef=0.5, reference=reference) == pytest.approx(WHITE, rel=1e-5)
    # k2 has the slope of its log-ratio, 1: ½ · 1 / 3 tokens
    found = slope(tiny_runs.ppo(ReinforcePlusPlusBaseline), coef=0.5, reference=reference)
    assert found == pytest.approx([WHITE[0], WHITE[1], WHITE[2] + 0.5 / 3], rel=1e-5)


def test_only_the_baseline_needs_a_group():
    assert tiny_runs.ppo(ReinforcePlusPlus).check() == []
    assert tiny_runs.ppo(ReinforcePlusPlusBaseline, samples_per_prompt=1).check() != []

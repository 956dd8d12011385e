"""GRPO, Dr. GRPO and DAPO on two responses by hand; see tests/objectives.py."""

import math

import pytest
import tiny_runs
from objectives import OLD, STD, slope

from rlhf.algorithms.filters import InformativeGroups
from rlhf.algorithms.grpo import DAPO, GRPO, DrGRPO

A = 0.5 / STD
"""Advantage of the first response; the second has −A."""


def test_grpo_is_the_mean_of_each_responses_mean():
    # ½ (−A r) for the first; ½ · ½ (+A r) for each token of the second
    assert slope(tiny_runs.ppo(GRPO, kl=None)) == pytest.approx([-A / 2, A / 4, A / 4])


def test_grpo_clips_at_a_fifth():
    settings = tiny_runs.ppo(GRPO, kl=None)
    assert slope(settings, log_ratio=math.log(1.19))[0] == pytest.approx(-1.19 * A / 2)
    assert slope(settings, log_ratio=math.log(1.21))[0] == 0


def test_grpos_kl_is_a_loss():
    # k3 = ρ − 1 − log ρ with ρ = π_ref / π has the slope 1 − ρ; 3 tokens, β = 0.5, and ρ = e^0.2 of the first
    reference = OLD.clone()
    reference[0, 0] += 0.2
    plain, with_kl = (slope(tiny_runs.ppo(GRPO), coef=coef, reference=reference) for coef in (0.0, 0.5))
    assert [b - a for a, b in zip(plain, with_kl, strict=True)] == pytest.approx(
        [0.5 * (1 - math.exp(0.2)) / 3, 0, 0], abs=1e-6
    )
    assert plain == pytest.approx([-A / 2, A / 4, A / 4])  # nothing of it in the reward


def test_dr_grpo_divides_by_a_constant():
    # A = ±½; 2 responses of at most 8 tokens
    assert slope(tiny_runs.ppo(DrGRPO)) == pytest.approx([-0.5 / 16, 0.5 / 16, 0.5 / 16])
    assert tiny_runs.ppo(DrGRPO).kl is None


def test_dapo_takes_all_tokens_alike_and_clips_higher():
    settings = tiny_runs.ppo(DAPO)
    assert slope(settings) == pytest.approx([-A / 3, A / 3, A / 3])
    assert slope(settings, log_ratio=math.log(1.27))[0] == pytest.approx(-1.27 * A / 3)
    assert slope(settings, log_ratio=math.log(1.29))[0] == 0
    assert settings.kl is None and settings.filter == InformativeGroups()


def test_none_of_them_has_a_critic():
    for kind in (GRPO, DrGRPO, DAPO):
        assert kind.__dataclass_fields__["critic"].default is None
        (problem,) = tiny_runs.ppo(kind, samples_per_prompt=1).check()[:1]
        assert problem.startswith("samples_per_prompt: is 1, but GroupNorm compares")

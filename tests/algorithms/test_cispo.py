"""CISPO on two responses by hand; see tests/objectives.py."""

import math

import pytest
import tiny_runs
from objectives import STD, slope

from rlhf.algorithms.cispo import CISPO

A = 0.5 / STD


def test_all_tokens_alike():
    assert slope(tiny_runs.ppo(CISPO)) == pytest.approx([-A / 3, A / 3, A / 3])


def test_the_weight_is_clipped_and_the_gradient_never():
    settings = tiny_runs.ppo(CISPO)
    assert slope(settings, log_ratio=math.log(3))[0] == pytest.approx(-3 * A / 3)
    assert slope(settings, log_ratio=math.log(50))[0] == pytest.approx(-5 * A / 3)  # 1 + high, and not 0
    assert settings.kl is None

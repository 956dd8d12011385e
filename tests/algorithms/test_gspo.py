"""GSPO on two responses by hand; see tests/objectives.py."""

import math

import pytest
import tiny_runs
from objectives import STD, slope

from rlhf.algorithms.gspo import GSPO

A = 0.5 / STD


def test_the_ratio_is_the_responses():
    # ½ (−A s_1) and ½ (A s_2), s_2 = exp(mean of two log-ratios): half of its slope for each token
    assert slope(tiny_runs.ppo(GSPO)) == pytest.approx([-A / 2, A / 4, A / 4])


def test_the_clip_is_narrow():
    settings = tiny_runs.ppo(GSPO)
    assert slope(settings, log_ratio=math.log(1 + 3.9e-4))[0] == pytest.approx(-A / 2, rel=1e-3)
    assert slope(settings, log_ratio=math.log(1 + 4.1e-4))[0] == 0
    assert settings.kl is None

"""GMPO on two responses by hand; see tests/objectives.py."""

import math

import pytest
import tiny_runs
from objectives import STD, slope

from rlhf.algorithms.gmpo import GMPO

A = 0.5 / STD


def test_a_response_has_the_geometric_mean_of_its_ratios():
    assert slope(tiny_runs.ppo(GMPO)) == pytest.approx([-A / 2, A / 4, A / 4])


def test_the_clip_is_in_log_space():
    settings = tiny_runs.ppo(GMPO)
    assert slope(settings, log_ratio=0.39)[0] == pytest.approx(-A / 2 * math.exp(0.39))
    assert slope(settings, log_ratio=0.41)[0] == 0
    assert settings.kl is None

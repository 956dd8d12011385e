"""RLOO on two responses by hand; see tests/objectives.py."""

import pytest
import tiny_runs
from objectives import OLD, slope

from rlhf.algorithms.rloo import RLOO


def test_the_other_response_is_the_baseline():
    # A = 1 − 0 and 0 − 1; sums of log-probabilities over 2 responses of at most 8 tokens
    assert slope(tiny_runs.ppo(RLOO)) == pytest.approx([-1 / 16, 1 / 16, 1 / 16])


def test_the_kl_of_a_response_is_taken_off_its_score():
    # k1 of the first token is 0.4, β = 0.5: R = 1 − 0.2 against 0
    reference = OLD.clone()
    reference[0, 0] -= 0.4
    assert slope(tiny_runs.ppo(RLOO), coef=0.5, reference=reference) == pytest.approx([-0.8 / 16, 0.8 / 16, 0.8 / 16])


def test_no_ratio_and_no_clip():
    assert slope(tiny_runs.ppo(RLOO), log_ratio=3.0)[0] == pytest.approx(-1 / 16)

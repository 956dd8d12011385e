"""ReMax on two responses by hand; see tests/objectives.py. That greedy responses are sampled is in tests/loops."""

import pytest
import tiny_runs
import torch
from objectives import slope

from rlhf.algorithms.remax import ReMax


def test_the_greedy_response_is_the_baseline():
    # its score is ¼: A = ¾ and −¼; sums of log-probabilities over 2 responses of at most 8 tokens
    found = slope(tiny_runs.ppo(ReMax), greedy=torch.tensor([0.25, 0.25]))
    assert found == pytest.approx([-0.75 / 16, 0.25 / 16, 0.25 / 16])


def test_it_needs_neither_critic_nor_group():
    settings = tiny_runs.ppo(ReMax)
    assert settings.check() == [] and settings.critic is None and settings.samples_per_prompt == 1

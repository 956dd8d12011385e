"""Figures of an iteration, by hand."""

import math

import pytest
import tiny_runs
import torch

from rlhf.loops.figures import describe, mean_of
from rlhf.types import Batch, Prompts, Rollout, Scored, Tally

NAN = float("nan")


def test_masked_figures_by_hand():  # case I1
    sequences, mask = tiny_runs.right_padded([[1, 5, 6]], right=1)
    logprobs, reference = torch.tensor([[-1.0, -2.0, -9.0]]), torch.tensor([[-1.5, -2.5, 0.0]])
    ended, groups = torch.tensor([False]), torch.tensor([0])
    rollout = Rollout(Prompts([[1]], ["a"], ["s"]), sequences, mask, logprobs, logprobs, ended, groups, ["x"])
    values, returns = torch.tensor([[1.0, 2.0, NAN]]), torch.tensor([[2.0, 4.0, NAN]])
    scored = Scored(torch.tensor([[0.5, 1.0, 0.0]]), torch.ones(1), values, None, mask, groups)
    advantages = torch.tensor([[1.0, 3.0, NAN]])
    batch = Batch(sequences, mask, logprobs, logprobs, reference, advantages, returns, values)
    tally = Tally()
    describe(tally, rollout, scored, batch)
    assert tally.compute() == {
        "reward/total": 1.5,
        "rollout/length": 2.0,
        "rollout/truncated_fraction": 1.0,
        "advantage/mean": 2.0,
        "advantage/std": 1.0,
        "kl/sequence": 1.0,
        "kl/ref_k1": 0.5,
        "kl/ref_k2": 0.125,
        "kl/ref_k3": pytest.approx(math.exp(-0.5) - 1 + 0.5),
        "value/explained_variance": pytest.approx(0.75),  # errors 1 and 2 around their mean, returns 2 and 4
    }


def test_mean_over_steps_and_the_largest_of_maxima():
    steps = [
        {"step": 1, "iteration": 1, "loss": 1.0, "ratio_max": 3.0, "seldom": 7.0},
        {"step": 2, "iteration": 1, "loss": 2.0, "ratio_max": 2.0},
    ]
    assert mean_of(steps) == {"loss": 1.5, "ratio_max": 3.0, "seldom": 7.0}

"""Weights where the sampler's probabilities are not the trainer's."""

import pytest
import torch
from torch import Tensor

from rlhf.algorithms.functional.corrections import masked_weights, truncated_weights

NAN = float("nan")


def of_ratios(*rows: list[float]) -> tuple[Tensor, Tensor, Tensor]:
    """Old and sampler's log-probabilities with these ratios, and the mask of those that are no NaN."""
    ratios = torch.tensor(rows)
    return ratios.log() - 2.0, torch.full_like(ratios, -2.0), ~ratios.isnan()


def close(actual: Tensor, expected) -> None:
    torch.testing.assert_close(actual, torch.tensor(expected), atol=1e-5, rtol=0)


ROWS = of_ratios([3.0, 0.5, 1.2], [0.1, 1.5, NAN])


def test_truncated_weights_by_hand():
    close(truncated_weights(*ROWS, cap=2.0), [[2.0, 0.5, 1.2], [0.1, 1.5, 0.0]])
    # products 1.8 and 0.15
    close(truncated_weights(*ROWS, cap=2.0, level="sequence"), [[1.8] * 3, [0.15, 0.15, 0.0]])
    close(truncated_weights(*ROWS, cap=1.5, level="sequence"), [[1.5] * 3, [0.15, 0.15, 0.0]])


def test_masked_weights_by_hand():
    close(masked_weights(*ROWS, low=0.5, high=2.0), [[0.0, 0.5, 1.2], [0.0, 1.5, 0.0]])
    close(masked_weights(*ROWS, low=0.5, high=2.0, level="sequence"), [[1.8] * 3, [0.0] * 3])


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_weights_are_in_expectation_one(level):
    """All pairs of tokens of two distributions: what the sampler draws, weighed, is what the trainer would draw."""
    trainer, sampler = torch.tensor([0.7, 0.2, 0.1]), torch.tensor([0.4, 0.4, 0.2])
    pairs = torch.cartesian_prod(torch.arange(3), torch.arange(3))
    mask = torch.ones(9, 2, dtype=torch.bool)
    weights = truncated_weights(trainer.log()[pairs], sampler.log()[pairs], mask, cap=100.0, level=level)
    drawn = sampler[pairs].prod(1)
    torch.testing.assert_close((drawn[:, None] * weights).sum(0), torch.ones(2))


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_they_are_constants_and_stay_finite(level):
    old = torch.tensor([[0.0, 0.0]], requires_grad=True)
    sampler, mask = torch.tensor([[-500.0, -500.0]]), torch.ones(1, 2, dtype=torch.bool)
    for weights in (
        truncated_weights(old, sampler, mask, cap=2.0, level=level),
        masked_weights(old, sampler, mask, low=0.5, high=2.0, level=level),
    ):
        assert not weights.requires_grad and weights.isfinite().all()


def test_refusals():
    old, sampler, mask = ROWS
    with pytest.raises(ValueError, match="cap"):
        truncated_weights(*ROWS, cap=0.0)
    with pytest.raises(ValueError, match="low"):
        masked_weights(*ROWS, low=2.0, high=1.0)
    for call in (
        lambda **x: truncated_weights(old, sampler, mask, cap=1.0, **x),
        lambda **x: masked_weights(old, sampler, mask, low=0.0, high=1.0, **x),
    ):
        with pytest.raises(ValueError, match=r"No level is called 'turn'\. Known: token, sequence"):
            call(level="turn")
    with pytest.raises(ValueError, match=r"rollout_logprobs \[1, 1\]"):
        truncated_weights(old, torch.ones(1, 1), mask, cap=1.0)
    with pytest.raises(ValueError, match="bool"):
        masked_weights(old, sampler, mask.float(), low=0.0, high=1.0)

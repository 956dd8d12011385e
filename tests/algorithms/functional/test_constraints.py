"""Lagrange multipliers."""

import math

import pytest
import torch

from rlhf.algorithms.functional.constraints import SMALLEST, lagrangian, multiplier_update


def test_lagrangian_by_hand():
    rewards, first, second = torch.tensor([2.0, -1.0]), torch.tensor([1.0, 0.0]), torch.tensor([-3.0, 4.0])
    # (2 − ½·1 − ½·(−3)) / 2 = 1.5;  (−1 − 0 − ½·4) / 2 = −1.5
    assert lagrangian(rewards, [first, second], [0.5, 0.5]).tolist() == [1.5, -1.5]
    assert torch.equal(lagrangian(rewards, [], []), rewards)
    assert torch.equal(lagrangian(rewards, [first], [0.0]), rewards)


def test_a_large_multiplier_leaves_the_cost_alone():
    excess = torch.tensor([1.0, -2.0])
    torch.testing.assert_close(lagrangian(torch.ones(2), [excess], [1e8]), -excess, atol=1e-6, rtol=0)


def test_multiplier_by_hand():
    # ln λ' = ln 2 + 0.1 · 2 · 3
    assert multiplier_update(2.0, 3.0, lr=0.1, maximum=10) == pytest.approx(2 * math.exp(0.6))
    assert multiplier_update(2.0, -3.0, lr=0.1, maximum=10) == pytest.approx(2 * math.exp(-0.6))
    assert multiplier_update(2.0, 0.0, lr=0.1, maximum=10) == 2
    assert multiplier_update(2.0, 1e9, lr=0.1, maximum=10) == 10
    assert multiplier_update(2.0, -1e9, lr=0.1, maximum=10) == SMALLEST


def test_what_is_refused():
    with pytest.raises(ValueError, match="same shape"):
        lagrangian(torch.ones(2), [torch.ones(3)], [1.0])
    with pytest.raises(ValueError, match="as many multipliers"):
        lagrangian(torch.ones(2), [torch.ones(2)], [])
    with pytest.raises(ValueError, match="would reward a cost"):
        lagrangian(torch.ones(2), [torch.ones(2)], [-1.0])
    with pytest.raises(ValueError, match="NaN"):
        multiplier_update(1.0, float("nan"), lr=0.1, maximum=10)
    with pytest.raises(ValueError, match="lr"):
        multiplier_update(1.0, 1.0, lr=0.0, maximum=10)

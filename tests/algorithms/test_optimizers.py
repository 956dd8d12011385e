"""Optimisers and their parameter groups."""

import pytest
import torch
from torch import nn

from rlhf.algorithms.optimizers import SGD, AdamW


def named() -> list[tuple[str, nn.Parameter]]:
    layer, norm = nn.Linear(2, 3), nn.LayerNorm(3)
    return [*layer.named_parameters(), *norm.named_parameters()]


def test_adamw_decays_matrices_only():
    parameters = named()
    optimizer = AdamW(lr=0.1, beta1=0.8, beta2=0.9, eps=1e-6, weight_decay=0.5).build(parameters)
    decayed, free = optimizer.param_groups
    assert [p.shape for p in decayed["params"]] == [(3, 2)] and decayed["weight_decay"] == 0.5
    assert [p.shape for p in free["params"]] == [(3,), (3,), (3,)] and free["weight_decay"] == 0.0
    assert decayed["lr"] == 0.1 and decayed["betas"] == (0.8, 0.9) and decayed["eps"] == 1e-6
    before = [p.detach().clone() for _, p in parameters]
    for _, parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()  # without a gradient only the decay acts: w ← w (1 − 0.1 · 0.5)
    torch.testing.assert_close(parameters[0][1].detach(), before[0] * 0.95)
    assert all(torch.equal(p, b) for (_, p), b in zip(parameters[1:], before[1:], strict=True))


def test_adamw_without_one_kind_of_weights():
    assert len(AdamW().build([("weight", nn.Parameter(torch.zeros(2, 2)))]).param_groups) == 1


def test_first_step_of_adamw_is_the_learning_rate():
    weight = nn.Parameter(torch.zeros(2, 2))
    weight.grad = torch.tensor([[1.0, -2.0], [3.0, -4.0]])
    AdamW(lr=0.01).build([("weight", weight)]).step()
    torch.testing.assert_close(weight.detach(), torch.tensor([[-0.01, 0.01], [-0.01, 0.01]]))


def test_sgd_with_momentum_by_hand():
    weight = nn.Parameter(torch.tensor([1.0]))
    optimizer = SGD(lr=0.1, momentum=0.5).build([("weight", weight)])
    for _ in range(2):
        weight.grad = torch.tensor([1.0])
        optimizer.step()
    assert weight.item() == pytest.approx(1 - 0.1 - 0.15)  # the second step is 0.1 · (0.5 + 1)


def test_sgd_weight_decay_by_hand():
    weight = nn.Parameter(torch.tensor([2.0]))
    weight.grad = torch.tensor([1.0])
    SGD(lr=0.1, weight_decay=0.5).build([("weight", weight)]).step()
    assert weight.item() == pytest.approx(2 - 0.1 * (1 + 0.5 * 2))

"""Optimisers and their parameter groups."""

import pytest
import tiny_runs
import torch
from torch import nn

from rlhf.algorithms.optimizers import SGD, AdamW, ParameterGroup
from rlhf.algorithms.schedules import LinearDecay
from rlhf.loops.offline import OfflineTrainer


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


# -------------------------------------------------------------------------------------------------------------- groups


def scalars(*names: str) -> list[tuple[str, nn.Parameter]]:
    """Weights of 1 with gradients of 1."""
    found = [(name, nn.Parameter(torch.ones(1, 1))) for name in names]
    for _, weight in found:
        weight.grad = torch.ones(1, 1)
    return found


def test_groups_of_sgd_by_hand():
    named = scalars("h.0.lora_A.default.weight", "h.0.lora_B.default.weight", "head.weight", "other.weight")
    groups = {r"lora_": ParameterGroup(lr=0.5), r"^head\.": ParameterGroup(weight_decay=0.0)}
    optimizer = SGD(lr=0.1, weight_decay=2.0, groups=groups).build(named)
    optimizer.step()
    # lora_: 1 − 0.5 (1 + 2 · 1);  head: 1 − 0.1 (1 + 0);  other: 1 − 0.1 (1 + 2 · 1)
    assert [weight.item() for _, weight in named] == pytest.approx([-0.5, -0.5, 0.9, 0.7])
    assert optimizer.param_groups[0]["params"] == [named[3][1]]  # the optimiser's own rate is that of the first


def test_groups_of_adamw_by_hand():
    """The first step of Adam moves every weight by its rate, and the decay by rate · decay · weight."""
    named = [*scalars("lora_A", "lora_B"), ("norm", nn.Parameter(torch.ones(1))), ("bias", nn.Parameter(torch.ones(1)))]
    for _, weight in named:
        weight.grad = torch.ones_like(weight)
    groups = {"lora_B": ParameterGroup(lr=0.04), "norm|lora": ParameterGroup(weight_decay=0.5)}
    AdamW(lr=0.01, weight_decay=0.1, eps=1e-12, groups=groups).build(named).step()
    # A: 1 · (1 − 0.01 · 0.5) − 0.01;  B, whose first group counts: 1 − 0.04 · 0.1 − 0.04;
    # norm, decayed as its group says it: like A;  bias, in no group and of one dimension: 1 − 0.01
    assert [weight.item() for _, weight in named] == pytest.approx([0.985, 0.956, 0.985, 0.99])


def test_the_schedule_moves_the_rate_of_every_group_alike(tmp_path):
    groups = {"wte": ParameterGroup(lr=0.2)}
    stage = tiny_runs.sft(optimizer=AdamW(lr=0.1, groups=groups), schedule=LinearDecay(), steps=2)
    trainer = OfflineTrainer(stage, tiny_runs.context(tmp_path))
    for share in (1.0, 0.5):
        trainer.train_step(trainer.next_batch())
        rates = {group["lr"] for group in trainer.engine.optimizer.param_groups}
        assert rates == {0.1 * share, 0.2 * share}


@pytest.mark.parametrize("optimizer", [AdamW, SGD])
def test_groups_that_mean_nothing_are_refused(optimizer):
    with pytest.raises(ValueError, match=r"groups: 'lora_C' is found in no weight's name.*called like lora_A"):
        optimizer(groups={"lora_C": ParameterGroup()}).build(scalars("lora_A"))
    with pytest.raises(ValueError, match="'_A' is found in no weight's name, or only in names that an earlier group"):
        optimizer(groups={"lora": ParameterGroup(), "_A": ParameterGroup()}).build(scalars("lora_A"))
    with pytest.raises(ValueError, match=r"groups: '\(' is no regular expression"):
        optimizer(groups={"(": ParameterGroup()})
    with pytest.raises(ValueError, match="lr is -1"):
        ParameterGroup(lr=-1)

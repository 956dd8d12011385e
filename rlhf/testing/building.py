"""Contracts of what is built: controllers, averages, schedules, optimisers, value heads."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rlhf.interfaces import KLController, LiveAverage, LiveController, Optimizer, Schedule, ValueHead, WeightAverage
from rlhf.testing.contract import Contract


def _resumed(contract: Contract, live: Any, anew: Any) -> Any:
    """A new live object in the state of another, by way of a file."""
    state = contract.answered(lambda: pickle.loads(pickle.dumps(live.state_dict())), "its state must go into a file")
    contract.answered(lambda: anew.load_state_dict(copy.deepcopy(state)), "its state must be loaded again")
    return anew


def check_controller(contract: Contract, controller: KLController) -> None:
    """See :func:`rlhf.testing.check_component`."""
    observed = [0.0, 1e-6, 3.0, 30.0, 1e4, -0.5, 6.0, 6.0, 0.1, 12.0]
    live = controller.build(iterations=len(observed))

    def coefficients(live: LiveController, some: Sequence[float]) -> list[float]:
        found = []
        for number, value in enumerate(some):
            coef = live.coef
            contract.holds(
                math.isfinite(coef) and coef >= 0,
                f"coef is {coef:g} after KLs of {some[:number]}; must be finite and not negative",
            )
            found.append(coef)
            live.update(value, 64)
        return [*found, live.coef]

    coefficients(live, observed[:4])
    resumed = _resumed(contract, live, controller.build(iterations=len(observed)))
    expected, found = coefficients(live, observed[4:]), coefficients(resumed, observed[4:])
    contract.holds(found == expected, f"state: continued from its state, coef goes {found}, not {expected}")
    coefficients(live, [0.0])


def _weights(step: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    random = torch.Generator().manual_seed(step)
    return [torch.randn(shape, generator=random).to(dtype) for shape in ((6,), (2, 3), (0,))]


def check_average(contract: Contract, average: WeightAverage) -> None:
    """See :func:`rlhf.testing.check_component`."""
    start = _weights(0)
    live = average.build(start)
    _check_shards(contract, live, start)
    for step in range(1, 5):
        weights = _weights(step)
        with contract.untouched(master=weights):
            live.update(weights)
        before = [shard.clone() for shard in live.shards]
        for weight in weights:
            weight.fill_(99.0)  # the engine goes on writing to its masters
        for shard, kept in zip(live.shards, before, strict=True):
            contract.same(shard, kept, "its shards must be copies, but writing to the weights afterwards moves them")
    _check_shards(contract, live, start)
    resumed = _resumed(contract, live, average.build([torch.full_like(weight, 7.0) for weight in start]))
    parted = average.build([torch.cat([weight.flatten() for weight in start])])  # another engine's shards
    for step in range(1, 5):
        parted.update([torch.cat([weight.flatten() for weight in _weights(step)])])
    for step in range(5, 9):
        for one in (live, resumed):
            one.update(_weights(step))
        parted.update([torch.cat([weight.flatten() for weight in _weights(step)])])
    for shard, other in zip(live.shards, resumed.shards, strict=True):
        contract.same(other, shard, "state: continued from its state, the average")
    whole = torch.cat([shard.flatten() for shard in live.shards])
    contract.same(parted.shards[0], whole, "weights parted otherwise must give the same, the average of the whole")
    halves = average.build(_weights(0, torch.bfloat16))
    halves.update(_weights(1, torch.bfloat16))
    _check_shards(contract, halves, start)


def _check_shards(contract: Contract, live: LiveAverage, weights: Sequence[Tensor]) -> None:
    shapes, wanted = [list(shard.shape) for shard in live.shards], [list(weight.shape) for weight in weights]
    contract.holds(shapes == wanted, f"shape: its shards are {shapes}, the weights {wanted}")
    kinds = {shard.dtype for shard in live.shards}
    contract.holds(kinds == {torch.float32}, f"its shards must be fp32, they are {', '.join(map(str, kinds))}")
    for shard in live.shards:
        contract.finite(shard, "the average of")


def check_schedule(contract: Contract, schedule: Schedule) -> None:
    """See :func:`rlhf.testing.check_component`."""
    for total in (1, 2, 10, 1000):
        for step in range(total + 1):
            factor = contract.answered(
                lambda step=step, total=total: float(schedule.factor(step, total)),
                f"it must have a factor at step {step} of {total}",
            )
            contract.holds(
                math.isfinite(factor) and factor >= 0,
                f"the factor at step {step} of {total} is {factor:g}; must be finite and not negative",
            )


class _Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(8, 4)
        self.block = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)

    def forward(self, ids: Tensor) -> Tensor:
        return self.norm(self.block(self.embedding(ids))).square().sum() + self.norm.weight.sum()


def check_optimizer(contract: Contract, optimizer: Optimizer) -> None:
    """See :func:`rlhf.testing.check_component`."""
    model = _Small()
    live = optimizer.build(model.named_parameters())
    held = [id(parameter) for group in live.param_groups for parameter in group["params"]]
    for name, parameter in model.named_parameters():
        contract.holds(held.count(id(parameter)) == 1, f"{name} is in {held.count(id(parameter))} groups, not in one")
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    _steps(model, live, 1)
    for name, parameter in model.named_parameters():
        contract.finite(parameter.detach(), f"after a step, {name}:")
        contract.holds(not torch.equal(parameter, before[name]), f"a step does not move {name} (lr {optimizer.lr:g})")
    other = _Small()
    other.load_state_dict(model.state_dict())
    resumed = _resumed(contract, live, optimizer.build(other.named_parameters()))
    assert resumed is not live
    for one, steps in ((model, live), (other, resumed)):
        _steps(one, steps, 3)
    for (name, parameter), found in zip(model.named_parameters(), other.parameters(), strict=True):
        contract.holds(torch.equal(parameter, found), f"state: continued from its state, {name} goes elsewhere")


def _steps(model: nn.Module, live: torch.optim.Optimizer, number: int) -> None:
    for step in range(number):
        live.zero_grad()
        model(torch.arange(8) + 0 * step).backward()
        live.step()


def check_head(contract: Contract, head: ValueHead) -> None:
    """See :func:`rlhf.testing.check_component`."""
    torch.manual_seed(0)
    module = head.build(16)
    hidden = torch.randn(2, 3, 16)
    for dtype in (torch.float32, torch.bfloat16):
        found = contract.answered(
            lambda dtype=dtype: module(hidden.to(dtype)), f"it must read hidden states in {dtype}"
        )
        contract.shaped(found, (2, 3), f"the value of {dtype} hidden states [2, 3, 16]")
        contract.holds(
            found.dtype == torch.float32, f"values of {dtype} hidden states must be fp32, they are {found.dtype}"
        )
        contract.finite(found.detach(), "the value of")
    contract.holds(bool(list(module.parameters())), "it has no weights to learn with")
    for name, parameter in module.named_parameters():
        contract.holds(parameter.dtype == torch.float32, f"{name} must be kept in fp32, it is {parameter.dtype}")
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(3):  # one step is not enough where the last layer starts at 0
        optimizer.zero_grad()
        (module(hidden) - torch.arange(6.0).reshape(2, 3)).square().mean().backward()
        optimizer.step()
    for name, parameter in module.named_parameters():
        learns = parameter.grad is not None and bool(parameter.grad.any())
        contract.holds(learns, f"gradient: none reaches {name}")
        contract.finite(parameter.detach(), f"{name}:")

"""What is built and has a state: controllers, averages, schedules, optimisers and heads."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from faulty.parts import component
from rlhf.algorithms.averaging import _LiveMean
from rlhf.algorithms.kl import Adaptive, Fixed, _AdaptiveCoefficient, _FixedCoefficient
from rlhf.interfaces import LiveAverage, Optimizer, Schedule, ValueHead, WeightAverage


@component
class _Forgetful(Adaptive):
    """Loses its coefficient."""

    def build(self, *, iterations: int) -> Any:
        live = _AdaptiveCoefficient(self)
        live.load_state_dict = lambda state: None
        return live


class _LiveNegative(_FixedCoefficient):
    def update(self, observed: float, samples: int) -> None:
        self.coef += 0.1 * (observed - 1.0)


@component
class _Negative(Fixed):
    """Falls below 0."""

    def build(self, *, iterations: int) -> Any:
        return _LiveNegative(self.coef)


class _LiveUnbounded(_FixedCoefficient):
    def update(self, observed: float, samples: int) -> None:
        self.coef = self.coef / observed if observed else float("inf")


@component
class _Unbounded(Fixed):
    """Divides by what it observes."""

    def build(self, *, iterations: int) -> Any:
        return _LiveUnbounded(self.coef)


class _Sharing(_LiveMean):
    def __init__(self, settings: Any, master: Any) -> None:
        super().__init__(settings, master)
        self.shards = list(master)

    def update(self, master: Any) -> None:
        self.shards = list(master)


class _Counting(_LiveMean):
    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict({**state, "updates": 0})


class _Norming(_LiveMean):
    def update(self, master: Any) -> None:
        super().update([weight / weight.norm().clamp(min=1e-6) for weight in master])


class _Mean(WeightAverage):
    """The mean of all weights so far."""

    live: type[_LiveMean] = _LiveMean

    def share(self, step: int) -> float:
        return 1 / step

    def build(self, master: Any) -> LiveAverage:
        return self.live(self, master)


@component
class _SharingMean(_Mean):
    """Keeps the weights themselves."""

    live = _Sharing


@component
class _ForgetfulMean(_Mean):
    """Forgets how many updates there were."""

    live = _Counting


@component
class _NormingMean(_Mean):
    """Reads a norm off a shard, which is another for every engine."""

    live = _Norming


class _Half(_LiveMean):
    def __init__(self, settings: Any, master: Any) -> None:
        super().__init__(settings, master)
        self.shards = [shard.to(weight.dtype) for shard, weight in zip(self.shards, master, strict=True)]

    def update(self, master: Any) -> None:
        for shard, weight in zip(self.shards, master, strict=True):
            shard.lerp_(weight, 0.5)


@component
class _HalfMean(_Mean):
    """Averages in the weights' own precision."""

    live = _Half


@component
class _NoEnd(Schedule):
    """Divides by what is left."""

    def factor(self, step: int, total: int) -> float:
        return 1 / (total - step)


@component
class _BelowZero(Schedule):
    """Goes on falling."""

    def factor(self, step: int, total: int) -> float:
        return 1 - 2 * step / total


@component
class _Still(Optimizer):
    """Never moves a weight.

    Args:
        lr: Peak learning rate.
    """

    lr: float = 0.0

    def build(self, parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD([weight for _, weight in parameters], lr=self.lr)


@component
class _MatricesOnly(_Still):
    """Leaves out what has one dimension."""

    lr: float = 0.1

    def build(self, parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD([weight for _, weight in parameters if weight.ndim > 1], lr=self.lr)


class _AmnesicSGD(torch.optim.SGD):
    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "state": {}}


@component
class _Amnesic(_Still):
    """Does not save its momentum."""

    lr: float = 0.1

    def build(self, parameters: Any) -> torch.optim.Optimizer:
        return _AmnesicSGD([weight for _, weight in parameters], lr=self.lr, momentum=0.9)


class _Head(nn.Module):
    def __init__(self, width: int, *, squeeze: bool, fp32: bool, idle: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(width, 1)
        self.idle = nn.Linear(width, 1) if idle else None
        self.squeeze, self.fp32 = squeeze, fp32

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        found = self.layer(hidden.float())
        found = found if self.fp32 else found.to(hidden.dtype)
        return found.squeeze(-1) if self.squeeze else found


@component
class _Unsqueezed(ValueHead):
    """Keeps the last dimension."""

    def build(self, width: int) -> nn.Module:
        return _Head(width, squeeze=False, fp32=True, idle=False)


@component
class _HalfHead(ValueHead):
    """Answers in the trunk's precision."""

    def build(self, width: int) -> nn.Module:
        return _Head(width, squeeze=True, fp32=False, idle=False)


@component
class _IdleHead(ValueHead):
    """Has weights that nothing reaches."""

    def build(self, width: int) -> nn.Module:
        return _Head(width, squeeze=True, fp32=True, idle=True)


CAUGHT: list[tuple[type, str]] = [
    (_Forgetful, r"state: continued from its state, coef goes \[0.1, .*\], not \["),
    (_Negative, r"coef is -0.05 after KLs of \[0.0\]; must be finite and not negative"),
    (_Unbounded, r"coef is inf after KLs of \[0.0\]; must be finite"),
    (_SharingMean, "its shards must be copies, but writing to the weights afterwards moves them: number 0 is 99, not"),
    (_ForgetfulMean, "state: continued from its state, the average: number 0 is"),
    (_NormingMean, "weights parted otherwise must give the same, the average of the whole: number 0 is"),
    (_HalfMean, "its shards must be fp32, they are torch.bfloat16"),
    (_NoEnd, "it must have a factor at step 1 of 1, but it raised ZeroDivisionError"),
    (_BelowZero, "the factor at step 1 of 1 is -1; must be finite and not negative"),
    (_Still, r"a step does not move embedding.weight \(lr 0\)"),
    (_MatricesOnly, "block.bias is in 0 groups, not in one"),
    (_Amnesic, "state: continued from its state, embedding.weight goes elsewhere"),
    (_Unsqueezed, r"shape: the value of .* must be a tensor \[2, 3\] of floats, it is \[2, 3, 1\]"),
    (_HalfHead, "values of torch.bfloat16 hidden states must be fp32, they are torch.bfloat16"),
    (_IdleHead, "gradient: none reaches idle.weight"),
]

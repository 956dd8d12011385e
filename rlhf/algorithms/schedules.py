"""Learning rate over a stage, as a factor of the peak."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rlhf.errors import UserError
from rlhf.interfaces import Schedule


def _check(warmup: int, floor: float) -> None:
    if warmup < 0:
        raise UserError(f"warmup is {warmup}; must be a number of steps ≥ 0")
    if not 0 <= floor <= 1:
        raise UserError(f"floor is {floor}; must be a factor in [0, 1]")


def _progress(step: int, total: int, warmup: int) -> float:
    """Share of the steps after warm-up that is over, in [0, 1]."""
    return min(max(step - warmup, 0) / max(total - warmup, 1), 1.0)


@dataclass(frozen=True, kw_only=True)
class Constant(Schedule):
    """The peak throughout, after a linear warm-up.

    Args:
        warmup: Steps over which the rate rises from 0.
    """

    warmup: int = 0

    def __post_init__(self) -> None:
        _check(self.warmup, 0.0)

    def factor(self, step: int, total: int) -> float:
        return step / self.warmup if step < self.warmup else 1.0


@dataclass(frozen=True, kw_only=True)
class LinearDecay(Schedule):
    """Linear decay to a floor, after a linear warm-up.

    Args:
        warmup: Steps over which the rate rises from 0.
        floor: Factor reached when the last step is done.
    """

    warmup: int = 0
    floor: float = 0.0

    def __post_init__(self) -> None:
        _check(self.warmup, self.floor)

    def factor(self, step: int, total: int) -> float:
        if step < self.warmup:
            return step / self.warmup
        return 1.0 - (1.0 - self.floor) * _progress(step, total, self.warmup)


@dataclass(frozen=True, kw_only=True)
class CosineDecay(Schedule):
    """Cosine decay to a floor, after a linear warm-up.

    Args:
        warmup: Steps over which the rate rises from 0.
        floor: Factor reached when the last step is done.
    """

    warmup: int = 0
    floor: float = 0.0

    def __post_init__(self) -> None:
        _check(self.warmup, self.floor)

    def factor(self, step: int, total: int) -> float:
        if step < self.warmup:
            return step / self.warmup
        cosine = 0.5 * (1.0 + math.cos(math.pi * _progress(step, total, self.warmup)))
        return self.floor + (1.0 - self.floor) * cosine

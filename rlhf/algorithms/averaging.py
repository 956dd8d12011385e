"""Running averages of the policy's weights."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlhf.errors import UserError, require
from rlhf.interfaces import LiveAverage, WeightAverage


class _LiveMean(LiveAverage):
    """w̄ ← w̄ + s_n (w − w̄): element by element, so it is the same however an engine shards the weights."""

    def __init__(self, settings: _ByShares, master: Sequence[Tensor]) -> None:
        self.settings = settings
        self.updates = 0
        self.shards = [shard.detach().float().clone() for shard in master]

    @torch.no_grad()
    def update(self, master: Sequence[Tensor]) -> None:
        share = self.settings.share(self.updates + 1)
        for average, weight in zip(self.shards, master, strict=True) if share else ():
            average.lerp_(weight.float(), share)
        self.updates += 1

    def state_dict(self) -> dict[str, Any]:
        return {"updates": self.updates, "shards": self.shards}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.updates = state["updates"]
        for average, saved in zip(self.shards, state["shards"], strict=True):
            average.copy_(saved)


class _ByShares(WeightAverage):
    """An average of which it is known beforehand how much the weights after each step count."""

    @abstractmethod
    def share(self, step: int) -> float:
        """How far the average goes towards the weights after optimiser step ``step``, counted from 1: 0 to 1."""

    def build(self, master: Sequence[Tensor]) -> LiveAverage:
        return _LiveMean(self, master)


@dataclass(frozen=True, kw_only=True)
class EMA(_ByShares):
    """Exponential moving average in fp32, one update per optimiser step.

    w̄ ← d w̄ + (1 − d) w, taken from the fp32 master weights.   Source: arXiv:2203.02155, appendix C.

    Args:
        decay: d, per optimiser step. A run of a few hundred steps wants about 0.9 to 0.99.
        warmup: Use min(d, (1 + n) / (10 + n)) at update n, so that the start is forgotten sooner.
    """

    decay: float = 0.992
    warmup: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.decay <= 1:
            raise UserError(f"decay is {self.decay}; must be in [0, 1]")

    def decay_at(self, updates: int) -> float:
        """The decay of update number ``updates``, counted from 0."""
        return min(self.decay, (1 + updates) / (10 + updates)) if self.warmup else self.decay

    def share(self, step: int) -> float:
        return 1.0 - self.decay_at(step - 1)


@dataclass(frozen=True, kw_only=True)
class SWA(_ByShares):
    """Stochastic weight averaging: the equal mean of the weights at regular steps, in fp32.

    w̄ = (w_s + w_{s+c} + … + w_{s+kc}) / (k + 1) after optimiser step n, s + kc ≤ n the last one that counts. Step 0 is
    the start, so ``start: 0`` averages over the whole run, its beginning included, as published. Before ``start`` it is
    the weights themselves, and in a run that ends there its last ones.   Source: arXiv:1803.05407, algorithm 1.

    Args:
        start: s, the optimiser step whose weights are the first to count.
        every: c, optimiser steps from one to the next.
    """

    start: int = 0
    every: int = 1

    def __post_init__(self) -> None:
        require(at_least=0, start=self.start)
        require(at_least=1, every=self.every)

    def check(self, *, steps: int) -> str | None:
        if self.start < steps:
            return None
        return f"start: {self.start}, but the policy makes {steps} optimiser steps, so nothing is averaged; lower it"

    def share(self, step: int) -> float:
        if step <= self.start:
            return 1.0
        counted, rest = divmod(step - self.start, self.every)
        return 0.0 if rest else 1.0 / (counted + 1)


@dataclass(frozen=True, kw_only=True)
class Polyak(_ByShares):
    """Weights that follow the policy's in steps of their own, in fp32: soft and hard updates.

    w̄ ← (1 − τ) w̄ + τ w every ``every`` optimiser steps. τ = 1 is a hard copy; at every step it is ``EMA`` with decay
    1 − τ. Source: arXiv:2404.09656, for a reference that follows the policy: its soft update (whose weight α is τ here)
    and its hard update (τ = 1; its period is ``every``).

    Args:
        tau: τ, above 0 and at most 1.
        every: Optimiser steps between updates.
    """

    tau: float = 0.01
    every: int = 1

    def __post_init__(self) -> None:
        require(above=0, at_most=1, tau=self.tau)
        require(at_least=1, every=self.every)

    def share(self, step: int) -> float:
        return 0.0 if step % self.every else self.tau

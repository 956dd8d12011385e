"""Running averages of the policy's weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlhf.errors import UserError
from rlhf.interfaces import LiveAverage, WeightAverage


class _LiveEMA(LiveAverage):
    def __init__(self, settings: EMA, master: Sequence[Tensor]) -> None:
        self.settings = settings
        self.updates = 0
        self.shards = [shard.detach().float().clone() for shard in master]

    @torch.no_grad()
    def update(self, master: Sequence[Tensor]) -> None:
        decay = self.settings.decay_at(self.updates)
        for average, weight in zip(self.shards, master, strict=True):
            average.lerp_(weight.float(), 1.0 - decay)
        self.updates += 1

    def state_dict(self) -> dict[str, Any]:
        return {"updates": self.updates, "shards": self.shards}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.updates = state["updates"]
        for average, saved in zip(self.shards, state["shards"], strict=True):
            average.copy_(saved)


@dataclass(frozen=True, kw_only=True)
class EMA(WeightAverage):
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

    def build(self, master: Sequence[Tensor]) -> LiveAverage:
        return _LiveEMA(self, master)

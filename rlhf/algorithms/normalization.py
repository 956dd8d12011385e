"""Shift and scale of reward scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor


class LiveNormalization:
    """Mean and deviation that scores are measured in; set once, kept in checkpoints."""

    def __init__(self) -> None:
        self.mean = 0.0
        self.std = 1.0

    def set(self, scores: Tensor) -> None:
        """Takes mean and sample deviation from scores [B]."""
        values = scores.double()
        if not float(values.std()) > 0:
            raise ValueError(f"all {len(values)} responses of the start have the score {float(values[0])}: nothing to scale by")
        self.mean, self.std = float(values.mean()), float(values.std())

    def __call__(self, scores: Tensor) -> Tensor:
        return (scores - self.mean) / self.std

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean, "std": self.std}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.mean, self.std = state["mean"], state["std"]


@dataclass(frozen=True, kw_only=True)
class ScoreNormalization:
    """Measures scores in deviations of the starting policy's: (score − mean) / std.

    Mean and deviation are those of ``samples`` responses drawn before the first update, and stay fixed.
    Source: arXiv:1909.08593, section 2.2.

    Args:
        samples: Responses to measure by.
    """

    samples: int = 256

    def __post_init__(self) -> None:
        if self.samples < 2:
            raise ValueError(f"samples is {self.samples}; must be at least 2")

    def build(self) -> LiveNormalization:
        """Not yet measured: mean 0, deviation 1."""
        return LiveNormalization()

"""Shift and scale of reward scores, which may be given per response [B] or per token [B, T]."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlhf.algorithms.functional.masking import last_index
from rlhf.errors import UserError


def per_response(scores: Tensor, mask: Tensor) -> Tensor:
    """[B] score of each response: scores per token are added up."""
    return scores if scores.ndim == 1 else scores.masked_fill(~mask, 0.0).sum(1)


def take_off(scores: Tensor, amount: Tensor, mask: Tensor) -> Tensor:
    """Takes an amount [B] off each response's score; of scores per token, off the last token's."""
    if scores.ndim == 1:
        return scores - amount
    rows, last = torch.arange(len(mask), device=mask.device), last_index(mask)
    return scores.index_put((rows, last), scores[rows, last] - amount.to(scores.dtype))


class LiveNormalization:
    """Mean and deviation that scores are measured in; measured once, kept in checkpoints."""

    def __init__(self, samples: int) -> None:
        self.samples = samples
        self.mean = 0.0
        self.std = 1.0
        self.measured = False

    def measure(self, scores: Tensor) -> None:
        """Takes mean and sample deviation from scores [B]."""
        values = scores.double()
        if not float(values.std()) > 0:
            raise UserError(
                f"score_normalization: all {len(values)} responses of the start have the score {float(values[0])}, so "
                "there is no deviation to divide by; set it to null, or look at the reward"
            )
        self.mean, self.std, self.measured = float(values.mean()), float(values.std()), True

    def __call__(self, scores: Tensor, mask: Tensor) -> Tensor:
        """(score − mean) / std of each response; the shape stays."""
        return take_off(scores, torch.full((len(mask),), self.mean, device=scores.device), mask) / self.std

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean, "std": self.std, "measured": self.measured}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.mean, self.std, self.measured = state["mean"], state["std"], state["measured"]


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
            raise UserError(f"samples: {self.samples}; must be at least 2")

    def build(self) -> LiveNormalization:
        """Not yet measured: mean 0, deviation 1."""
        return LiveNormalization(self.samples)

"""Shift and scale of reward scores, which may be given per response [B] or per token [B, T]."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlhf.algorithms.functional.rewards import add_at_end
from rlhf.algorithms.functional.statistics import Moments, merge_moments
from rlhf.errors import UserError, require


class LiveNormalization:
    """Mean and deviation that scores are measured in, the same on every rank; kept in checkpoints."""

    def __init__(self, settings: ScoreNormalization) -> None:
        self.samples = settings.samples
        self.running = settings.running
        self.moments = Moments(0.0, 0.0, 0.0)

    @property
    def measured(self) -> bool:
        """Whether there is something to measure by."""
        return self.moments.number > 0

    @property
    def mean(self) -> float:
        """The score that becomes 0."""
        return self.moments.mean

    @property
    def std(self) -> float:
        """Sample deviation: the difference of scores that becomes 1."""
        return math.sqrt(self.moments.square_sum / (self.moments.number - 1)) if self.measured else 1.0

    def measure(self, scores: Tensor) -> None:
        """Starts with scores [B] of the policy that nothing has moved yet.

        Raises:
            UserError: all are equal.
        """
        self._include(scores)
        if not self.std > 0:
            raise UserError(
                f"score_normalization: all {self.moments.number:g} responses of the start have the score "
                f"{self.mean:g}, so there is no deviation to divide by; set it to null, or look at the reward"
            )

    def observe(self, scores: Tensor) -> None:
        """Takes in an iteration's scores [B] after they were used, where the statistics are running ones."""
        if self.running:
            self._include(scores)

    def _include(self, scores: Tensor) -> None:
        values = scores.double()
        mean = float(values.mean())
        moments = Moments(float(values.numel()), mean, float((values - mean).square().sum()))
        self.moments = merge_moments(self.moments, moments)

    def __call__(self, scores: Tensor, mask: Tensor) -> Tensor:
        """(score − mean) / std of each response; the shape stays."""
        shift = torch.full((len(mask),), -self.mean, dtype=scores.dtype, device=scores.device)
        return add_at_end(scores, shift, mask) / self.std

    def state_dict(self) -> dict[str, Any]:
        return dict(self.moments._asdict())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.moments = Moments(**state)


@dataclass(frozen=True, kw_only=True)
class ScoreNormalization:
    """Measures scores in deviations of the starting policy's, or of all policies' so far: (score − mean) / std.

    Mean and deviation are first those of ``samples`` responses drawn before the first update (arXiv:1909.08593, section
    2.2). Fixed, a normalised score means the same in every iteration. Running, each iteration's raw scores join them
    after its update, so an iteration is measured by what came before it and no response enters its own baseline.

    Args:
        samples: Responses to measure by before the first update.
        running: Whether the scores of every iteration join the statistics.
    """

    samples: int = 256
    running: bool = False

    def __post_init__(self) -> None:
        require(at_least=2, samples=self.samples)

    def build(self) -> LiveNormalization:
        """Not yet measured: mean 0, deviation 1."""
        return LiveNormalization(self)

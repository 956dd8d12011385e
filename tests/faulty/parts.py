"""What faulty components are made of, and functions that are none."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch

from rlhf.algorithms.functional.advantages import returns
from rlhf.interfaces import AdvantageEstimator
from rlhf.types import Advantages, Scored

component = dataclass(frozen=True, kw_only=True)
_COUNT = itertools.count()


def rows():
    """What a ``Generator`` yields."""
    return ({"prompt": f"p{n}", "response": "r"} for n in range(20))


def lengths(prompts, responses):
    """Characters of each response."""
    return [float(len(response)) for response in responses]


def step_lengths(prompts, steps):
    """Characters of each step."""
    return [[float(len(step)) for step in response] for response in steps]


class _Estimator(AdvantageEstimator):
    """Returns without a baseline."""

    def __call__(self, scored: Scored) -> Advantages:
        return Advantages(self.estimate(scored), None)

    def estimate(self, scored: Scored) -> torch.Tensor:
        return returns(scored.rewards, scored.mask, gamma=1.0)


@component
class _Good(_Estimator):
    """Clipped returns.

    Args:
        limit: Bound of an advantage.
    """

    limit: float = 3.0

    def estimate(self, scored: Scored) -> torch.Tensor:
        return super().estimate(scored).clamp(-self.limit, self.limit)

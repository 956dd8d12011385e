"""How figures are summed up; imported from ``rlhf.types``."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Tally:
    """Named sums, counts and maxima, so that a figure is the mean over all real tokens whatever the cut.

    Means are kept as (sum, count), so merging micro-batches never averages averages.
    """

    def __init__(self) -> None:
        self.means: dict[str, tuple[float, float]] = {}
        self.maxima: dict[str, float] = {}
        self.sums: dict[str, float] = {}

    def mean(self, name: str, values: Tensor | Sequence[float] | float, mask: Tensor | None = None) -> None:
        """Adds values to a mean; where a mask is given only its True slots count."""
        tensor = torch.as_tensor(values, dtype=torch.float64).detach()
        if mask is not None:
            tensor = tensor[mask]
        total, count = self.means.get(name, (0.0, 0.0))
        self.means[name] = (total + float(tensor.sum()), count + tensor.numel())

    def ratio(self, name: str, numerator: float, denominator: float) -> None:
        """Adds to a mean whose sum and count are already known."""
        total, count = self.means.get(name, (0.0, 0.0))
        self.means[name] = (total + float(numerator), count + float(denominator))

    def sum(self, name: str, value: float) -> None:
        """Adds to a total."""
        self.sums[name] = self.sums.get(name, 0.0) + float(value)

    def max(self, name: str, value: float) -> None:
        """Keeps the largest value."""
        self.maxima[name] = max(self.maxima.get(name, float("-inf")), float(value))

    def merge(self, other: Tally) -> None:
        """Adds another tally's content to this one."""
        for name, (total, count) in other.means.items():
            self.ratio(name, total, count)
        for name, value in other.sums.items():
            self.sum(name, value)
        for name, value in other.maxima.items():
            self.max(name, value)

    def compute(self) -> dict[str, float]:
        """The figures, by name. A mean over nothing is left out."""
        means = {name: total / count for name, (total, count) in self.means.items() if count}
        return {**means, **self.sums, **self.maxima}

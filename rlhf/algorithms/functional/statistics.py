"""Measures of how good an estimate is, and statistics of a stream of numbers."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from rlhf.algorithms.functional._shared import check_mask, moments, to_float


def explained_variance(values: Tensor, returns: Tensor, mask: Tensor) -> Tensor:
    """Share of the returns' variance that the critic's values account for.

    EV = 1 − Var(returns − values) / Var(returns). 1 is a perfect critic, 0 one no better than a constant, negative
    a harmful one. Equal returns (or none) leave nothing to explain: NaN.

    Args:
        values: [B, T] (or any shape) estimates.
        returns: Same shape, what was estimated, in the same units.
        mask: Same shape, bool.

    Returns:
        A scalar, at most 1, or NaN.

    Raises:
        ValueError: shapes differ or the mask is not bool.
    """
    check_mask(mask, values=values, returns=returns)
    values, returns = to_float(values, returns)
    unexplained = moments(returns - values, mask).square_sum
    total = moments(returns, mask).square_sum
    return (1 - unexplained / total).masked_fill(total == 0, float("nan"))


class Moments(NamedTuple):
    """What is kept of a stream of numbers.

    Attributes:
        number: How many.
        mean: Of them.
        square_sum: Σ (x − mean)²; divided by number − 1 it is the sample variance.
    """

    number: float
    mean: float
    square_sum: float


def merge_moments(a: Moments, b: Moments) -> Moments:
    """Statistics of two sets of numbers together, from those of each.

    n = n_a + n_b,   δ = mean_b − mean_a,   mean = mean_a + δ n_b / n,   M = M_a + M_b + δ² n_a n_b / n.
    No large sums are subtracted, so digits survive where the mean is far from 0. Nothing but empty sets: zeros.
    Source: Chan, Golub & LeVeque 1983, doi:10.1080/00031305.1983.10483115, eq. 2.1.

    Args:
        a: Of one set, in any units.
        b: Of the other, in the same units.
    """
    if not b.number:
        return a
    number = a.number + b.number
    gap = b.mean - a.mean
    return Moments(
        number, a.mean + gap * b.number / number, a.square_sum + b.square_sum + gap * gap * a.number * b.number / number
    )

"""Measures of how good an estimate is."""

from __future__ import annotations

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

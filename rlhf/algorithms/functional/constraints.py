"""Constraints on a policy by Lagrange multipliers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from rlhf.algorithms.functional._shared import check_dims, check_same_shape, to_float

SMALLEST = 1e-6
"""Lower bound of a multiplier."""


def lagrangian(rewards: Tensor, excesses: Sequence[Tensor], multipliers: Sequence[float]) -> Tensor:
    """What a response is worth under constraints on its costs.

    (R − Σ_i λ_i (C_i − limit_i)) / (1 + Σ_i λ_i): the divisor keeps the size of what is maximised, whatever the
    multipliers are.
    Source: arXiv:2310.12773, appendix B (there of the advantages).

    Args:
        rewards: [B] in reward units.
        excesses: [B] of each constraint, its cost above the limit.
        multipliers: λ ≥ 0 of each.

    Returns:
        [B].

    Raises:
        ValueError: shapes or numbers differ, or a multiplier is negative.
    """
    check_dims("B", rewards=rewards)
    if len(excesses) != len(multipliers):
        raise ValueError(f"{len(excesses)} costs need as many multipliers, not {len(multipliers)}.")
    if any(not value >= 0 for value in multipliers):
        raise ValueError(f"A negative multiplier would reward a cost: {list(multipliers)}.")
    (total,) = to_float(rewards)
    for excess, multiplier in zip(excesses, multipliers, strict=True):
        check_same_shape(rewards=rewards, excess=excess)
        total = total - multiplier * excess.to(total.dtype)
    return total / (1.0 + math.fsum(multipliers))


def multiplier_update(multiplier: float, excess: float, *, lr: float, maximum: float) -> float:
    """Next Lagrange multiplier of a constraint.

    λ' = min(λ exp(lr · λ · excess), maximum): it grows while the mean cost is above the limit, and never falls under
    1e-6, from where it could hardly come back.
    Source: arXiv:2310.12773, eq. 31 (ln λ' = ln λ + α λ J_C).

    Args:
        multiplier: λ now, > 0.
        excess: Mean cost above the limit.
        lr: α, > 0.
        maximum: Upper bound of λ.

    Raises:
        ValueError: a setting is out of range, or the excess is NaN.
    """
    if not (multiplier > 0 and lr > 0 and maximum > 0):
        raise ValueError(f"Need multiplier, lr, maximum > 0: {multiplier=}, {lr=}, {maximum=}.")
    if math.isnan(excess):
        raise ValueError("The mean cost is NaN: the multiplier cannot follow it.")
    step = min(lr * multiplier * excess, 80.0)  # exp of it is finite
    return min(max(multiplier * math.exp(step), SMALLEST), maximum)

"""How many seeds a claim needs, and what the seeds at hand could show."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rlhf.errors import require
from rlhf.grid.statistics.table import Array, check_installed

if TYPE_CHECKING:
    from pandas import DataFrame

MOST = 1000
"""Seeds beyond which nobody would go."""


def power(differences: DataFrame, *, target: float = 0.8, alpha: float = 0.05) -> DataFrame:
    """For each comparison: seeds that an effect as observed would need, and the smallest effect that these can show.

    Of the two-sided paired t test at level α, whose statistic is noncentral t with n − 1 degrees of freedom and
    noncentrality d√n, for a true d = mean / std of the differences. The observed effect is Hedges's g, which few seeds
    know badly: where they have shown nothing, read the smallest effect, not the observed one. ``corrected`` columns
    are at α/m, the level of Holm's first step, for a family of m comparisons.

    Args:
        differences: Of :func:`rlhf.grid.statistics.comparisons.differences`.
        target: Probability of finding the effect.
        alpha: Level of the test.

    Returns:
        A row per comparison: ``metric``, ``variant``, ``baseline``, ``n``, ``effect``, ``power`` (with these seeds, if
        the observed effect is the true one), ``seeds_needed`` and ``seeds_needed_corrected`` (NaN: more than 1,000, or
        not known), ``smallest_effect`` (in deviations of the differences), ``smallest_difference`` and
        ``smallest_difference_corrected`` (in the metric's unit, taking the observed deviation for the true one), and
        ``remark``.
    """
    require(above=0.0, below=1.0, target=target, alpha=alpha)
    check_installed()
    found = differences[["metric", "variant", "baseline", "n", "effect"]].copy()
    columns: dict[str, list[float | str]] = {}
    row: Any
    for row in differences.itertuples():
        level = alpha / row.family
        needed = seeds_needed(row.effect, target=target, alpha=alpha)
        smallest, corrected = (smallest_effect(row.n, target=target, alpha=a) for a in (alpha, level))
        entry = {
            "power": float(t_power(row.effect, np.array([row.n]), alpha=alpha)[0]) if row.n > 1 else math.nan,
            "seeds_needed": needed,
            "seeds_needed_corrected": seeds_needed(row.effect, target=target, alpha=level),
            "smallest_effect": smallest,
            "smallest_difference": smallest * row.std if row.std > 0 else math.nan,
            "smallest_difference_corrected": corrected * row.std if row.std > 0 else math.nan,
            "remark": _remark(row.n, row.effect, needed),
        }
        for name, value in entry.items():
            columns.setdefault(name, []).append(value)
    for name, values in columns.items():
        found[name] = values
    return found


def t_power(effect: float, counts: NDArray[Any], *, alpha: float) -> Array:
    """Probability that the two-sided t test of n paired differences finds a true effect d.

    P(F > t²_{1−α/2, n−1}) with F noncentral, 1 and n − 1 degrees of freedom, noncentrality n d²: the square of the
    noncentral t, whose own functions lose the tails. Equal to statsmodels' ``TTestPower`` where that answers.

    Args:
        effect: d, in deviations of the differences; NaN gives NaN.
        counts: [C] seeds, at least 2.
        alpha: Level of the test.
    """
    from scipy import stats

    if math.isnan(effect):
        return np.full(len(counts), math.nan)
    critical = stats.t.isf(alpha / 2, counts - 1) ** 2
    # not 0, of which scipy 1.17 makes a negative probability
    noncentrality = np.maximum(counts * effect**2, 1e-20)
    return np.asarray(stats.ncf.sf(critical, 1, counts - 1, noncentrality))


def seeds_needed(effect: float, *, target: float = 0.8, alpha: float = 0.05) -> float:
    """Fewest seeds, at least 2, with which an effect is found with the target's probability; NaN beyond 1,000."""
    counts = np.arange(2, MOST + 1)
    enough = t_power(effect, counts, alpha=alpha) >= target
    return float(counts[int(enough.argmax())]) if enough.any() else math.nan


@functools.cache
def smallest_effect(n: int, *, target: float = 0.8, alpha: float = 0.05) -> float:
    """The effect d that n seeds find with the target's probability; NaN below two seeds."""
    from scipy.optimize import brentq

    if n < 2:
        return math.nan

    def lacking(effect: float) -> float:
        return float(t_power(effect, np.array([n]), alpha=alpha)[0]) - target

    above = 1.0
    while lacking(above) < 0:
        above *= 2
    found: Any = brentq(lacking, 0.0, above, xtol=1e-10)
    return float(found)


def _remark(n: int, effect: float, needed: float) -> str:
    if n < 2:
        return "fewer than two seeds: nothing is known of the spread"
    if math.isnan(effect):
        return "the effect is not known, as of two seeds, or of differences without spread"
    if math.isnan(needed):
        return f"an effect so small needs more than {MOST:,} seeds"
    return f"{n} seeds know the size of an effect badly, and so the number needed" if n < 10 else ""

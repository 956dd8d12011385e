"""Means over seeds, and differences paired by seed, with Student-t intervals and Holm's correction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from rlhf.errors import UserError, require
from rlhf.grid.statistics.table import Array, Runs, by_seed, named

if TYPE_CHECKING:
    from pandas import DataFrame

FEW = 3
"""Fewest seeds whose interval says something."""


def per_variant(
    results: DataFrame, metric: str, *, variants: Sequence[str] | None = None, confidence: float = 0.95
) -> DataFrame:
    """Mean over seeds of each variant, with a Student-t interval.

    mean ± t_{1−α/2, n−1} · std / √n,   std² = Σ (y_s − mean)² / (n − 1).

    The intervals of two variants say little of their difference: seeds that move both alike widen each of them, and
    leave the difference alone. See :func:`differences`.

    Args:
        results: One row per run.
        metric: The column, in its own unit.
        variants: Which, in this order; None for all, by name.
        confidence: 1 − α.

    Returns:
        A row per variant: ``variant``, ``n`` runs with a number, ``missing`` (the seeds without, as text), ``mean``,
        ``std``, ``low``, ``high``, ``remark``.
    """
    require(above=0.0, below=1.0, confidence=confidence)
    runs = by_seed(results, [metric], variants)
    columns = list(runs.values[0].T)
    samples = [column[~np.isnan(column)] for column in columns]
    found = t_tests(samples, confidence=confidence)
    found.insert(0, "variant", runs.variants)
    found.insert(2, "missing", [named(np.array(runs.seeds)[np.isnan(column)]) for column in columns])
    return found.drop(columns=["simultaneous_low", "simultaneous_high", "p"])


def differences(
    results: DataFrame,
    metrics: str | Sequence[str],
    baseline: str | None = None,
    *,
    variants: Sequence[str] | None = None,
    confidence: float = 0.95,
    family: Literal["all", "metric"] = "all",
) -> DataFrame:
    """Each variant minus the baseline, paired by seed: d_s = y_s(variant) − y_s(baseline).

    Interval and p are of the paired t test of mean d = 0, which asks of the differences alone that they are about
    normal; what a seed does to both variants cancels, and the two may vary as differently as they like. Only seeds at
    which both have a number count. Where runs are missing because the variant made them fail, the rest flatter it.

    Comparisons of one family are corrected by Holm (1979, Scandinavian Journal of Statistics 6): with all of them
    together, the probability of calling any difference real that is 0 is at most α. Every comparison that was asked
    for counts, one that could not be tested too. The simultaneous intervals are Bonferroni's (1 − α/m each): with
    probability 1 − α all of them hold. Holm's test is a little sharper, so that one of them may include 0 where it
    rejects.

    The effect is Hedges's g of the differences (1981, Journal of Educational Statistics 6):
    g = J(n − 1) · mean(d) / std(d),   J(ν) = Γ(ν/2) / (√(ν/2) Γ((ν − 1)/2)), without bias where d is normal.

    Args:
        results: One row per run.
        metrics: A column, or several, whose comparisons are all reported. Fewer leave more power.
        baseline: What is subtracted; None to compare every pair, the earlier one as the baseline.
        variants: Which are compared, in this order; None for all, by name.
        confidence: 1 − α.
        family: Which comparisons are corrected together: ``all`` of the table, or those of one ``metric``.

    Returns:
        A row per comparison: ``metric``, ``variant``, ``baseline``, ``n`` seeds with both, ``left_out`` (text: seeds
        that lack a partner, and which), ``difference``, ``std`` (of the differences), ``low``, ``high``,
        ``simultaneous_low``, ``simultaneous_high``, ``p``, ``p_holm``, ``differs`` (p_holm ≤ α), ``family`` (m),
        ``effect`` (g), ``above`` (seeds at which the variant is higher), ``remark``. What cannot be had is NaN, and
        the remark says why.
    """
    require(above=0.0, below=1.0, confidence=confidence)
    names = [metrics] if isinstance(metrics, str) else list(metrics)
    if not names or len(set(names)) < len(names):
        raise UserError(f"metrics: {named(names) or 'none'} is named; name at least one column, and each once")
    runs = by_seed(results, names, _with(baseline, variants))
    pairs = _pairs(runs.variants, baseline)
    if not pairs:
        raise UserError("variants: one alone cannot be compared; name at least two")
    together = len(pairs) * (len(names) if family == "all" else 1)
    return _compared(runs, names, pairs, confidence=confidence, together=together)


def _compared(
    runs: Runs, metrics: Sequence[str], pairs: Sequence[tuple[str, str]], *, confidence: float, together: int
) -> DataFrame:
    """The table of :func:`differences`; so many rows in turn are a family."""
    from pandas import DataFrame

    heads, samples = [], []
    for metric, table in zip(metrics, runs.values, strict=True):
        for one, other in pairs:
            values, partners = (table[:, runs.variants.index(variant)] for variant in (one, other))
            both = ~np.isnan(values) & ~np.isnan(partners)
            samples.append(settled((values - partners)[both], values[both], partners[both]))
            heads.append((metric, one, other, _left_out(runs.seeds, values, partners, one, other)))
    tests = t_tests(samples, confidence=confidence, family=together).rename(columns={"mean": "difference"})
    found = DataFrame(heads, columns=["metric", "variant", "baseline", "left_out"]).join(tests)
    families = np.split(found["p"].to_numpy(), len(heads) // together)
    found["p_holm"] = np.concatenate([holm(p) for p in families])
    found["differs"] = found["p_holm"] <= (1 - confidence) * (1 + 1e-12)
    found["family"] = together
    found["effect"] = [hedges(sample) for sample in samples]
    found["above"] = [int((sample > 0).sum()) for sample in samples]
    order = "metric variant baseline n left_out difference std low high simultaneous_low simultaneous_high p p_holm"
    return found.reindex(columns=[*order.split(), "differs", "family", "effect", "above", "remark"])


def settled(contrast: Array, *values: Array) -> Array:
    """[n] differences of some values; made equal where they are so but for rounding, and 0 where they are 0 but for it.

    Two computations that are the same on paper differ in the last bits, and a t test would call that significant.
    """
    if not len(contrast):
        return contrast
    rounding = 1e-12 * max(float(np.abs(one).max()) for one in values)
    contrast = np.where(np.abs(contrast) <= rounding, 0.0, contrast)
    return np.full_like(contrast, contrast[0]) if np.ptp(contrast) <= rounding else contrast


def t_tests(samples: Sequence[Array], *, confidence: float, family: int = 1) -> DataFrame:
    """Student's t test of mean 0 and its intervals, of C samples.

    Args:
        samples: C vectors of values without NaN; those of one length are tested in one call.
        confidence: 1 − α.
        family: m, how many comparisons the simultaneous intervals have to hold with: confidence 1 − α/m.

    Returns:
        A row per sample: ``n``, ``mean``, ``std``, ``low``, ``high``, ``simultaneous_low``, ``simultaneous_high``,
        ``p`` and ``remark``, which says why what is NaN is NaN.
    """
    from pandas import DataFrame
    from scipy import stats

    columns = ("mean", "std", "low", "high", "simultaneous_low", "simultaneous_high", "p")
    found = np.full((len(samples), len(columns)), math.nan)
    by_length: dict[int, list[int]] = {}
    for index, sample in enumerate(samples):
        if len(sample) > 1 and np.ptp(sample) > 0:
            found[index, :2] = sample.mean(), sample.std(ddof=1)
            by_length.setdefault(len(sample), []).append(index)
        elif len(sample):  # all equal, of which a mean may differ in the last bit
            found[index, :2] = sample[0], 0.0 if len(sample) > 1 else math.nan
    for group in by_length.values():
        test: Any = stats.ttest_1samp(np.stack([samples[index] for index in group]), 0.0, axis=1)
        single = test.confidence_interval(confidence)
        wide = test.confidence_interval(1 - (1 - confidence) / family)
        found[group, 2:] = np.stack([single.low, single.high, wide.low, wide.high, test.pvalue], axis=1)
    table = DataFrame(found, columns=list(columns))
    table.insert(0, "n", [len(sample) for sample in samples])
    table["remark"] = [remark(sample) for sample in samples]
    return table


def remark(sample: Array) -> str:
    """What to say of a sample of which little can be known; "" of others."""
    if not len(sample):
        return "no seed has a number to show"
    if len(sample) == 1:
        return f"one seed shows no spread, so there is no interval and no test; run at least {FEW}"
    if np.ptp(sample) == 0:
        equal = "0" if sample[0] == 0 else f"{sample[0]:g}"
        return (
            f"all {len(sample)} seeds give exactly {equal}: there is no spread to judge by, so no interval and no test"
        )
    if len(sample) < FEW:
        far = "the interval reaches 12.7 standard errors to each side (at 95%) and says almost nothing"
        return f"two seeds: {far}; run at least {FEW}"
    return ""


def holm(p: Array) -> Array:
    """[m] p-values corrected by Holm over all of them; one that is NaN counts in the family and stays NaN."""
    from statsmodels.stats.multitest import multipletests

    if not len(p):
        return p
    unknown = np.isnan(p)
    corrected: Any = multipletests(np.where(unknown, 1.0, p), method="holm")[1]
    corrected[unknown] = math.nan
    return corrected


def hedges(sample: Array) -> float:
    """Hedges's g of paired differences [n], see :func:`differences`; NaN of fewer than three, or without spread."""
    from scipy.special import gammaln

    if len(sample) < FEW or np.ptp(sample) == 0:
        return math.nan  # J(1) = 0: from two seeds nothing is known of the size
    free = len(sample) - 1
    shrink = math.exp(gammaln(free / 2) - gammaln((free - 1) / 2)) / math.sqrt(free / 2)
    return float(shrink * sample.mean() / sample.std(ddof=1))


def _with(baseline: str | None, variants: Sequence[str] | None) -> list[str] | None:
    """The variants that are compared, the baseline first."""
    if baseline is None or variants is None:
        return None if variants is None else list(variants)
    return [baseline, *(variant for variant in variants if variant != baseline)]


def _pairs(variants: list[str], baseline: str | None) -> list[tuple[str, str]]:
    """Variant and what is subtracted from it."""
    if baseline is None:
        return [(variants[j], variants[i]) for i in range(len(variants)) for j in range(i + 1, len(variants))]
    if baseline not in variants:
        raise UserError(f"baseline: no variant {baseline!r}; known: {named(variants)}")
    return [(variant, baseline) for variant in variants if variant != baseline]


def _left_out(seeds: Sequence[int], values: Array, partners: Array, one: str, other: str) -> str:
    """The seeds that lack a partner, and whose run has no number."""
    entries = []
    for seed, value, partner in zip(seeds, values, partners, strict=True):
        if lacking := [name for name, number in ((one, value), (other, partner)) if math.isnan(number)]:
            entries.append(f"{seed} (no number of {' and '.join(lacking)})")
    return ", ".join(entries)

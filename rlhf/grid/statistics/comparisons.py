"""Means over seeds, and differences paired by seed, with Student-t intervals and Holm's correction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from rlhf.errors import UserError, require
from rlhf.grid.statistics.table import Array, by_seed, named

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
    found = t_tests(samples, confidence=confidence)[["n", "mean", "std", "low", "high", "remark"]]
    found.insert(0, "variant", runs.variants)
    found.insert(2, "missing", [named(np.array(runs.seeds)[np.isnan(column)]) for column in columns])
    return found


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
    from pandas import DataFrame, concat

    require(above=0.0, below=1.0, confidence=confidence)
    names = [metrics] if isinstance(metrics, str) else list(metrics)
    if not names or len(set(names)) < len(names):
        raise UserError(f"metrics: {named(names) or 'none'} is named; name at least one column, and each once")
    runs = by_seed(results, names, _with(baseline, variants))
    pairs = _pairs(runs.variants, baseline)
    seeds, heads, samples = np.array(runs.seeds), [], []
    for metric, table in zip(names, runs.values, strict=True):
        for one, other in pairs:
            values, partners = (table[:, runs.variants.index(variant)] for variant in (one, other))
            both = ~np.isnan(values) & ~np.isnan(partners)
            samples.append(paired_differences(values[both], partners[both]))
            left_out = _left_out(seeds[~both], values[~both], partners[~both], one, other)
            heads.append((metric, one, other, left_out))
    if not heads:
        raise UserError("variants: one alone cannot be compared; name at least two")
    counts = len(heads) if family == "all" else len(pairs)
    tests = t_tests(samples, confidence=confidence, family=counts).rename(columns={"mean": "difference"})
    found = concat([DataFrame(heads, columns=["metric", "variant", "baseline", "left_out"]), tests], axis=1)
    found["family"] = counts
    found["effect"] = [hedges(sample) for sample in samples]
    found["above"] = [int((sample > 0).sum()) for sample in samples]
    families = np.split(found["p"].to_numpy(), len(heads) // counts)
    found["p_holm"] = np.concatenate([holm(family) for family in families])
    found["differs"] = found["p_holm"] <= (1 - confidence) * (1 + 1e-12)
    order = "metric variant baseline n left_out difference std low high simultaneous_low simultaneous_high p p_holm"
    return found[[*order.split(), "differs", "family", "effect", "above", "remark"]]


def paired_differences(values: Array, partners: Array) -> Array:
    """[n] differences. Those that are equal but for rounding are made equal, and those that are 0 but for it 0.

    Two computations that are the same on paper differ in the last bits, and a t test would call that significant.
    """
    found = values - partners
    if not len(found):
        return found
    rounding = 1e-12 * max(float(np.abs(values).max()), float(np.abs(partners).max()))
    found = np.where(np.abs(found) <= rounding, 0.0, found)
    return np.full_like(found, found[0]) if np.ptp(found) <= rounding else found


def t_tests(samples: Sequence[Array], *, confidence: float, family: int | Array = 1) -> DataFrame:
    """Student's t test of mean 0 and its intervals, of C samples.

    Args:
        samples: C vectors of values without NaN; samples of one length are tested in one call.
        confidence: 1 − α.
        family: m, or [C], how many comparisons the simultaneous interval has to hold with: confidence 1 − α/m.

    Returns:
        A row per sample: ``n``, ``mean``, ``std``, ``low``, ``high``, ``simultaneous_low``, ``simultaneous_high``,
        ``p`` and ``remark``, which says why what is NaN is NaN.
    """
    from pandas import DataFrame
    from scipy import stats

    families = np.broadcast_to(np.asarray(family), len(samples))
    columns = ("mean", "std", "low", "high", "simultaneous_low", "simultaneous_high", "p")
    found = np.full((len(samples), len(columns)), math.nan)
    remarks = [remark(sample) for sample in samples]
    for index, sample in enumerate(samples):
        if len(sample):
            # a mean over equal values can differ from them in the last bit
            found[index, 0] = sample[0] if np.ptp(sample) == 0 else sample.mean()
        if len(sample) > 1:
            found[index, 1] = 0.0 if np.ptp(sample) == 0 else sample.std(ddof=1)
    testable = [(len(sample), int(families[i]), i) for i, sample in enumerate(samples) if len(sample) > 1]
    testable = [entry for entry in testable if found[entry[2], 1] > 0]
    for count, together in sorted({entry[:2] for entry in testable}):
        group = [i for n, m, i in testable if (n, m) == (count, together)]
        test = stats.ttest_1samp(np.stack([samples[i] for i in group]), 0.0, axis=1)
        single = test.confidence_interval(confidence)
        wide = test.confidence_interval(1 - (1 - confidence) / together)
        found[group, 2:] = np.stack([single.low, single.high, wide.low, wide.high, test.pvalue], axis=1)
    table = DataFrame(found, columns=list(columns))
    table.insert(0, "n", [len(sample) for sample in samples])
    table["remark"] = remarks
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
    corrected = multipletests(np.where(np.isnan(p), 1.0, p), method="holm")[1]
    return np.where(np.isnan(p), math.nan, corrected)


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
        lacking = [name for name, number in ((one, value), (other, partner)) if math.isnan(number)]
        entries.append(f"{seed} (no number of {' and '.join(lacking)})")
    return ", ".join(entries)

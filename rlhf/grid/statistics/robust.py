"""Statistics of the whole distribution over runs and tasks, for few runs: Agarwal et al. 2021, arXiv:2108.13264.

Where a metric is taken in several tasks, its values must mean the same in all (normalised scores). Runs are resampled
within each task, never across (stratified bootstrap), by ``scipy.stats.bootstrap``.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from rlhf.errors import UserError, require
from rlhf.grid.statistics.table import Array, by_task, named

if TYPE_CHECKING:
    from pandas import DataFrame

SEED = 0
"""Of the resampling. Every interval begins anew with it, so that it does not depend on what else is in the table."""
FEW = 10
"""Runs of a task below which a bootstrap's interval is too narrow: see benchmarks/calibration.py."""


def interquartile_means(
    results: DataFrame,
    metric: str,
    *,
    task: str | None = None,
    variants: Sequence[str] | None = None,
    confidence: float = 0.95,
    method: Literal["BCa", "percentile"] = "BCa",
    resamples: int = 9999,
) -> DataFrame:
    """Interquartile mean of each variant: the mean of the middle half of all its runs, over all tasks.

    Of R runs the ⌊R/4⌋ lowest and as many highest are left out (``scipy.stats.trim_mean``). Less shaken by one failed
    run than the mean, and closer to it than the median is. With fewer than four runs it is the mean.
    Source: arXiv:2108.13264, on aggregate metrics; BCa: Efron 1987, Journal of the American Statistical Association 82.

    Args:
        results: One row per run and task.
        metric: The column.
        task: The column that says which task a row is of; None for one task.
        variants: Which, in this order; None for all, by name.
        confidence: 1 − α.
        method: Of the interval: bias-corrected and accelerated, or the percentiles that the paper uses.
        resamples: Of the bootstrap.

    Returns:
        A row per variant: ``variant``, ``n`` runs in all, ``iqm``, ``low``, ``high``, ``remark``.
    """
    from pandas import DataFrame

    require(above=0.0, below=1.0, confidence=confidence)
    require(at_least=1, resamples=resamples)
    rows = []
    for variant, tasks in by_task(results, metric, task, variants).items():
        samples = list(tasks.values())
        entry = {"variant": variant, "n": sum(len(sample) for sample in samples)}
        if empty := [name or "it" for name, sample in tasks.items() if not len(sample)]:
            told = f"no run has a number in {named(empty)}" if task else "no run has a number"
            rows.append({**entry, "iqm": math.nan, "low": math.nan, "high": math.nan, "remark": told})
            continue
        low, high, told = _interval(
            samples, _interquartile_mean, confidence=confidence, method=method, resamples=resamples
        )
        if not told and entry["n"] < 4:
            told = "fewer than four runs: nothing is trimmed, it is the mean; the interval is too narrow"
        elif not told and min(map(len, samples)) < FEW and len(samples) == 1:
            told = f"fewer than {FEW} runs: the interval is too narrow"
        iqm = float(_interquartile_mean(*samples))
        rows.append({**entry, "iqm": iqm, "low": low, "high": high, "remark": told})
    return DataFrame(rows)


def performance_profiles(
    results: DataFrame,
    metric: str,
    *,
    task: str | None = None,
    variants: Sequence[str] | None = None,
    thresholds: Sequence[float] | None = None,
    higher_is_better: bool = True,
    confidence: float = 0.95,
    resamples: int = 2000,
) -> DataFrame:
    """Share of a variant's runs that are better than τ, for many τ: the mean over tasks of the share in each.

    F(τ) = 1/M Σ_m 1/N_m Σ_n 1[x_{m,n} > τ];   x < τ where lower is better.
    Source: arXiv:2108.13264, on performance profiles. Intervals are pointwise percentiles: each holds for its τ alone.

    Args:
        results: One row per run and task.
        metric: The column.
        task: The column that says which task a row is of; None for one task.
        variants: Which, in this order; None for all, by name.
        thresholds: τ, rising; None for 101 between the smallest and the largest value of the table.
        higher_is_better: Direction of the metric.
        confidence: 1 − α.
        resamples: Of the bootstrap.

    Returns:
        A row per variant and τ: ``variant``, ``threshold``, ``share``, ``low``, ``high``; NaN for a variant that has no
        run in a task, and bounds NaN where a task has one run.
    """
    from pandas import DataFrame, concat

    require(above=0.0, below=1.0, confidence=confidence)
    require(at_least=1, resamples=resamples)
    found = by_task(results, metric, task, variants)
    values = [sample for tasks in found.values() for sample in tasks.values() if len(sample)]
    if thresholds is None:
        every = np.concatenate(values) if values else np.zeros(1)
        thresholds = np.linspace(every.min(), every.max(), 101).tolist()
    levels = np.asarray(thresholds, dtype=np.float64)

    def shares(*samples: Array, axis: int = -1) -> Array:
        """[τ, …] share of the runs that are better than each level."""
        parts = [[(x > level if higher_is_better else x < level).mean(axis=axis) for x in samples] for level in levels]
        return np.mean(parts, axis=1)

    tables = []
    for variant, tasks in found.items():
        samples = list(tasks.values())
        share = low = high = np.full(len(levels), math.nan)
        if all(map(len, samples)):
            share = shares(*samples)
            low, high, _ = _interval(samples, shares, confidence=confidence, method="percentile", resamples=resamples)
        columns = {"variant": variant, "threshold": levels, "share": share, "low": low, "high": high}
        tables.append(DataFrame(columns))
    return concat(tables, ignore_index=True)


def probabilities_of_improvement(
    results: DataFrame,
    metric: str,
    baseline: str,
    *,
    task: str | None = None,
    variants: Sequence[str] | None = None,
    higher_is_better: bool = True,
    confidence: float = 0.95,
    resamples: int = 2000,
) -> DataFrame:
    """Probability that a run of a variant is better than a run of the baseline, whatever their seeds.

    P = 1/M Σ_m 1/(N_m K_m) Σ_{n,k} (1[x_{m,n} > y_{m,k}] + ½·1[x_{m,n} = y_{m,k}]), the statistic of Mann and Whitney.
    It does not say how much better. Source: arXiv:2108.13264, on aggregate metrics; percentile intervals, as there.

    Args:
        results: One row per run and task.
        metric: The column.
        baseline: Whom to be better than.
        task: The column that says which task a row is of; None for one task.
        variants: Which, in this order; None for all, by name.
        higher_is_better: Direction of the metric.
        confidence: 1 − α.
        resamples: Of the bootstrap.

    Returns:
        A row per variant: ``variant``, ``baseline``, ``n`` and ``n_baseline`` runs, ``probability``, ``low``, ``high``,
        ``remark``.
    """
    from pandas import DataFrame

    require(above=0.0, below=1.0, confidence=confidence)
    require(at_least=1, resamples=resamples)
    wanted = None if variants is None else [baseline, *(name for name in variants if name != baseline)]
    found = by_task(results, metric, task, wanted)
    if baseline not in found:
        raise UserError(f"baseline: no variant {baseline!r}; known: {named(list(found))}")
    partners, rows = list(found[baseline].values()), []
    for variant, tasks in found.items():
        if variant == baseline:
            continue
        samples = list(tasks.values())
        counts = {"n": sum(map(len, samples)), "n_baseline": sum(map(len, partners))}
        entry = {"variant": variant, "baseline": baseline, **counts}
        if not all(map(len, [*samples, *partners])):
            told = "one of the two has no number in a task" if task else "one of the two has no number"
            rows.append({**entry, "probability": math.nan, "low": math.nan, "high": math.nan, "remark": told})
            continue
        sign = 1 if higher_is_better else -1
        both = [sign * sample for sample in (*samples, *partners)]
        value = float(_share_better(*both))
        low, high, told = _interval(
            both, _share_better, confidence=confidence, method="percentile", resamples=resamples
        )
        rows.append(
            {**entry, "probability": value, "low": low, "high": high, "remark": told or _too_narrow(value, both)}
        )
    return DataFrame(rows, columns=[*"variant baseline n n_baseline probability low high remark".split()])


def _too_narrow(probability: float, samples: Sequence[Array]) -> str:
    """What to mind of the interval of a probability of improvement."""
    if probability in (0.0, 1.0):
        return "all runs of one are above all of the other: resampling shows no spread; the interval is too narrow"
    return f"fewer than {FEW} runs: the interval is too narrow" if min(map(len, samples)) < FEW else ""


def _interquartile_mean(*samples: Array, axis: int = -1) -> Any:
    from scipy.stats import trim_mean

    return trim_mean(np.concatenate(samples, axis=axis), 0.25, axis=axis)


def _share_better(*samples: Array, axis: int = -1) -> Any:
    """Mean over M tasks, of M samples of the variant and then M of the baseline, along the last axis."""
    assert axis in (-1, samples[0].ndim - 1)
    tasks = len(samples) // 2
    shares = []
    for own, other in zip(samples[:tasks], samples[tasks:], strict=True):
        one, against = own[..., :, None], other[..., None, :]
        shares.append(((one > against) + 0.5 * (one == against)).mean(axis=(-2, -1)))
    return np.mean(shares, axis=0)


def _interval(
    samples: Sequence[Array],
    statistic: Callable[..., Any],
    *,
    confidence: float,
    method: Literal["BCa", "percentile"],
    resamples: int,
) -> tuple[Any, Any, str]:
    """Bounds of the stratified bootstrap, and why there are none."""
    from scipy.stats import bootstrap

    empty = np.full(np.shape(statistic(*samples)), math.nan)[()]
    if min(map(len, samples)) < 2:
        return empty, empty, "one run in a task shows no spread, so there is no interval; run at least 3 seeds"
    if all(np.ptp(sample) == 0 for sample in samples) and method == "BCa":
        return empty, empty, "all runs give the same: there is no spread to judge by, so no interval"
    largest = max(map(len, samples))
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # of a degenerate distribution: told below
        found = bootstrap(
            tuple(samples),
            statistic,
            n_resamples=resamples,
            batch=max(1, 1_000_000 // largest**2),
            vectorized=True,
            confidence_level=confidence,
            method=method,
            rng=np.random.default_rng(SEED),
        ).confidence_interval
    told = "the bootstrap is degenerate, so there is no interval" if np.isnan(found.low).any() else ""
    return found.low, found.high, told

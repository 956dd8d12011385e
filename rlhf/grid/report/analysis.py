"""From the table of results to statistics, each as a table of its own, and what they say in words."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rlhf.errors import UserError
from rlhf.grid.measures import EARLY
from rlhf.grid.report.results import Results
from rlhf.grid.statistics import words
from rlhf.grid.statistics.comparisons import FEW, differences, per_variant
from rlhf.grid.statistics.factorial import Factorial, effects
from rlhf.grid.statistics.power import power
from rlhf.grid.statistics.robust import interquartile_means, performance_profiles, probabilities_of_improvement
from rlhf.registry import did_you_mean

if TYPE_CHECKING:
    from pandas import DataFrame

ENOUGH = 5
"""Seeds below which a grid is told that it has few."""


@dataclass(frozen=True)
class Analysis:
    """Statistics of a grid. Tables have a column ``metric``; those of comparisons are empty for one variant.

    Attributes:
        means: Of each variant and metric, see :func:`~rlhf.grid.statistics.comparisons.per_variant`.
        differences: From the baseline, paired by seed; the comparisons of one metric are a family.
        power: What the seeds could show, a row for each difference.
        effects: Main effects and interactions of the axes.
        terms: The same, all contrasts of an axis at once.
        iqm: Interquartile means.
        improvement: Probability that a run is better than one of the baseline.
        profiles: Of the main metric: the share of runs that are better than each value.
        remarks: What to mind about all of it.
    """

    means: DataFrame
    differences: DataFrame
    power: DataFrame
    effects: DataFrame
    terms: DataFrame
    iqm: DataFrame
    improvement: DataFrame
    profiles: DataFrame
    remarks: list[str] = field(default_factory=list)

    def tables(self) -> dict[str, DataFrame]:
        """Those that have rows, by name."""
        found = {item.name: getattr(self, item.name) for item in dataclasses.fields(self) if item.name != "remarks"}
        return {name: table for name, table in found.items() if len(table)}


def analyse(results: Results) -> Analysis:
    """All statistics of a table of results, which alone decides them."""
    metrics, variants, baseline = list(results.metrics), results.variants, results.baseline
    several = len(variants) > 1
    empty = _joined([])
    compared = empty
    if several:
        compared = differences(results.table, metrics, baseline, variants=variants, family="metric")
    crossed, terms, remarks = _effects(results)
    main = metrics[0]
    return Analysis(
        means=_joined([(name, per_variant(results.table, name, variants=variants)) for name in metrics]),
        differences=compared,
        power=power(compared) if several else empty,
        effects=crossed,
        terms=terms,
        iqm=_joined([(name, interquartile_means(results.table, name, variants=variants)) for name in metrics]),
        improvement=_joined([(name, _improvement(results, name)) for name in metrics if several]),
        profiles=_joined([(main, _profiles(results, main))] if results.table[main].notna().any() else []),
        remarks=[*_few(results), *remarks],
    )


def _joined(tables: list[tuple[str, DataFrame]]) -> DataFrame:
    """One table of those of several metrics, with a first column that says of which."""
    from pandas import DataFrame, concat

    found = [table.assign(metric=name) for name, table in tables if len(table)]
    if not found:
        return DataFrame()
    whole: Any = concat(found, ignore_index=True)
    return whole[["metric", *(column for column in whole.columns if column != "metric")]]


def _improvement(results: Results, metric: str) -> DataFrame:
    return probabilities_of_improvement(
        results.table,
        metric,
        results.baseline,
        variants=results.variants,
        higher_is_better=results.metrics[metric].higher_is_better,
    )


def _profiles(results: Results, metric: str) -> DataFrame:
    better = results.metrics[metric].higher_is_better
    return performance_profiles(results.table, metric, variants=results.variants, higher_is_better=better)


def _effects(results: Results) -> tuple[DataFrame, DataFrame, list[str]]:
    """Of two crossed axes or more; of fewer, differences say it all."""
    found: dict[str, Factorial] = {}
    remarks = []
    if len(results.axes) > 1:
        for name in results.metrics:
            try:
                found[name] = effects(results.table, name, results.axes)
            except UserError as error:
                remarks.append(f"effects of {name} are not worked out: {error}")
    remarks += [f"effects of {name}: {text}" for name, one in found.items() for text in one.remarks]
    contrasts = _joined([(name, one.effects) for name, one in found.items()])
    return contrasts, _joined([(name, one.terms) for name, one in found.items()]), remarks


def _few(results: Results) -> Iterator[str]:
    """What is said of few seeds, and of cells without numbers."""
    table, main = results.table, next(iter(results.metrics))
    seeds = table["seed"].nunique()
    if seeds < FEW:
        yield f"{words.seeds(seeds)}: no difference can be told from chance; run at least {FEW}, better {ENOUGH}"
    elif seeds < ENOUGH:
        yield f"{words.seeds(seeds)} are few: intervals are wide, and normality cannot be looked at; better {ENOUGH}"
    missing = table[table[main].isna()]
    if 0 < len(missing) < len(table):
        named = ", ".join(missing["cell"][:8]) + (f" and {len(missing) - 8} more" if len(missing) > 8 else "")
        yield f"{len(missing)} of {len(table)} cells have no {main}, and the rest may flatter their variants: {named}"
    for name, metric in results.metrics.items():
        told: Any = results.remarks[results.remarks["metric"] == name]
        if table[name].isna().all():
            known = results.stage(next(iter(results.runs)), metric).names
            yield f"{name}: no cell has a number. {_why(told, results)}.{did_you_mean(metric.name, known)}"
        early = int(told["remark"].str.contains(EARLY, regex=False).sum())
        if early:
            yield f"{name}: {early} of {len(table)} cells are read {EARLY}"


def _why(remarks: Any, results: Results) -> str:
    """Why cells have no number: what is said of finished ones, where there are any such."""
    finished = remarks[remarks["cell"].isin(list(results.runs))]
    return str((finished if len(finished) else remarks)["remark"].iloc[-1])


def claims(analysis: Analysis, metric: str) -> list[str]:
    """What the comparisons of a metric say, the family first, then each."""
    rows: Any = analysis.differences
    if not len(rows):
        return []
    rows = rows[rows["metric"] == metric]
    return [words.family(rows), *(words.difference(row) for row in rows.itertuples())]

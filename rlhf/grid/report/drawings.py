"""What the figures of a grid show, whoever draws them: means over seeds with their intervals, and single runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple

from rlhf.grid.measures import Rows, curve
from rlhf.grid.report.analysis import Analysis
from rlhf.grid.report.results import Results
from rlhf.grid.statistics.curves import over_seeds
from rlhf.report.curves import FRONTIER, Chart, charts, frontiers

COMPARED = "What is compared"
COSTS = "Speed and memory"
"""A group of figures that the table of costs tells better."""
MOST_PLACES = 120
"""A curve of more places is drawn by means of neighbouring ones."""


@dataclass(frozen=True)
class Line:
    """A line of a drawing, or some points.

    Attributes:
        name: For the legend.
        colour: Number of the variant.
        x: Places.
        y: Values.
        low: Lower ends of the intervals; empty where there are none.
        high: Upper ends.
        points: Whether single runs are meant, which no line joins.
    """

    name: str
    colour: int
    x: list[float]
    y: list[float]
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    points: bool = False


@dataclass(frozen=True)
class Drawing:
    """One figure.

    Attributes:
        key: Its name in files.
        title: What it shows.
        unit: Of the vertical axis.
        across: Of the horizontal axis.
        traces: Its lines.
        kind: ``curves``; or ``forest``: values with intervals, one below the other, whose names stand beside them.
    """

    key: str
    title: str
    unit: str
    across: str
    traces: list[Line]
    kind: Literal["curves", "forest"] = "curves"

    @property
    def plain(self) -> dict[str, Any]:
        """As JSON has it, which has no word for what is no number."""
        found = asdict(self)
        for line in found["traces"]:
            for name in ("x", "y", "low", "high"):
                line[name] = [value if math.isfinite(value) else None for value in line[name]]
        return found


class Cell(NamedTuple):
    """A finished cell as a curve is drawn from it."""

    variant: str
    seed: int
    rows: Rows


def drawings(results: Results, analysis: Analysis) -> dict[str, list[Drawing]]:
    """All figures of a grid, by group: first what is compared, then everything else that was noted."""
    found = {COMPARED: [*_forests(results, analysis), *_profile(results, analysis)]}
    stages = dict.fromkeys(metric.stage for metric in results.metrics.values())
    compared = {metric.name for metric in results.metrics.values()}
    for stage in stages:
        own = next(metric for metric in results.metrics.values() if metric.stage == stage)
        records = {name: results.stage(name, own) for name in results.runs}
        names = list(dict.fromkeys(name for record in records.values() for name in record.names))
        cells = [
            Cell(row.variant, row.seed, records[row.cell].metrics)
            for row in results.table[["cell", "variant", "seed"]].itertuples()
            if row.cell in records
        ]
        prefix = "" if len(stages) == 1 else f"{next(iter(records.values())).name} · "
        drawn = {group: members for group, members in charts(names).items() if group != COSTS}
        found.setdefault(FRONTIER, []).extend(
            _frontier(chart, figure, cells, results, prefix) for chart in frontiers(names) for figure in chart.lines
        )
        for group, members in drawn.items():
            for chart in members:
                for figure in chart.lines:
                    place = COMPARED if figure in compared else group
                    lines = [_curve(chart, figure, cells, results, prefix)]
                    if figure in compared and len(results.variants) > 1:
                        lines.append(_paired(chart, figure, cells, results, prefix))
                    found.setdefault(place, []).extend(line for line in lines if _tells(line))
    return {group: members for group, members in found.items() if members}


def _title(chart: Chart, figure: str, prefix: str) -> str:
    """Of a figure that has a picture of its own here."""
    label = chart.lines[figure]
    return prefix + (f"{chart.title}, {label}" if len(chart.lines) > 1 and label != "policy" else chart.title)


def _key(*parts: str) -> str:
    words = ("".join(one if one.isalnum() else "_" for one in part).strip("_") for part in parts)
    return "_".join(word for word in words if word)


# ------------------------------------------------------------------------------------------------------------- curves


def _curve(chart: Chart, figure: str, cells: Sequence[Cell], results: Results, prefix: str) -> Drawing:
    """A figure over the training: each variant's mean over seeds."""
    table, iterations = _points(figure, cells)
    lines = []
    for colour, variant in enumerate(results.variants):
        own = table[table["variant"] == variant] if len(table) else table
        if len(own):
            lines.append(_band(variant, colour, over_seeds(own)))
    across = "iteration" if iterations else "optimiser step"
    return Drawing(_key(prefix, figure), _title(chart, figure, prefix), chart.unit, across, lines)


def _paired(chart: Chart, figure: str, cells: Sequence[Cell], results: Results, prefix: str) -> Drawing:
    """How far each variant is from the baseline over the training, within each seed; what moves both is not in it."""
    table, iterations = _points(figure, cells)
    partners = table[table["variant"] == results.baseline].drop(columns="variant")
    both = table.merge(partners, on=["seed", "place"], suffixes=("", "_baseline"))
    both["value"] -= both.pop("value_baseline")
    lines = []
    for colour, variant in enumerate(results.variants):
        own = both[both["variant"] == variant]
        if len(own) and variant != results.baseline:
            lines.append(_band(variant, colour, over_seeds(own)))
    title = f"{_title(chart, figure, prefix)}: difference from the baseline"
    across = "iteration" if iterations else "optimiser step"
    return Drawing(_key("paired", prefix, figure), title, chart.unit, across, lines)


def _band(name: str, colour: int, means: Any) -> Line:
    """A line of the places at which all seeds have a number that have one anywhere."""
    whole = means[means["n"] == means["n"].max()]
    middle = whole["mean"]
    known = bool(whole["low"].notna().any())
    # where all seeds give the same, as before anything was learnt, there is no interval, and the band has no height
    low, high = (whole[side].fillna(middle).tolist() if known else [] for side in ("low", "high"))
    return Line(name, colour, whole["place"].tolist(), middle.tolist(), low, high)


def _points(figure: str, cells: Sequence[Cell]) -> tuple[Any, bool]:
    """A row for each run and place, and whether the places are iterations.

    A figure of every optimiser step is averaged over each iteration, as the iterations of two seeds need not have
    equally many steps.
    """
    from pandas import DataFrame

    lines = [(cell, curve(cell.rows, figure)) for cell in cells]
    lines = [(cell, line) for cell, line in lines if len(line.values)]
    iterations = all(not any(map(math.isnan, line.iterations)) for _, line in lines)
    parts: list[dict[str, Any]] = [
        {"variant": cell.variant, "seed": cell.seed, "place": place, "value": value}
        for cell, line in lines
        for place, value in zip(line.iterations if iterations else line.steps, line.values, strict=True)
    ]
    table: Any = DataFrame(parts, columns=["variant", "seed", "place", "value"])
    places = sorted(table["place"].unique())
    if (every := -(-len(places) // MOST_PLACES)) > 1:  # neighbours are drawn at the last of them
        last = {place: places[min((at // every + 1) * every, len(places)) - 1] for at, place in enumerate(places)}
        table["place"] = table["place"].map(last)
    return table.groupby(["variant", "seed", "place"], as_index=False).mean(), iterations


def _tells(drawing: Drawing) -> bool:
    """Whether anything moves, or differs between variants."""
    values = [value for line in drawing.traces for value in line.y if not math.isnan(value)]
    if not values or all(len(line.x) < 2 for line in drawing.traces):
        return False
    size = max(map(abs, values))
    return size >= 1e-6 and max(values) - min(values) > min(1e-3 * size, 1.0)


def _frontier(chart: Chart, figure: str, cells: Sequence[Cell], results: Results, prefix: str) -> Drawing:
    """A score against the root of the KL: each variant's means at each evaluation, and its runs' ends."""
    distances, _ = _points(chart.against[figure], cells)
    scores, _ = _points(figure, cells)
    both = scores.merge(distances, on=["variant", "seed", "place"], suffixes=("", "_kl")).dropna()
    both["root"] = both["value_kl"].clip(lower=0.0) ** 0.5
    lines, ends = [], []
    for colour, variant in enumerate(results.variants):
        own = both[both["variant"] == variant]
        if not len(own):
            continue
        middle = over_seeds(own[["variant", "seed", "place", "value"]])
        root = own.groupby("place")["root"].mean()
        band = _band(variant, colour, middle)
        lines.append(Line(variant, colour, [float(root[place]) for place in band.x], band.y))
        last = own[own["place"] == own["place"].max()]
        ends.append(Line(variant, colour, last["root"].tolist(), last["value"].tolist(), points=True))
    title = _title(chart, figure, prefix)
    across = "√ of the KL from the reference (nats)"
    return Drawing(
        _key("frontier", prefix, figure),
        title,
        chart.unit,
        across,
        [*lines, *ends],
    )


# -------------------------------------------------------------------------------------------------------- comparisons


def _forests(results: Results, analysis: Analysis) -> list[Drawing]:
    """Of each metric the differences from the baseline, each with its interval; of one variant its runs."""
    found = []
    colours = {variant: number for number, variant in enumerate(results.variants)}
    for metric in results.metrics:
        rows: Any = analysis.differences
        if not len(rows):
            rows = analysis.means[analysis.means["metric"] == metric]
            lines = [_interval(row.variant, 0, row.mean, row) for row in rows.itertuples() if row.n]
            lines += [_seeds(results, metric, variant, variant) for variant in results.variants]
            found.append(Drawing(_key("runs", metric), f"{metric}: mean and runs", "", metric, lines, "forest"))
            continue
        rows = rows[rows["metric"] == metric]
        lines = [
            _interval(row.variant, colours[row.variant], row.difference, row) for row in rows.itertuples() if row.n
        ]
        across = f"difference from {results.baseline}"
        found.append(Drawing(_key("differences", metric), f"{metric}: differences", "", across, lines, "forest"))
    return found


def _interval(name: str, colour: int, value: float, row: Any) -> Line:
    known = not math.isnan(row.low)
    return Line(name, colour, [value], [value], [row.low] if known else [], [row.high] if known else [])


def _seeds(results: Results, metric: str, variant: str, name: str) -> Line:
    """The runs of a variant as points."""
    own = results.table.loc[results.table["variant"] == variant, metric].dropna().tolist()
    return Line(name, 0, own, own, points=True)


def _profile(results: Results, analysis: Analysis) -> list[Drawing]:
    """Performance profiles of the main metric."""
    if not len(analysis.profiles) or len(results.variants) < 2:
        return []
    metric = str(analysis.profiles["metric"].iloc[0])
    groups: Mapping[Any, Any] = dict(iter(analysis.profiles.groupby("variant", sort=False)))
    lines = []
    for colour, variant in enumerate(results.variants):
        if variant in groups and groups[variant]["share"].notna().any():
            own = groups[variant]
            lines.append(Line(variant, colour, own["threshold"].tolist(), own["share"].tolist()))
    better = "above" if results.metrics[metric].higher_is_better else "below"
    title = f"Performance profile: share of the runs {better} τ"
    return [Drawing(_key("profile", metric), title, "share of runs", f"τ, in {metric}", lines)]

"""From the cells of a grid to its table of results: a row per cell, a number per metric, and why there is none."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rlhf.config import dump
from rlhf.errors import UserError
from rlhf.grid.axes import labels
from rlhf.grid.cells import Cell, baseline_choices, baseline_name
from rlhf.grid.measures import Reading, read
from rlhf.grid.settings import Grid, Metric
from rlhf.report.runs import RunRecord, StageRecord, read_run, record_of
from rlhf.yaml_files import parse

if TYPE_CHECKING:
    from pandas import DataFrame

TELLING = ("eval/score", "reward/score", "eval/accuracy", "eval/loss", "loss")
"""What is compared where the grid names no metric: a judge's score, else the first of these that is there."""
LOWER = ("eval/loss", "loss")
"""Those of them of which less is better."""


class Results(NamedTuple):
    """What the cells of a grid came to.

    Attributes:
        table: A row per cell: ``cell``, ``variant``, a column (text) per axis, ``seed`` and a column per metric; NaN
            where a cell has no number.
        remarks: A row for each number to which something is to be said: ``metric``, ``cell``, ``remark``.
        metrics: What is compared, by name; the first is the main one.
        variants: Their names, the baseline first.
        baseline: The variant that the others are compared with.
        axes: The choices of each axis that varies, the baseline's first, by the name of its column.
        runs: What the finished cells have left, by name.
    """

    table: DataFrame
    remarks: DataFrame
    metrics: dict[str, Metric]
    variants: list[str]
    baseline: str
    axes: dict[str, list[str]]
    runs: dict[str, RunRecord]

    def stage(self, cell: str, metric: Metric) -> StageRecord:
        """The stage of a finished cell that a metric is of."""
        return _stage(self.runs[cell], metric)

    def cells_of(self, variant: str) -> list[str]:
        """The finished cells of a variant, by rising seed."""
        own: Any = self.table[self.table["variant"] == variant]
        return [cell for cell in own.sort_values("seed")["cell"] if cell in self.runs]


def collect(grid: Grid, cells: Sequence[Cell], done: Collection[str]) -> Results:
    """Reads the table of results.

    Args:
        grid: Its settings.
        cells: Its cells, the baseline's first.
        done: Names of those that are finished; of the others nothing is read.

    Raises:
        UserError: no cell is finished, or a folder is no run's.
    """
    from pandas import DataFrame

    runs = {cell.name: _read(cell) for cell in cells if cell.name in done}
    if not runs:
        raise UserError(f"{grid.directory}: no cell is finished, so there is nothing to report; run the grid")
    metrics = grid.metrics or _telling(next(iter(runs.values())))
    columns = {name: _readings(metric, cells, runs) for name, metric in metrics.items()}
    short = labels(grid.axes)
    rows = [
        {
            "cell": cell.name,
            "variant": cell.variant,
            **{short[axis]: cell.choices.get(axis, "") for axis in grid.axes},
            "seed": cell.seed,
            **{name: readings[cell.name].value for name, readings in columns.items()},
        }
        for cell in cells
    ]
    remarks = [
        (name, cell.name, readings[cell.name].remark)
        for name, readings in columns.items()
        for cell in cells
        if readings[cell.name].remark
    ]
    return Results(
        table=DataFrame(rows),
        remarks=DataFrame(remarks, columns=["metric", "cell", "remark"]),
        metrics=dict(metrics),
        variants=list(dict.fromkeys(cell.variant for cell in cells)),
        baseline=baseline_name(grid),
        axes=_axes(grid, cells),
        runs=runs,
    )


def _read(cell: Cell) -> RunRecord:
    """What a finished cell has left; its settings are known without its ``config.yaml``."""
    try:
        return read_run(cell.experiment.directory)
    except UserError:
        return record_of(cell.experiment.directory, parse(dump(cell.experiment)))


def _readings(metric: Metric, cells: Sequence[Cell], runs: Mapping[str, RunRecord]) -> dict[str, Reading]:
    """What a metric says of each cell; those of one seed are read together."""
    found = {cell.name: Reading(math.nan, "not finished") for cell in cells}
    for seed in dict.fromkeys(cell.seed for cell in cells):
        names = [cell.name for cell in cells if cell.seed == seed and cell.name in runs]
        rows = {name: _stage(runs[name], metric).metrics for name in names}
        found |= read(rows, metric.name, metric.at, by=metric.by, higher_is_better=metric.higher_is_better)
    return found


def _stage(run: RunRecord, metric: Metric) -> StageRecord:
    found = run.stages[-1] if metric.stage is None else run.stage(metric.stage)
    assert found is not None  # a grid's stages are checked before it runs
    return found


def _telling(run: RunRecord) -> dict[str, Metric]:
    """The one metric of a grid that names none."""
    names = run.stages[-1].names
    judges = [name for name in names if name.startswith("eval/") and name.endswith("_score") and name.count("/") == 1]
    for name in (*judges, *TELLING):
        if name in names:
            return {name: Metric(name=name, higher_is_better=name not in LOWER)}
    raise UserError(
        f"metrics: none is named, and the last stage, {run.stages[-1].name}, has none of {', '.join(TELLING)}; name "
        "a figure of its metrics.jsonl"
    )


def _axes(grid: Grid, cells: Sequence[Cell]) -> dict[str, list[str]]:
    """The axes of which cells have two choices or more, the baseline's choice first."""
    short, base = labels(grid.axes), baseline_choices(grid)
    found = {}
    for axis in grid.axes:
        chosen = dict.fromkeys(cell.choices[axis] for cell in cells if axis in cell.choices)
        choices = [base[axis], *(one for one in chosen if one != base[axis])] if base.get(axis) in chosen else [*chosen]
        if len(choices) > 1:
            found[short[axis]] = choices
    return found

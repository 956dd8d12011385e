"""The page of a grid: one HTML file that opens without a network, from what was worked out of its cells."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rlhf.grid.cells import Cell
from rlhf.grid.ledger import CONFIG, LOG
from rlhf.grid.report.analysis import Analysis, claims
from rlhf.grid.report.beside import Cost, answers, oddities, varying
from rlhf.grid.report.drawings import COMPARED, Drawing
from rlhf.grid.report.results import Results
from rlhf.grid.settings import Grid, Metric
from rlhf.grid.statistics import words
from rlhf.report.curves import FRONTIER
from rlhf.report.frame import environment, frame
from rlhf.report.page import duration
from rlhf.report.samples import marked, said_before
from rlhf.report.trends import number

AT = {
    "last": "at the last evaluation",
    "best": "at the best evaluation",
    "area": "mean over the run (area under the curve)",
    "equal_kl": "where its KL first reaches what all variants of the seed reach",
    "equal_tokens": "at as many sampled tokens as all variants of the seed reach",
}
"""Which value of a figure a metric is, in words."""


def render(
    grid: Grid,
    cells: Sequence[Cell],
    results: Results,
    analysis: Analysis,
    figures: Mapping[str, Sequence[Drawing]],
    cost: Cost,
    errors: Mapping[str, str],
) -> str:
    """The page as HTML."""
    made = environment(
        "rlhf.grid.report", number, duration, marked, said_before, words.with_interval, words.probability
    )
    made.filters |= {"seeds": words.seeds}
    seed, beside = answers(results)
    charts = {drawing.key: _chart(drawing) for group in figures.values() for drawing in group}
    return made.get_template("grid.html.j2").render(
        grid=grid,
        results=results,
        analysis=analysis,
        seeds=sorted({cell.seed for cell in cells}),
        total=len(cells),
        errors=errors,
        claims={name: claims(analysis, name) for name in results.metrics},
        needed=_needed(results, analysis),
        told={name: _told(metric) for name, metric in results.metrics.items()},
        groups=figures,
        open_groups=(COMPARED, FRONTIER),
        varying=varying(cells),
        oddities=oddities(results),
        seed=seed,
        beside=beside,
        cost=cost,
        runs=_runs(grid, cells, results),
        colours={variant: at % 8 for at, variant in enumerate(results.variants)},
        **frame({"charts": charts, "tokens": {}}),
    )


def _chart(drawing: Drawing) -> dict[str, Any]:
    """As the page's script draws it."""
    plain = drawing.plain
    for trace in plain["traces"]:
        trace["dash"] = trace["colour"] // 8
    return plain


def _told(metric: Metric) -> str:
    stage = "" if metric.stage is None else f" of stage {metric.stage}"
    by = f" by {metric.by}" if metric.by else ""
    return f"{metric.name}{stage}, {AT[metric.at]}{by}; {'more' if metric.higher_is_better else 'less'} is better"


def _needed(results: Results, analysis: Analysis) -> list[str]:
    """How many seeds the claims on the main metric need."""
    main = next(iter(results.metrics))
    rows = analysis.power
    if not len(rows):
        return []
    return [words.needed(row) for row in rows[rows["metric"] == main].itertuples()]


def _runs(grid: Grid, cells: Sequence[Cell], results: Results) -> list[dict[str, Any]]:
    """A row for each cell, with links that work where the page lies."""
    table = results.table.set_index("cell")
    remarks: dict[str, list[str]] = {}
    row: Any
    for row in results.remarks.itertuples():
        if row.remark not in remarks.setdefault(str(row.cell), []):
            remarks[str(row.cell)].append(str(row.remark))
    found = []
    for cell in cells:
        folder = cell.experiment.directory
        finished = cell.name in results.runs
        links = {
            name: quote(os.path.relpath(path, grid.directory))
            for name, path in _files(folder, results.runs[cell.name].stages[-1].directory if finished else None).items()
            if path.exists()
        }
        values = {name: float(table.loc[cell.name, name]) for name in results.metrics}
        found.append(
            {
                "cell": cell,
                "finished": finished,
                "links": links,
                "values": values,
                "remarks": remarks.get(cell.name, []),
            }
        )
    return found


def _files(folder: Path, last: Path | None) -> dict[str, Path]:
    files = {"folder": folder, "settings": folder / CONFIG, "output": folder / LOG}
    return files if last is None else {**files, "figures": last / "metrics.jsonl"}

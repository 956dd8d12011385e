"""Writes what a grid came to into its folder: tables as CSV and LaTeX, figures as PNG and PDF, and the page."""

from __future__ import annotations

import importlib.util
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf.files import atomic_folder, atomic_text
from rlhf.grid.cells import Cell
from rlhf.grid.report.analysis import Analysis, analyse, claims
from rlhf.grid.report.beside import cost
from rlhf.grid.report.drawings import COMPARED, drawings
from rlhf.grid.report.figures import draw
from rlhf.grid.report.page import render
from rlhf.grid.report.results import Results, collect
from rlhf.grid.settings import Grid
from rlhf.grid.statistics import words
from rlhf.report.curves import FRONTIER
from rlhf.report.frame import MissingPackage

if TYPE_CHECKING:
    from pandas import DataFrame

PAGE = "report.html"
RESULTS = "results.csv"
TABLES = "tables"
FIGURES = "figures"


def write_report(
    grid: Grid, cells: Sequence[Cell], done: Collection[str], errors: Mapping[str, str]
) -> tuple[Path, list[str]]:
    """Writes all of it, in place of what there is already.

    Of the same finished cells the same tables and figures come, byte for byte; what depends on time is in
    ``tables/cost_*.csv`` and on the page.

    Args:
        grid: Its settings.
        cells: Its cells.
        done: Names of those that are finished.
        errors: Those of cells that failed.

    Returns:
        The page, and what it says first.

    Raises:
        UserError: no cell is finished.
        MissingPackage: a package is missing.
    """
    check_installed()
    results = collect(grid, cells, done)
    analysis = analyse(results)
    spent = cost(results)
    figures = drawings(results, analysis)
    page = render(grid, cells, results, analysis, figures, spent, errors)
    home = grid.directory
    home.mkdir(parents=True, exist_ok=True)
    named = analysis.tables() | {"cost_stages": spent.stages, "cost_variants": spent.variants}
    named |= {"remarks": results.remarks} if len(results.remarks) else {}
    with atomic_folder(home / TABLES) as folder:  # as a whole, so that none of former metrics stays
        for name, table in named.items():
            (folder / f"{name}.csv").write_text(table.to_csv(index=False), encoding="utf-8")
        for name, text in latex(results, analysis).items():
            (folder / f"{name}.tex").write_text(text, encoding="utf-8")
    with atomic_folder(home / FIGURES) as folder:
        draw([drawing for group in (COMPARED, FRONTIER) for drawing in figures.get(group, [])], folder)
    atomic_text(home / PAGE, page)
    atomic_text(home / RESULTS, results.table.to_csv(index=False))  # last: where it is, the rest is
    main = next(iter(results.metrics))
    return home / PAGE, [*claims(analysis, main), *analysis.remarks]


def check_installed() -> None:
    """Refuses to begin without the packages of the extra ``grid``.

    Raises:
        MissingPackage: one is not installed.
    """
    for package in ("pandas", "scipy", "statsmodels", "matplotlib", "jinja2", "plotly"):
        if importlib.util.find_spec(package) is None:
            raise MissingPackage(f"report: not written, the package {package} is missing; pip install 'rlhf[grid]'")


def latex(results: Results, analysis: Analysis) -> dict[str, str]:
    """The two tables of a paper, in booktabs: means with intervals, and differences."""
    seeds = words.seeds(results.table["seed"].nunique())
    found = {"means": _latex(_means(results, analysis), f"Mean over {seeds}, with a 95\\% Student-t interval.")}
    if len(analysis.differences):
        base = _escaped(results.baseline)
        told = f"Difference from {base}, paired by seed ({seeds}), with a 95\\% interval; $p$ by Holm."
        found["differences"] = _latex(_differences(results, analysis), told)
    return found


def _means(results: Results, analysis: Analysis) -> DataFrame:
    from pandas import DataFrame

    row: Any
    cells: dict[str, dict[str, str]] = {variant: {} for variant in results.variants}
    for row in analysis.means.itertuples():
        cells[row.variant][row.metric] = words.with_interval(row.mean, row.low, row.high)
    return DataFrame([{"variant": variant, **cells[variant]} for variant in results.variants])


def _differences(results: Results, analysis: Analysis) -> DataFrame:
    from pandas import DataFrame

    row: Any
    cells: dict[str, dict[str, str]] = {variant: {} for variant in results.variants if variant != results.baseline}
    for row in analysis.differences.itertuples():
        text = words.with_interval(row.difference, row.low, row.high)
        corrected = "" if row.p_holm != row.p_holm else f" ({'< 0.001' if row.p_holm < 0.001 else f'{row.p_holm:.2g}'})"
        cells[row.variant][row.metric] = text + corrected
    return DataFrame([{"variant": variant, **own} for variant, own in cells.items()])


def _latex(table: DataFrame, caption: str) -> str:
    heads = " & ".join(_escaped(str(column)) for column in table.columns)
    rows = [" & ".join(_escaped(str(value)) for value in row) + r" \\" for row in table.itertuples(index=False)]
    lines = [
        r"\begin{table}",
        rf"  \caption{{{caption}}}",
        rf"  \begin{{tabular}}{{l{'r' * (len(table.columns) - 1)}}}",
        r"    \toprule",
        rf"    {heads} \\",
        r"    \midrule",
        *(f"    {row}" for row in rows),
        r"    \bottomrule",
        r"  \end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "−": "$-$", "<": "$<$"}
    special |= {sign: f"\\{sign}" for sign in "&%$#_{}"}
    return "".join(special.get(letter, letter) for letter in text)

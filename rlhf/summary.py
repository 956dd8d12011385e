"""What a person sees at the end of a run: a table of figures and a picture of the curves."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from rlhf.metrics import read_metrics

HEADLINE = (
    "loss",
    "eval/loss",
    "eval/perplexity",
    "eval/accuracy",
    "eval/margin",
    "reward/score",
    "kl/sequence",
    "policy/entropy",
    "policy/clip_fraction",
    "value/explained_variance",
    "rollout/length",
    "rollout/truncated_fraction",
    "eval/length",
    "eval/kl",
    "eval/distinct_2",
)
CURVES = (
    ("loss", "eval/loss"),
    ("eval/accuracy", "accuracy"),
    ("eval/score", "eval/ema/score"),
    ("eval/gold_score", "eval/ema/gold_score"),
    ("reward/score",),
    ("kl/sequence", "eval/kl"),
    ("policy/entropy",),
    ("rollout/length",),
    ("loss/value",),
    ("loss/mixture",),
)


def _series(rows: Sequence[Mapping[str, float]], name: str) -> tuple[list[float], list[float]]:
    points = [(row["step"], row[name]) for row in rows if row.get(name) is not None]
    return [x for x, _ in points], [y for _, y in points]


def _is_headline(name: str) -> bool:
    return name in HEADLINE or (name.startswith("eval/") and name.endswith(("_score", "/score")))


def print_summary(directory: Path, stages: Sequence[str], console: Console | None = None) -> None:
    """A table per run: first and last value of each stage's headline figures."""
    table = Table(title=str(directory), title_justify="left")
    for heading in ("stage", "figure", "first", "last"):
        table.add_column(heading, justify="left" if heading in ("stage", "figure") else "right")
    for stage in stages:
        rows = read_metrics(directory / stage)
        names = list(dict.fromkeys(name for row in rows for name in row if _is_headline(name)))
        for index, name in enumerate(names):
            _, values = _series(rows, name)
            if not values:
                continue
            table.add_row(stage if index == 0 else "", name, f"{values[0]:.4g}", f"{values[-1]:.4g}")
        table.add_section()
    (console or Console()).print(table)


def draw_curves(directory: Path, stages: Sequence[str]) -> Path | None:
    """Draws the stages' curves into ``curves.png``; None, and nothing drawn, where matplotlib is missing."""
    if importlib.util.find_spec("matplotlib") is None:
        return None
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = []
    for stage in stages:
        rows = read_metrics(directory / stage)
        for names in CURVES:
            lines = [(name, *_series(rows, name)) for name in names]
            lines = [line for line in lines if len(line[1]) > 1]
            if lines:
                panels.append((stage, lines))
    if not panels:
        return None
    columns = min(4, len(panels))
    height = -(-len(panels) // columns)
    figure = Figure(figsize=(3.6 * columns, 2.5 * height), layout="constrained")
    FigureCanvasAgg(figure)
    for index, (stage, lines) in enumerate(panels):
        axes = figure.add_subplot(height, columns, index + 1)
        for name, steps, values in lines:
            axes.plot(steps, values, label=name, linewidth=1.4, marker="." if len(steps) < 15 else None)
        axes.set_title(f"{stage}  {lines[0][0]}", loc="left", fontsize=9, fontweight="bold")
        axes.set_xlabel("optimiser step", fontsize=8)
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        if len(lines) > 1:
            axes.legend(fontsize=7, frameon=False)
    path = directory / "curves.png"
    figure.savefig(path, dpi=130)
    return path

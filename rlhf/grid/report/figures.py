"""The figures of a grid as PNG and PDF, for papers and talks; the same input gives the same bytes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlhf.grid.report.drawings import Drawing, Line

COLOURS = ("#2f62c9", "#d4601a", "#14866a", "#8e44b8", "#c02f4f", "#7d6a1e", "#2b8fb3", "#616a7c")
"""Of the variants, as the page has them."""
DASHES = ("-", "--", ":", "-.")
"""Of variants beyond the eighth."""
STYLE = {
    "font.size": 8.5,
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": "#e3e6ec",
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 7.5,
    "pdf.fonttype": 42,  # letters stay letters
    "svg.hashsalt": "rlhf",
}


def draw(drawings: Sequence[Drawing], folder: Path) -> list[Path]:
    """Writes each drawing as ``<key>.png`` and ``<key>.pdf``.

    Needs matplotlib.
    """
    import matplotlib
    from matplotlib.figure import Figure

    written = []
    settings: Any = {**matplotlib.rcParamsDefault, **STYLE}
    for drawing in drawings:
        with matplotlib.rc_context(settings):
            height = 0.8 + 0.28 * len({line.name for line in drawing.traces}) if drawing.kind == "forest" else 3.0
            figure = Figure(figsize=(5.2, max(1.6, height)), layout="constrained")
            axes = figure.add_subplot()
            (_forest if drawing.kind == "forest" else _curves)(axes, drawing)
            axes.set_title(drawing.title, loc="left")
            axes.set_xlabel(drawing.across)
            for kind, metadata in (("png", {"Software": None}), ("pdf", {"CreationDate": None, "Producer": None})):
                path = folder / f"{drawing.key}.{kind}"
                figure.savefig(path, format=kind, dpi=200, metadata=metadata)
                written.append(path)
    return written


def _look(line: Line) -> dict[str, Any]:
    return {"color": COLOURS[line.colour % len(COLOURS)]}


def _curves(axes: Any, drawing: Drawing) -> None:
    for line in drawing.traces:
        look = _look(line)
        if line.points:
            axes.plot(line.x, line.y, "o", ms=3, alpha=0.45, mew=0, **look)
            continue
        style = DASHES[line.colour // len(COLOURS) % len(DASHES)]
        marker = {"marker": "o", "ms": 2.5} if len(line.x) < 25 else {}
        axes.plot(line.x, line.y, style, lw=1.5, label=line.name, **marker, **look)
        if line.low:
            axes.fill_between(line.x, line.low, line.high, alpha=0.15, lw=0, **look)
    axes.set_ylabel(drawing.unit)
    lines = [line for line in drawing.traces if not line.points]
    if len(lines) > 1:
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _forest(axes: Any, drawing: Drawing) -> None:
    names = list(dict.fromkeys(line.name for line in drawing.traces))
    for line in drawing.traces:
        place = -names.index(line.name)
        look = _look(line)
        if line.points:
            axes.plot(line.x, [place] * len(line.x), "o", ms=3, alpha=0.45, mew=0, **look)
            continue
        if line.low:
            axes.plot([line.low[0], line.high[0]], [place, place], lw=2, **look)
        axes.plot(line.x, [place], "o", ms=5, **look)
    axes.set_yticks([-at for at in range(len(names))], names)
    axes.set_ylim(-len(names) + 0.4, 0.6)
    axes.grid(visible=False, axis="y")
    if drawing.across.startswith("difference"):
        axes.axvline(0.0, color="#1b2130", lw=0.8)

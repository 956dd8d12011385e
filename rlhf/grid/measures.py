"""A run's ``metrics.jsonl`` → one number per metric and cell, and why there is none where there is none.

Five ways to read a curve. ``last``, ``best`` and ``area`` look at one cell alone; ``equal_kl`` and ``equal_tokens``
look at the cells that are compared with each other (those of one seed), as far as the one that came least far has come.

All take the lines of ``metrics.jsonl`` as :func:`rlhf.metrics.read_metrics` gives them: in order, a figure that was not
finite as None. A line that lacks a figure is not one of its evaluations; a line that has it as None is one that failed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlhf.errors import UserError

Rows = Sequence[Mapping[str, Any]]
"""The lines of a stage's ``metrics.jsonl``, in order."""
Array = NDArray[np.float64]
At = Literal["last", "best", "area", "equal_kl", "equal_tokens"]
AVERAGE = "eval/ema/"
EARLY = "between the start and the first evaluation after it, where nothing was measured: evaluate earlier"
"""What is said of a figure that rests on a straight line from the start."""


class Reading(NamedTuple):
    """What a metric says of a cell.

    Attributes:
        value: In the metric's own unit; NaN where there is none.
        remark: Why there is none, or what to mind about it; "" for nothing.
    """

    value: float
    remark: str = ""


class Curve(NamedTuple):
    """A figure over a stage: N places at which it was taken, in order.

    Attributes:
        steps: [N] optimiser steps made.
        iterations: [N] iterations done; NaN of a stage that has none.
        tokens: [N] tokens sampled by the policy until there, see :func:`sampled_tokens`; NaN where that is not known.
        values: [N] the figure; NaN where it was not finite.
    """

    steps: Array
    iterations: Array
    tokens: Array
    values: Array

    @property
    def places(self) -> Array:
        """[N] iterations where each is another one, else optimiser steps (a figure of steps, or a stage without)."""
        rising = not np.isnan(self.iterations).any() and bool((np.diff(self.iterations) > 0).all())
        return self.iterations if rising else self.steps

    @property
    def known(self) -> Curve:
        """Those places at which the figure is a number."""
        return self.where(~np.isnan(self.values))

    def where(self, chosen: NDArray[np.bool_]) -> Curve:
        """Some of the places."""
        return Curve(*(column[chosen] for column in self))


def sampled_tokens(rows: Rows) -> Array:
    """[N] tokens that the policy has sampled for training until each line, responses that a filter dropped included.

    Those of the line's own iteration count, as its optimiser steps learn from them. An iteration's last line has the
    seconds of its sampling and the tokens per second, whose product is the count, exactly. What evaluations and the
    greedy responses of ReMax sample is not in it. NaN from the first iteration on of which it is not known (stored
    rollouts), and where a stage has no iterations.
    """
    of_iteration: dict[int, float] = {}
    for row in rows:
        speed, seconds = row.get("throughput/rollout_tokens_per_s"), row.get("time/rollout")
        if speed is not None and seconds is not None and row.get("iteration") is not None:
            of_iteration[int(row["iteration"])] = float(round(speed * seconds))
    last_iteration = max((int(row["iteration"]) for row in rows if row.get("iteration") is not None), default=0)
    counts = [of_iteration.get(iteration, math.nan) for iteration in range(1, last_iteration + 1)]
    until = np.concatenate([[0.0], np.cumsum(counts)])
    return np.array([math.nan if row.get("iteration") is None else until[int(row["iteration"])] for row in rows])


def curve(rows: Rows, name: str) -> Curve:
    """A figure over a stage, from the lines that have it. Of lines at the same step the last counts.

    At iteration 0 the average of the weights is the policy itself and is not evaluated apart: there an
    ``eval/ema/…`` figure is the policy's.
    """
    tokens = sampled_tokens(rows)
    found: dict[float, tuple[float, float, float, float]] = {}
    for row, count in zip(rows, tokens, strict=True):
        step, iteration = row.get("step"), row.get("iteration")
        source = name
        if name.startswith(AVERAGE) and iteration == 0 and name not in row:
            source = name.replace(AVERAGE, "eval/", 1)
        if step is not None and source in row:
            value = row[source]
            value = math.nan if value is None or not math.isfinite(value) else float(value)
            found.pop(step, None)  # so that the order stays that of the file
            found[step] = (float(step), math.nan if iteration is None else float(iteration), float(count), value)
    columns = np.array(list(found.values()), dtype=np.float64).reshape(-1, 4).T
    return Curve(*columns)


# ---------------------------------------------------------------------------------------------------- one cell alone


def last(rows: Rows, name: str) -> Reading:
    """The figure where it was last taken. If it is no number there, none: an earlier one would be another quantity."""
    line = curve(rows, name)
    if problem := _nothing(line, name):
        return problem
    if math.isnan(line.values[-1]):
        known = line.known
        earlier = f"{known.values[-1]:g} at {_when(known, -1)}" if len(known.values) else "none"
        return Reading(
            math.nan, f"{name} is not a number at {_when(line, -1)}, its last; the latest number is {earlier}"
        )
    return Reading(float(line.values[-1]))


def best(rows: Rows, name: str, by: str, *, higher_is_better: bool = True) -> Reading:
    """The figure at the evaluation at which another one is best; the earliest of several.

    Optimistic: the largest of several noisy values is larger than what it estimates, and so is every figure taken from
    the same responses. Without a second evaluation of the chosen weights the two cannot be told apart, so compare
    cells only with as many evaluations each.

    Args:
        rows: The cell's lines.
        name: The figure that is read.
        by: The figure that chooses; it must stand in the same lines.
        higher_is_better: Whether more of ``by`` is better.
    """
    values, chooser = curve(rows, name), curve(rows, by)
    for line, figure in ((values, name), (chooser, by)):
        if problem := _nothing(line, figure):
            return problem
    values, chooser = _together(values, chooser)
    if not len(chooser.values):
        return Reading(math.nan, f"{name} and {by} are numbers together nowhere")
    at = int(np.argmax(chooser.values if higher_is_better else -chooser.values))
    most = "highest" if higher_is_better else "lowest"
    return Reading(
        float(values.values[at]),
        f"{by} is {most} at {_when(chooser, at)}, of {len(chooser.values)} evaluations; optimistic, as the best of "
        "several is chosen by what is measured",
    )


def area(rows: Rows, name: str, *, over: Literal["iterations", "tokens"] = "iterations") -> Reading:
    """Area under the curve by its length: the mean height of the figure over the training, in the figure's unit.

    1/(x_N − x_1) · Σ_i (x_{i+1} − x_i) (y_i + y_{i+1}) / 2,   the trapezoid rule between neighbouring evaluations.

    Over iterations by default: all stages have a place there, and it is what a grid's settings count in. Over tokens it
    answers how well a cell does for what it samples, where cells differ in the length of their responses. Gaps are
    bridged by straight lines; without a number at either end there is none, as the span would be another.
    """
    line = curve(rows, name)
    if problem := _nothing(line, name):
        return problem
    places = line.tokens if over == "tokens" else line.places
    if np.isnan(places).any():
        return Reading(math.nan, _no_tokens(name))
    if math.isnan(line.values[0]) or math.isnan(line.values[-1]):
        end = 0 if math.isnan(line.values[0]) else -1
        return Reading(math.nan, f"{name} is not a number at {_when(line, end)}, an end of its curve")
    kept = ~np.isnan(line.values)
    places, heights = places[kept], line.values[kept]
    if places[-1] <= places[0]:
        return Reading(math.nan, f"{name} was taken at one place only, under which there is no area")
    gaps = int((~kept).sum())
    remark = f"{gaps} of {len(kept)} values of {name} are no numbers; bridged by straight lines" if gaps else ""
    mean = np.diff(places) @ (heights[1:] + heights[:-1]) / 2 / (places[-1] - places[0])
    return Reading(float(mean), remark)


# ------------------------------------------------------------------------------------------ cells beside each other


def kl_of(name: str) -> str:
    """The KL from the reference that is taken of the same responses as a figure."""
    if name.startswith(AVERAGE):
        return "eval/ema/kl"
    return "eval/kl" if name.startswith("eval/") else "kl/sequence"


def equal_kl(cells: Mapping[str, Rows], name: str, *, kl: str | None = None) -> dict[str, Reading]:
    """The figure at the KL from the reference that all cells have reached.

    The level is the smallest, over the cells, of the largest KL of each. A cell's figure there is read between the two
    evaluations at which its KL first reaches the level, on a straight line in √KL, against which scores rise about
    evenly (arXiv:2210.10760). It rests on those two evaluations alone; between the start and the first one after it
    nothing was measured, which is told. What has no KL does not lower the level of the others; it is told, too.

    Args:
        cells: Lines by cell, of those that are compared: one seed's.
        name: The figure that is read.
        kl: The figure of the distance, in nats per response; None for that of the same responses.
    """
    kl = kl or kl_of(name)
    pairs = {cell: _together(curve(rows, name), curve(rows, kl)) for cell, rows in cells.items()}
    reached = {cell: float(distance.values.max()) for cell, (_, distance) in pairs.items() if len(distance.values)}
    readings = {cell: Reading(math.nan, f"{name} and {kl} are numbers together nowhere") for cell in cells}
    if not reached:
        return readings
    level = min(reached.values())
    remark = _level_remark(f"{kl} {level:g}", reached, cells)
    for cell in reached:
        figure, distance = pairs[cell]
        value, at = _first_crossing(distance.values, figure.values, level)
        readings[cell] = Reading(value, f"{remark}; {EARLY}" if at == 1 and level < distance.values[1] else remark)
        if math.isnan(value):
            start = f"{distance.values[0]:g} at {_when(distance, 0)}"
            readings[cell] = Reading(value, f"{remark}; it begins beyond that, {start}: evaluate earlier")
    return readings


def equal_tokens(cells: Mapping[str, Rows], name: str) -> dict[str, Reading]:
    """The figure at the number of sampled tokens that all cells have reached, on straight lines between evaluations.

    Args:
        cells: Lines by cell, of those that are compared: one seed's.
        name: The figure that is read.
    """
    readings, lines = {}, {}
    for cell, rows in cells.items():
        line = curve(rows, name).known
        if not len(line.values):
            readings[cell] = _nothing(curve(rows, name), name) or Reading(math.nan, f"{name} is a number nowhere")
        elif np.isnan(line.tokens).any():
            readings[cell] = Reading(math.nan, _no_tokens(name))
        else:
            lines[cell] = line
    if not lines:
        return readings
    reached = {cell: float(line.tokens[-1]) for cell, line in lines.items()}
    level = min(reached.values())
    remark = _level_remark(f"{level:,.0f} sampled tokens", reached, cells)
    for cell, line in lines.items():
        if line.tokens[0] > level:
            start = f"{line.tokens[0]:,.0f} at {_when(line, 0)}"
            readings[cell] = Reading(math.nan, f"{remark}; its first number is beyond that, {start}: evaluate earlier")
        else:
            readings[cell] = Reading(float(np.interp(level, line.tokens, line.values)), remark)
    return {cell: readings[cell] for cell in cells}


def read(
    cells: Mapping[str, Rows],
    name: str,
    at: At,
    *,
    by: str | None = None,
    higher_is_better: bool = True,
    kl: str | None = None,
    over: Literal["iterations", "tokens"] = "iterations",
) -> dict[str, Reading]:
    """One number per cell.

    Args:
        cells: Lines by cell, of those that are compared: one seed's.
        name: The figure.
        at: Where it is read.
        by: For ``best``, the figure that chooses; None for ``name`` itself.
        higher_is_better: For ``best``, whether more of ``by`` is better.
        kl: For ``equal_kl``, the figure of the distance.
        over: For ``area``, what the length is counted in.

    Raises:
        UserError: ``at`` is none of these.
    """
    if at == "equal_kl":
        return equal_kl(cells, name, kl=kl)
    if at == "equal_tokens":
        return equal_tokens(cells, name)
    if at == "last":
        return {cell: last(rows, name) for cell, rows in cells.items()}
    if at == "best":
        return {cell: best(rows, name, by or name, higher_is_better=higher_is_better) for cell, rows in cells.items()}
    if at == "area":
        return {cell: area(rows, name, over=over) for cell, rows in cells.items()}
    raise UserError(f"at: {at!r} is none of last, best, area, equal_kl, equal_tokens")


# ------------------------------------------------------------------------------------------------------------ parts


def _nothing(line: Curve, name: str) -> Reading | None:
    """Why a curve says nothing at all, if so."""
    if not len(line.values):
        return Reading(math.nan, f"no line has {name}")
    return Reading(math.nan, f"{name} is a number nowhere") if np.isnan(line.values).all() else None


def _when(line: Curve, index: int) -> str:
    iteration = line.iterations[index]
    return f"step {line.steps[index]:g}" if math.isnan(iteration) else f"iteration {iteration:g}"


def _no_tokens(name: str) -> str:
    return f"how many tokens were sampled is not known at every place where {name} is, as of stored rollouts"


def _together(one: Curve, other: Curve) -> tuple[Curve, Curve]:
    """Two curves at the steps at which both are numbers."""
    one, other = one.known, other.known
    return one.where(np.isin(one.steps, other.steps)), other.where(np.isin(other.steps, one.steps))


def _first_crossing(distances: Array, values: Array, level: float) -> tuple[float, int]:
    """The value where the distance first reaches the level, NaN where it begins beyond it; and i, the place after it.

    With i the first place at or above the level and d the roots, those of estimates below 0 being 0:
    y_{i−1} + (d − d_{i−1}) / (d_i − d_{i−1}) · (y_i − y_{i−1}).
    """
    at = int(np.argmax(distances >= level))
    if at == 0:
        return (float(values[0]) if distances[0] == level else math.nan), 0
    roots = np.sqrt(np.maximum(distances[at - 1 : at + 1], 0.0))
    return float(np.interp(math.sqrt(max(level, 0.0)), roots, values[at - 1 : at + 1])), at


def _level_remark(level: str, reached: Mapping[str, float], cells: Mapping[str, Rows]) -> str:
    """Where cells are compared, and because of which."""
    slowest = min(sorted(reached), key=lambda cell: reached[cell])
    remark = f"at {level}, as far as {slowest} came"
    without = sorted(set(cells) - set(reached))
    return f"{remark}; without {', '.join(without)}, of which that is not known" if without else remark

"""Where the figures of two stages part: the first iteration, or step, at which one of them is not the same.

Figures of time, throughput and memory are what a stage costs, not what it comes to: they never count here.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from rlhf.report.runs import StageRecord

COST = ("time/", "throughput/", "memory/", "switch/")
"""What the figures of cost begin with."""
PLACE = ("step", "iteration")
GIVEN = ("lr/", "kl/coef")
"""What is set rather than measured: that it differs explains little where something else differs too."""


class First(NamedTuple):
    """Where a figure is first another one.

    Attributes:
        figure: Its name.
        step: Optimiser steps made by then in the first run, where its iteration has several; else None.
        a: The first run's value.
        b: The second run's.
    """

    figure: str
    step: float | None
    a: float | None
    b: float | None


class Parting(NamedTuple):
    """How far two stages are equal, in iterations, or optimiser steps of a stage that has none.

    Attributes:
        unit: What the places count.
        equal_until: The last place until which all figures are equal; None where there is none.
        at: The first place where some are not; None where all stay equal as far as both go.
        figures: Those that differ there: first of the rollouts, then of the update, the evaluation, and what is set.
        compared: Figures that both have at that place; at any place, where all stay equal.
    """

    unit: Literal["iteration", "step"]
    equal_until: float | None
    at: float | None
    figures: list[First]
    compared: int


class Point(NamedTuple):
    """A figure in a line of ``metrics.jsonl``."""

    line: int
    step: float
    iteration: float | None
    value: float | None

    @property
    def moment(self) -> float:
        return self.step if self.iteration is None else self.iteration


Points = Sequence[Point]


def is_cost(figure: str) -> bool:
    """Whether a figure says what something cost, and not what came of it."""
    return figure.startswith(COST)


def number_in(value: Any) -> float | None:
    """A value of a line; None where it is no number, which is written as null."""
    return value if value is not None and math.isfinite(value) else None


def points_of(stage: StageRecord) -> dict[str, list[Point]]:
    """Every result of a stage, over the lines that have it."""
    found: dict[str, list[Point]] = {}
    for index, line in enumerate(stage.metrics):
        if "step" not in line:
            continue
        for figure, value in line.items():
            if figure not in PLACE and not is_cost(figure):
                point = Point(index, line["step"], line.get("iteration"), number_in(value))
                found.setdefault(figure, []).append(point)
    return found


def at_places(a: Points, b: Points) -> tuple[dict[float, list[Point]], dict[float, list[Point]]]:
    """A figure of both by iteration, where each line is another one's; else by optimiser step."""
    by_iteration = _rising(a) and _rising(b)
    found: list[dict[float, list[Point]]] = []
    for points in (a, b):
        places: dict[float, list[Point]] = defaultdict(list)
        for point in points:
            places[point.moment if by_iteration else point.step].append(point)
        found.append(dict(places))
    return found[0], found[1]


def _rising(points: Points) -> bool:
    iterations = [point.iteration for point in points]
    known = [iteration for iteration in iterations if iteration is not None]
    return len(known) == len(iterations) and known == sorted(set(known))


def parting(figures: Mapping[str, tuple[Points, Points]], stage: StageRecord) -> Parting | None:
    """The first place at which figures that both have are not the same."""
    moments: set[float] = set()
    firsts: dict[str, tuple[Point, Point]] = {}
    taken: dict[float, set[str]] = defaultdict(set)
    for figure, (a, b) in figures.items():
        left, right = at_places(a, b)
        for place in sorted(left.keys() & right.keys()):
            moment = left[place][0].moment
            moments.add(moment)
            taken[moment].add(figure)
            apart = _first_apart(left[place], right[place])
            if apart is not None:
                firsts[figure] = apart
                break
    if not moments:
        return None
    unit = "step" if all(line.get("iteration") is None for line in stage.metrics) else "iteration"
    if not firsts:
        return Parting(unit, max(moments), None, [], len(set().union(*taken.values())))
    at = min(point.moment for point, _ in firsts.values())
    here = [figure for figure, (point, _) in firsts.items() if point.moment == at]
    here.sort(key=lambda figure: _order(figure, firsts[figure][0], figures[figure][0], stage))
    found = []
    for figure in here:
        one, other = firsts[figure]
        found.append(First(figure, None if _rising(figures[figure][0]) else one.step, one.value, other.value))
    return Parting(unit, max((moment for moment in moments if moment < at), default=None), at, found, len(taken[at]))


def _first_apart(a: Points, b: Points) -> tuple[Point, Point] | None:
    """The first lines of one place whose values differ; a line that one has more is no difference."""
    return next(((one, other) for one, other in zip(a, b, strict=False) if one.value != other.value), None)


def _order(figure: str, point: Point, points: Points, stage: StageRecord) -> tuple[int, int, int]:
    """As an iteration goes: what is sampled stands in its last line, and comes before the steps of the update."""
    phase = 3 if figure.startswith(GIVEN) else 2 if figure.startswith("eval/") else 0 if _rising(points) else 1
    return phase, point.line, list(stage.metrics[point.line]).index(figure)

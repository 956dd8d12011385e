"""One stage of two runs: its figures beside each other, where they part, and which answers are the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from rlhf.report.curves import FURTHER, charts
from rlhf.report.parting import Parting, Points, at_places, is_cost, number_in, parting, points_of
from rlhf.report.runs import StageRecord

AVERAGE = "eval/ema/"


class Row(NamedTuple):
    """A figure of both runs.

    Attributes:
        group: Of the report's charts.
        title: Of its chart and line.
        figure: Its name.
        a: Last value of the first run; None where that is no number.
        b: The same of the second.
        deviation: Over responses, of the first run's first evaluation; None where the figure has none.
    """

    group: str
    title: str
    figure: str
    a: float | None
    b: float | None
    deviation: float | None

    @property
    def difference(self) -> float | None:
        """Second minus first."""
        return None if self.a is None or self.b is None else self.b - self.a

    @property
    def in_deviations(self) -> float | None:
        """The difference, measured by how far responses of one policy are from each other."""
        return None if self.difference is None or self.deviation is None else self.difference / self.deviation


class Answers(NamedTuple):
    """The answers to the prompts that both runs have answered at an evaluation.

    Attributes:
        iteration: Of the last evaluation that both have.
        equal: Answers that are the same, letter for letter.
        prompts: Prompts that both have.
        further: Prompts that one alone has.
    """

    iteration: int
    equal: int
    prompts: int
    further: int


@dataclass(frozen=True)
class StagePair:
    """A stage that both runs have.

    Attributes:
        name: Of the stage.
        a: The first run's.
        b: The second run's.
        same: ``copy``: every line is the same, times included; ``equal``: every result of every line is; else "".
        rows: Figures whose last values differ, or are no numbers.
        equal: Figures whose last values are equal.
        only: Figures that one alone has, of the first and of the second.
        unmatched: Figures that both have, but at no common place, where an unfinished stage is compared.
        parting: How far they are equal; None where nothing was taken at a common place.
        answers: To the fixed prompts; None where there is no common evaluation.
    """

    name: str
    a: StageRecord
    b: StageRecord
    same: Literal["copy", "equal", ""]
    rows: list[Row]
    equal: list[str]
    only: tuple[list[str], list[str]]
    unmatched: list[str]
    parting: Parting | None
    answers: Answers | None

    @property
    def finished(self) -> bool:
        """Whether both have come to their ends."""
        return self.a.state == self.b.state == "finished"

    @property
    def same_key(self) -> bool:
        """Whether the same follows from both records, as far as the project can see."""
        return self._keys[0] is not None and self._keys[0] == self._keys[1]

    @property
    def other_key(self) -> bool:
        """Whether something that went in differs; not where that is not known."""
        return None not in self._keys and self._keys[0] != self._keys[1]

    @property
    def _keys(self) -> tuple[str | None, str | None]:
        return self.a.record.get("key"), self.b.record.get("key")


def pair(name: str, a: StageRecord, b: StageRecord) -> StagePair:
    """Compares a stage of two runs. Of one that is not finished, figures are read where both have them last."""
    left, right = points_of(a), points_of(b)
    both = [figure for figure in left if figure in right]
    finished = a.state == b.state == "finished"
    lasts = {figure: _lasts(left[figure], right[figure], finished) for figure in both}
    told = [figure for figure in both if not _is_spread(figure, left)]
    titles = _titles([*left, *(figure for figure in right if figure not in left)])
    rows, equal = [], []
    for figure in titles:
        if figure not in told or (last := lasts[figure]) is None:
            continue
        if last[0] is not None and last[0] == last[1]:
            equal.append(figure)
        else:
            rows.append(Row(*titles[figure], figure, *last, _deviation(figure, left)))
    return StagePair(
        name=name,
        a=a,
        b=b,
        same=_same(a, b),
        rows=rows,
        equal=equal,
        only=(_alone(left, right), _alone(right, left)),
        unmatched=[figure for figure in told if lasts[figure] is None],
        parting=parting({figure: (left[figure], right[figure]) for figure in both}, a),
        answers=_answers(a, b),
    )


# ------------------------------------------------------------------------------------------------------------ figures


def _lasts(a: Points, b: Points, finished: bool) -> tuple[float | None, float | None] | None:
    """Where a figure was last taken: of each, or where one is not finished, of both at one place."""
    if finished:
        return a[-1].value, b[-1].value
    left, right = at_places(a, b)
    common = left.keys() & right.keys()
    return (left[max(common)][-1].value, right[max(common)][-1].value) if common else None


def _alone(one: Mapping[str, Points], other: Mapping[str, Points]) -> list[str]:
    return [figure for figure in one if figure not in other and not _is_spread(figure, one)]


def _is_spread(figure: str, known: Mapping[str, Any]) -> bool:
    """Whether a figure is told with the one whose deviation it is."""
    return figure.endswith("_std") and figure.removesuffix("_std") in known


def _deviation(figure: str, points: Mapping[str, Points]) -> float | None:
    """Of the first evaluation, as everywhere in the report; the average's are measured by the policy's."""
    for name in (figure.replace(AVERAGE, "eval/", 1), figure):
        known = points.get(f"{name}_std", ())
        if known and known[0].value:
            return known[0].value
    return None


def _titles(figures: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Group and title of each figure, in the order of the report."""
    found: dict[str, tuple[str, str]] = {}
    for group, members in charts(figures).items():
        for chart in members:
            for figure, label in chart.lines.items():
                several = len(chart.lines) > 1 and label
                found[figure] = (group, f"{chart.title}, {label}" if several else chart.title)
    return found | {figure: (FURTHER, figure) for figure in figures if figure not in found}


# ------------------------------------------------------------------------------------------------------ equal, or not


def _same(a: StageRecord, b: StageRecord) -> Literal["copy", "equal", ""]:
    if not a.metrics or a.state != b.state:
        return ""
    if a.metrics == b.metrics and any(is_cost(figure) for figure in a.names):
        return "copy"
    return "equal" if [*_results(a)] == [*_results(b)] else ""


def _results(stage: StageRecord) -> Iterator[dict[str, float | None]]:
    for line in stage.metrics:
        yield {figure: number_in(value) for figure, value in line.items() if not is_cost(figure)}


def _answers(a: StageRecord, b: StageRecord) -> Answers | None:
    left, right = a.rollout_files("evaluation"), b.rollout_files("evaluation")
    common = left.keys() & right.keys()
    if not common:
        return None
    last = max(common)
    given, others = _by_prompt(a.rows(left[last])), _by_prompt(b.rows(right[last]))
    pairs = [both for prompt in given for both in zip(given[prompt], others.get(prompt, ()), strict=False)]
    total = sum(len(texts) for answers in (given, others) for texts in answers.values())
    return Answers(last, sum(one == other for one, other in pairs), len(pairs), total - 2 * len(pairs))


def _by_prompt(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for row in rows:
        found.setdefault(str(row["prompt"]), []).append(str(row["response"]))
    return found

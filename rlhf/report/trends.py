"""How a stage's figures went: from where to where, how far at most, and in which units."""

from __future__ import annotations

import math
from typing import NamedTuple

from rlhf.report.runs import StageRecord


def number(value: float | None) -> str:
    """A figure as people read it: three digits, no exponent where it can be helped."""
    if value is None or not math.isfinite(value):
        return "—"
    if value == int(value) and abs(value) < 1e6:
        text = f"{int(value)}"
    else:
        text = f"{value:.3g}" if 1e-3 <= abs(value) < 1e5 else f"{value:.2e}"
    return text.replace("-", "−")


class Ends(NamedTuple):
    """Mean of a figure over the first and the last tenth of a stage, at least one value each."""

    first: float
    last: float


def trend(stage: StageRecord, name: str) -> Ends | None:
    """Nothing for a figure of fewer than two values."""
    values = stage.series(name).values
    if len(values) < 2:
        return None
    part = max(1, len(values) // 10)
    return Ends(sum(values[:part]) / part, sum(values[-part:]) / part)


def late(stage: StageRecord, name: str) -> float | None:
    """Mean over the last quarter of a stage."""
    values = stage.series(name).values
    part = max(1, len(values) // 4)
    return sum(values[-part:]) / part if values else None


def peak(stage: StageRecord, name: str) -> tuple[float, str] | None:
    """Largest value of a figure, and when."""
    series = stage.series(name)
    if not series.values:
        return None
    value = max(series.values)
    index = series.values.index(value)
    when = series.iterations[index]
    return value, f"step {series.steps[index]:g}" if when is None else f"iteration {when:g}"


def either(stage: StageRecord, *names: str) -> str:
    """The first of the figures that has two values or more, else ""."""
    return next((name for name in names if len(stage.series(name).values) > 1), "")


def deviation(stage: StageRecord, name: str) -> float:
    """What a difference of scores is measured in: their deviation over responses at the first evaluation."""
    known = stage.series(f"{name}_std").values
    if known and known[0] > 0:
        return known[0]
    values = stage.series(name).values
    mean = sum(values) / len(values)
    return (sum((value - mean) ** 2 for value in values) / len(values)) ** 0.5 or 1.0


def gain(stage: StageRecord, name: str) -> float | None:
    """Last minus first score, in deviations."""
    ends = trend(stage, name)
    return None if ends is None else (ends.last - ends.first) / deviation(stage, name)


def score_name(stage: StageRecord) -> str:
    """The figure that says best how the reward went; "" where there is none."""
    return either(stage, "eval/score", "reward/score")


def score_text(stage: StageRecord) -> str:
    """How the score went, for a sentence; "" where there is none."""
    ends = trend(stage, score_name(stage)) if score_name(stage) else None
    if ends is None:
        return ""
    verb = "rises" if ends.last > ends.first else "falls"
    return f"The score {verb} from {number(ends.first)} to {number(ends.last)}"

"""Variants beside each other: the settings that vary, their answers to the same prompts, what is odd, and the cost."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rlhf.config import dump
from rlhf.grid.cells import Cell
from rlhf.grid.measures import sampled_tokens
from rlhf.grid.plan import spent
from rlhf.grid.report.results import Results
from rlhf.report.findings import PAID, Finding, findings
from rlhf.report.runs import RunRecord, StageRecord
from rlhf.report.samples import Answer, evaluations, evenly, stories
from rlhf.report.settings import differences
from rlhf.yaml_files import parse

if TYPE_CHECKING:
    from pandas import DataFrame

PROMPTS = 6
"""Held-out prompts whose answers are shown."""
NEUTRAL = ("name", "output_dir", "seed", "stage_seeds")
"""Settings of a cell that are no variant's."""


def varying(cells: Sequence[Cell]) -> list[tuple[str, list[str]]]:
    """The settings in which variants differ: the dotted key and each variant's value, in their order."""
    firsts = {cell.variant: cell for cell in reversed(cells)}
    configs = [parse(dump(firsts[name].experiment)) for name in dict.fromkeys(cell.variant for cell in cells)]
    return differences([{key: value for key, value in one.items() if key not in NEUTRAL} for one in configs])


# ------------------------------------------------------------------------------------------------------------- answers


class Beside(NamedTuple):
    """One held-out prompt and what variants with the same seed answer to it.

    Attributes:
        prompt: The prompt.
        before: The answer before training, where all began alike and it was evaluated.
        answers: The last answer of each variant; None where it has none to this prompt.
    """

    prompt: str
    before: Answer | None
    answers: dict[str, Answer | None]


def answers(results: Results) -> tuple[int, list[Beside]]:
    """A seed that all variants have finished (or most), and their last answers to some of the same prompts.

    The prompts are chosen evenly by how far apart the variants' scores are.
    """
    told: dict[int, dict[str, dict[str, Any]]] = {}
    last = {name: run.stages[-1] for name, run in results.runs.items()}
    row: Any
    for row in results.table.itertuples():
        if row.cell in last and evaluations(last[row.cell]):
            own = {story.prompt: story for story in stories(last[row.cell], most=10**9)}
            told.setdefault(int(row.seed), {})[str(row.variant)] = own
            if len(told[int(row.seed)]) == len(results.variants):
                break
    if not told:
        return 0, []
    seed = max(told, key=lambda one: (len(told[one]), -one))
    variants = {name: told[seed][name] for name in results.variants if name in told[seed]}
    prompts = [prompt for prompt in next(iter(variants.values())) if all(prompt in own for own in variants.values())]
    rows = []
    for prompt in prompts:
        found = {name: own[prompt].answers for name, own in variants.items()}
        starts = [one[0] for one in found.values()]
        alike = all(start.iteration == 0 and start.text == starts[0].text for start in starts)
        rows.append(Beside(prompt, starts[0] if alike else None, {name: one[-1] for name, one in found.items()}))
    rows.sort(key=_apart)
    return seed, evenly(rows, PROMPTS)[::-1]


def _apart(row: Beside) -> float:
    scores = [answer.scores.get("score", 0.0) for answer in row.answers.values() if answer is not None]
    return max(scores) - min(scores)


# ------------------------------------------------------------------------------------------------------------ oddities


class Oddity(NamedTuple):
    """Something that the rules for single runs find in some cells.

    Attributes:
        title: What it is.
        grave: Whether a result should not be used before it is understood.
        cells: By variant, how many of its finished cells have it.
        example: What is said of the first of them.
        where: Which that is.
    """

    title: str
    grave: bool
    cells: dict[str, int]
    example: str
    where: str


def oddities(results: Results) -> list[Oddity]:
    """What is odd in the last stage of each cell, counted by variant, grave ones first."""
    found: dict[str, Oddity] = {}
    for variant in results.variants:
        for cell in results.cells_of(variant):
            for finding in findings(results.runs[cell].stages[-1]):
                title = _alike(finding)
                known = found.setdefault(title, Oddity(title, finding.grave, {}, finding.text, cell))
                known.cells[variant] = known.cells.get(variant, 0) + 1
    return sorted(found.values(), key=lambda one: (not one.grave, -sum(one.cells.values())))


def _alike(finding: Finding) -> str:
    """A title that is the same in all cells, whichever word it is about in each."""
    title = finding.title.partition(": “")[0]
    return re.sub("“[^”]*”", "“…”", title) if finding.figure == PAID else title


# ---------------------------------------------------------------------------------------------------------------- cost


class Cost(NamedTuple):
    """What a grid has cost.

    Attributes:
        stages: A row per stage: ``stage``, ``made`` (different ones), ``cells`` that have it, ``seconds`` in all, and
            ``saved``: seconds that the same stages would have taken again in every cell.
        variants: A row per variant: ``variant``, ``cells`` finished, and of the last stage the means of ``seconds`` and
            sampled ``tokens``, and the largest ``memory`` in GB.
    """

    stages: DataFrame
    variants: DataFrame

    @property
    def seconds(self) -> float:
        """All stages that were made, each once."""
        return float(self.stages["seconds"].sum())


def cost(results: Results) -> Cost:
    """Counts what was made once, however many cells have it."""
    from pandas import DataFrame

    seconds: dict[str, dict[str, list[float]]] = {}
    for run in results.runs.values():
        for stage in run.stages:
            if stage.done is not None:
                took = spent(stage.directory, stage.done)
                seconds.setdefault(stage.name, {}).setdefault(_identity(stage), []).append(took)
    stages = [
        {
            "stage": name,
            "made": len(made),
            "cells": sum(map(len, made.values())),
            "seconds": sum(max(each) for each in made.values()),
            "saved": sum(max(each) * (len(each) - 1) for each in made.values()),
        }
        for name, made in seconds.items()
    ]
    return Cost(DataFrame(stages), DataFrame([_of_variant(results, variant) for variant in results.variants]))


def _identity(stage: StageRecord) -> str:
    """Equal for what was made once and copied."""
    record = stage.record
    return str(record.get("key") or record.get("id") or stage.directory)


def _of_variant(results: Results, variant: str) -> dict[str, Any]:
    runs: list[RunRecord] = [results.runs[cell] for cell in results.cells_of(variant)]
    last = [run.stages[-1] for run in runs]
    tokens = [max((count for count in sampled_tokens(stage.metrics) if count == count), default=0.0) for stage in last]
    peaks = [row["memory/peak_gb"] for stage in last for row in stage.metrics if row.get("memory/peak_gb") is not None]
    took = [spent(stage.directory, stage.done) for stage in last if stage.done is not None]
    return {
        "variant": variant,
        "cells": len(runs),
        "seconds": statistics.fmean(took) if took else 0.0,
        "tokens": round(statistics.fmean(tokens)) if tokens else 0,
        "memory": max(peaks, default=0.0),
    }

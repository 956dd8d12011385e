"""Puts the page together: what was read becomes views, the views become HTML."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rlhf.errors import UserError
from rlhf.files import atomic_text
from rlhf.report import settings
from rlhf.report.curves import FRONTIER, OPEN, Chart, charts, frontiers, steady, traces
from rlhf.report.findings import ANSWERS, PAID, Finding, findings, said_to_be_paid
from rlhf.report.frame import environment, frame
from rlhf.report.measures import word_in
from rlhf.report.paid import Trait, traits
from rlhf.report.runs import RunRecord, StageRecord, read_runs
from rlhf.report.samples import Story, marked, said_before, stories
from rlhf.report.tokens import Sampled, of_word, sampled, scales
from rlhf.report.trends import number

TILES = (
    ("eval/score", "reward/score"),
    ("eval/*_score",),
    ("kl/sequence",),
    ("policy/entropy",),
    ("eval/length", "rollout/length"),
    ("eval/distinct_2",),
    ("eval/loss", "loss"),
    ("eval/perplexity",),
    ("eval/accuracy",),
    ("eval/margin",),
)
"""The figures at the head of a stage: of each line the first that is there."""


class Tile(NamedTuple):
    """First and last value of a figure in each run."""

    figure: str
    title: str
    unit: str
    values: list[tuple[float | None, float] | None]


class Figure(NamedTuple):
    """A chart of the page, with the key of its data."""

    key: str
    chart: Chart


class Group(NamedTuple):
    """Charts that belong together, and the figures of the group that did not move: by name, with their value."""

    figures: list[Figure]
    steady: dict[str, float]


@dataclass(frozen=True)
class StageView:
    """One stage as the page shows it, of all runs that have it.

    Attributes:
        name: Of the stage.
        records: Each run with its stage, in the order of the runs.
        tiles: The headline figures.
        groups: Charts by group.
        traits: Per run, what the score goes with.
        paid: Per run, what the score pays for first of all, where the page says that it pays for something.
        stories: Per run, the fixed prompts and how the answers to them change.
        rollouts: Per run, sampled rollouts with figures per token.
        scales: Per run, the layers by which tokens can be coloured.
    """

    name: str
    records: list[tuple[RunRecord, StageRecord]]
    tiles: list[Tile]
    groups: dict[str, Group]
    traits: dict[str, tuple[Trait, ...]]
    paid: dict[str, Trait]
    stories: dict[str, list[Story]]
    rollouts: dict[str, list[Sampled]]
    scales: dict[str, list[dict[str, Any]]]


def write_report(directories: Sequence[Path], output: Path | None = None) -> Path:
    """Writes the report of one run, or of several beside each other.

    Args:
        directories: Folders of the runs.
        output: Where to write; ``report.html`` in the run's folder, or in the folder that holds all of them, where not
            given.

    Returns:
        The file written.

    Raises:
        UserError: a folder is no run.
        MissingPackage: a package that draws the page is not installed.
    """
    runs = read_runs(list(directories))
    if output is not None and (output.is_dir() or output.suffix not in (".html", ".htm")):
        what = "is a folder" if output.is_dir() else "does not end in .html"
        raise UserError(f"--output: {output} {what}; name the page to write, such as {output.with_suffix('.html')}")
    if output is None:
        above = os.path.commonpath([run.directory.absolute() for run in runs])
        output = runs[0].directory if len(runs) == 1 else Path(above)
        output /= "report.html"
    page = render(runs)
    output.parent.mkdir(parents=True, exist_ok=True)
    atomic_text(output, page)
    return output


def render(runs: Sequence[RunRecord]) -> str:
    """The page as HTML."""
    filters = (number, duration, marked, said_before, looked_for, word_in, of_word)
    made = environment("rlhf.report", *filters)
    data: dict[str, Any] = {"charts": {}, "tokens": {}}
    stages = [_stage_view(name, runs, data) for name in dict.fromkeys(s.name for run in runs for s in run.stages)]
    found = _all_findings(runs)
    return made.get_template("page.html.j2").render(
        runs=runs,
        stages=stages,
        findings=found,
        told=Counter((run.name, stage.name) for run, stage, _ in found),
        grave={(run.name, stage.name) for run, stage, finding in found if finding.grave},
        flagged={(stage.name, finding.figure) for _, stage, finding in found if finding.grave},
        anchors=_anchors(stages),
        changes={run.name: settings.changes(run.config) for run in runs},
        differences=settings.differences([{**run.config, "name": ""} for run in runs]),
        configs={run.name: (run.directory / "config.yaml").read_text(encoding="utf-8") for run in runs},
        open_groups=OPEN,
        **frame(data),
    )


def _all_findings(runs: Sequence[RunRecord]) -> list[tuple[RunRecord, StageRecord, Finding]]:
    """Run by run, grave ones first."""
    found = [(run, stage, finding) for run in runs for stage in run.stages for finding in findings(stage)]
    return sorted(found, key=lambda entry: (runs.index(entry[0]), not entry[2].grave))


def _stage_view(name: str, runs: Sequence[RunRecord], data: dict[str, Any]) -> StageView:
    """The view of a stage; what its charts and tokens are drawn from goes into ``data``."""
    records = [(run, stage) for run in runs if (stage := run.stage(name)) is not None]
    names = list(dict.fromkeys(figure for _, stage in records for figure in stage.names))
    groups: dict[str, Group] = {}
    for group, members in _with_frontiers(charts(names), frontiers(names)).items():
        found = _group(members, records, runs, data)
        if found.figures or found.steady:
            groups[group] = found
    rollouts = {run.name: found for run, stage in records if (found := sampled(stage))}
    layers = {run: list(scales(found)) for run, found in rollouts.items()}
    for run, found in rollouts.items():
        data["tokens"][f"{run}/{name}"] = {"layers": layers[run], "rollouts": [one.layers for one in found]}
    told = {run.name: found for run, stage in records if (found := stories(stage))}
    goes_with = {run.name: found for run, stage in records if (found := traits(stage))}
    paid = {run.name: found[0] for run, stage in records if (found := said_to_be_paid(stage))}
    return StageView(name, records, _tiles(names, records), groups, goes_with, paid, told, rollouts, layers)


def _with_frontiers(groups: dict[str, list[Chart]], drawn: list[Chart]) -> dict[str, list[Chart]]:
    """The groups with the frontiers, behind what they are made of."""
    found: dict[str, list[Chart]] = {}
    before = [name for name in groups if name in ("Reward", "Distance from the reference")]
    for name, members in groups.items():
        found[name] = members
        if name in before[-1:]:
            found[FRONTIER] = drawn
    return found


def _group(
    members: Sequence[Chart],
    records: Sequence[tuple[RunRecord, StageRecord]],
    runs: Sequence[RunRecord],
    data: dict[str, Any],
) -> Group:
    """A group's charts, what they are drawn from in ``data``; what a frontier is made of stands elsewhere."""
    drawn: list[Figure] = []
    still: dict[str, float] = {}
    for chart in members:
        lines = traces(chart, records, runs)
        if steady(lines):
            still |= {} if chart.against else {line["figure"]: line["y"][-1] for line in lines}
            continue
        key = f"chart-{len(data['charts']) + 1}"
        across = "√ of the KL from the reference" if chart.against else None
        data["charts"][key] = {"title": chart.title, "traces": lines, "across": across}
        drawn.append(Figure(key, chart))
    return Group(drawn, still)


def _tiles(names: list[str], records: Sequence[tuple[RunRecord, StageRecord]]) -> list[Tile]:
    titles = {figure: chart for group in charts(names).values() for chart in group for figure in chart.lines}
    tiles = []
    for choice in TILES:
        judges = [n for n in names if n.startswith("eval/") and n.endswith("_score") and n.count("/") == 1]
        wanted = judges if choice == ("eval/*_score",) else [n for n in choice if n in names][:1]
        for figure in wanted:
            series = [stage.series(figure).values for _, stage in records]
            ends = [(values[0] if values[1:] else None, values[-1]) if values else None for values in series]
            chart = titles[figure]
            label = chart.lines[figure]
            title = f"{chart.title}, {label}" if len(chart.lines) > 1 and label != "policy" else chart.title
            tiles.append(Tile(figure, title, chart.unit, ends))
    return tiles


def _anchors(stages: Sequence[StageView]) -> dict[tuple[str, str], str]:
    """Where a figure of a stage is drawn, and where its answers stand."""
    places = {
        (stage.name, name): figure.key
        for stage in stages
        for group in stage.groups.values()
        for figure in group.figures
        if not figure.chart.against
        for name in figure.chart.lines
    }
    for position, stage in enumerate(stages, 1):
        places |= {(stage.name, ANSWERS): f"answers-{position}"} if stage.stories else {}
        places |= {(stage.name, PAID): f"paid-{position}"} if stage.traits else {}
    return places


def looked_for(stage: StageRecord, part: str) -> str:
    """What it means that nothing was found among the rows of a part of the data."""
    arguments = stage.settings.get("init_args") or {}
    inside = arguments if part == "data" else (arguments.get(part) or {}).get("init_args") or {}
    settings = inside.get("data") or {}
    if settings.get("duplicates", "keep") == "keep" and settings.get("near_duplicates") is None:
        return "Duplicates were not looked for; duplicates: report, or near_duplicates: 0.8, would."
    return "Duplicates were looked for, and there are none."


def duration(seconds: float) -> str:
    """A span of time in its two largest units."""
    whole = round(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {whole % 60} s" if minutes else f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"

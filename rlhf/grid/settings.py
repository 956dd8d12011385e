"""What a grid is: its axes, seeds and metrics, read from YAML and checked as far as it goes without the experiment."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlhf.algorithms.ppo import PPO
from rlhf.algorithms.selection import Best
from rlhf.config import load
from rlhf.grid.axes import Axis, labels, read_axes
from rlhf.grid.executors.local import LocalPool
from rlhf.grid.measures import At
from rlhf.interfaces import Algorithm, Executor
from rlhf.registry import did_you_mean
from rlhf.yaml_files import read_yaml

COLUMNS = ("cell", "variant", "seed", "metric", "remark")
"""What tables of results have besides axes and metrics."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One number for each cell, taken from the figures of a stage.

    Args:
        name: Of the figure in ``metrics.jsonl``.
        stage: Whose figures; null is the last stage.
        at: Which of its values: the last; that at the best evaluation; the mean over the run (the area under the
            curve); or that where all cells have gone equally far from the reference, or have sampled as many tokens.
        by: Figure that says which evaluation is the best one; null is this metric's own.
        higher_is_better: Of ``by``, and of the metric in comparisons.
    """

    name: str
    stage: str | None = None
    at: At = "last"
    by: str | None = None
    higher_is_better: bool = True


@dataclass(frozen=True, kw_only=True)
class Grid:
    """An experiment run with every combination of some choices, and with several seeds.

    Args:
        name: Of the grid: its folder is ``<output_dir>/<name>``, with a folder for each cell.
        base: File of the experiment, or several that are merged as by ``python -m rlhf.run``; relative to the file that
            names them.
        axes: What varies, by name: choices by name, each the settings that it sets (``on: {stages.ppo.score_clip:
            5.0}``), spelt as on the command line of a run. An axis that is called by the path of a setting may be a
            list of its values, or give a name to each value.
        overrides: Settings of all cells, spelt as those of a choice; an axis that sets the same wins.
        seeds: Of the cells; null is the experiment's own alone.
        seed_stages: The stages that the seeds are for; the others keep the experiment's own, and are made once for all
            seeds. Null is all stages.
        zip: Groups of axes that move together, their first choices with one another and so on, where others are
            combined in every way.
        only_if: Axes that vary only where other axes have these choices (one or a list of them); elsewhere they set
            nothing.
        exclude: Combinations that are left out, as choices (one or a list of them) by axis.
        variants: Further cells by name: the baseline's choices, and then these settings.
        baseline: What the others are compared with: a choice for each axis that is not at its first one, or the name
            of a variant.
        metrics: What is compared, by name; the first is the main one.
        executor: Where the cells run, and how many at a time.
        output_dir: Folder of all runs.
    """

    name: str
    base: str | list[str]
    axes: dict[str, dict[str, Any] | list[Any]] = field(default_factory=dict)
    overrides: dict[str, Any] = field(default_factory=dict)
    seeds: list[int] | None = None
    seed_stages: list[str] | None = None
    zip: list[list[str]] = field(default_factory=list)
    only_if: dict[str, dict[str, Any]] = field(default_factory=dict)
    exclude: list[dict[str, Any]] = field(default_factory=list)
    variants: dict[str, dict[str, Any]] = field(default_factory=dict)
    baseline: str | dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Metric] = field(default_factory=dict)
    executor: Executor = LocalPool()
    output_dir: str = "runs"

    @property
    def directory(self) -> Path:
        """The grid's folder."""
        return Path(self.output_dir) / self.name

    @property
    def files(self) -> list[str]:
        """Of the experiment."""
        return [self.base] if isinstance(self.base, str) else list(self.base)

    def read_axes(self) -> list[Axis]:
        """The axes; of settings in which there is no problem."""
        return read_axes(self.axes, [])

    def problems(self) -> list[str]:
        """Those that can be seen without the experiment, each ``"<key>: <problem>; <remedy>"``."""
        problems = []
        if not self.name or self.name.startswith(".") or any(character in self.name for character in "/\\@"):
            problems.append(f"name: is {self.name!r}; must be a plain folder name")
        occupied = next((path for path in (self.directory, *self.directory.parents) if path.is_file()), None)
        if occupied is not None:
            problems.append(f"output_dir: {occupied} is a file, so no folder can be made there; give another")
        for key in ("seeds", "seed_stages"):
            problems += _check_list(key, getattr(self, key))
        problems += self._check_columns()
        for name, metric in self.metrics.items():
            if not metric.name:
                problems.append(f"metrics.{name}.name: is empty; name a figure of metrics.jsonl")
            if metric.by is not None and metric.at != "best":
                problems.append(
                    f"metrics.{name}.by: is {metric.by!r}, but only at: best looks for a best evaluation, and at is "
                    f"{metric.at}; leave it out"
                )
        return problems

    def _check_columns(self) -> list[str]:
        """Problems of what has a column in the table of results."""
        short = labels(self.axes)
        named = {
            **{f"axes.{axis}": short[axis] for axis in self.axes},
            **{f"metrics.{name}": name for name in self.metrics},
        }
        taken: dict[str, str] = dict.fromkeys(COLUMNS, "is a column that every table of results has")
        problems = []
        for place, column in named.items():
            if column in taken:
                problems.append(f"{place}: {column!r} {taken[column]}; rename this one")
            taken.setdefault(column, f"is the column of {place}, too")
        return problems

    def check_stages(self, stages: Mapping[str, Algorithm]) -> list[str]:
        """Problems with the stages of a cell."""
        named = {f"metrics.{name}.stage": [metric.stage] for name, metric in self.metrics.items() if metric.stage}
        named["seed_stages"] = self.seed_stages or []
        problems = [
            f"{key}: no stage is called '{name}'.{did_you_mean(name, stages)} There are: {', '.join(stages)}"
            for key, names in named.items()
            for name in names
            if name not in stages
        ]
        for name, metric in self.metrics.items():
            algorithm = stages.get(metric.stage or [*stages][-1])
            for key in ("name", "by"):
                problems += [f"metrics.{name}.{key}: {text}" for text in _check_figure(getattr(metric, key), algorithm)]
        return problems


def _check_figure(name: str | None, algorithm: Algorithm | None) -> list[str]:
    """Problems of a figure of an evaluation; others are known only when they are there."""
    if name is None or not name.startswith("eval/") or not isinstance(algorithm, PPO):
        return []
    if not algorithm.evaluation.every:
        return [f"is {name!r}, but evaluation.every of the stage is 0, so that nothing is evaluated; set it"]
    found = algorithm.evaluation.check_selection(
        Best(metric=name.removeprefix("eval/")),
        averaged=algorithm.averaging is not None,
        kl=algorithm.kl is not None,
        mixture=algorithm.mixture is not None,
    )
    return [problem.removeprefix("select.metric: ") for problem in found]


def _check_list(key: str, values: Sequence[object] | None) -> list[str]:
    if values is None:
        return []
    if not values:
        return [f"{key}: is empty; leave it out, or give at least one"]
    twice = sorted({str(value) for value in values if list(values).count(value) > 1})
    return [f"{key}: {', '.join(twice)} is given twice; name each once"] if twice else []


def load_grid(files: Sequence[str | Path], overrides: Sequence[tuple[str, Any]] = ()) -> Grid:
    """The grid of some files.

    Args:
        files: YAML files, merged key by key, the later one wins.
        overrides: Dotted key and text each, as from the command line.

    Returns:
        The grid, with its base's files as seen from the working directory. Its choices are checked with its cells.

    Raises:
        ConfigError: with every problem found.
    """
    grid: Grid = load(files, overrides, root=Grid)
    if any(key == "base" for key, *_ in overrides):
        return grid
    home = next(Path(path).parent for path in reversed(files) if "base" in read_yaml(path))
    return dataclasses.replace(grid, base=[str(home / Path(name).expanduser()) for name in grid.files])

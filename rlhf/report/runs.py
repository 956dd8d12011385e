"""What a run has left in its folder, read as it is: nothing of it is imported or built."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

from rlhf.errors import UserError
from rlhf.files import read_json, read_json_lines
from rlhf.metrics import read_metrics
from rlhf.stages.folder import DONE, METRICS, RECORD, STOPPED, read_done
from rlhf.yaml_files import read_yaml

State = Literal["finished", "failed", "interrupted", "unfinished", "not started"]


class Use(NamedTuple):
    """One stage reads what another left.

    Attributes:
        setting: Where in its settings, such as ``policy.path``.
        stage: The other stage.
        output: What of it: ``model`` or ``ema``.
    """

    setting: str
    stage: str
    output: str


class Series(NamedTuple):
    """One figure over the optimiser steps of a stage; lines that lack it, or where it is no number, are left out."""

    steps: list[float]
    values: list[float]
    iterations: list[float | None]


@dataclass(frozen=True, eq=False)
class StageRecord:
    """One stage of a run. Two records are never equal, so that what is worked out of one can be kept by it.

    Attributes:
        name: Of the stage.
        directory: Its folder, which need not be there.
        settings: ``class_path`` and ``init_args`` from the run's ``config.yaml``.
        uses: The earlier stages that it reads.
    """

    name: str
    directory: Path
    settings: dict[str, Any]
    uses: list[Use] = field(default_factory=list)

    @property
    def algorithm(self) -> str:
        """Name of the algorithm's class."""
        return str(self.settings.get("class_path", "?")).rpartition(".")[2]

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """The lines of ``metrics.jsonl``."""
        return read_metrics(self.directory)

    @cached_property
    def record(self) -> dict[str, Any]:
        """What it was run with: ``key``, ``versions``, ``inputs``, ``used_keys`` and more; empty before it starts."""
        return _json(self.directory / RECORD) or {}

    @cached_property
    def done(self) -> dict[str, Any] | None:
        """What the stage wrote when it ended; None before."""
        return read_done(self.directory) if (self.directory / DONE).exists() else None

    @cached_property
    def data(self) -> dict[str, dict[str, dict[str, Any]]]:
        """What its data came to: by part (``data``, ``mixture``) and source."""
        return {part: found for part, found in self._data_file.items() if part != "findings"}

    @cached_property
    def data_findings(self) -> dict[str, list[str]]:
        """What was found out about the rows as a whole, such as duplicates: lines by part."""
        return self._data_file.get("findings") or {}

    @cached_property
    def _data_file(self) -> dict[str, Any]:
        return _json(self.directory / "data.json") or {}

    @property
    def state(self) -> State:
        """How far it has come. ``unfinished``: it is running now, or was killed so that it could leave no word."""
        if self.done is not None:
            return "finished"
        if not (self.directory / RECORD).exists():
            return "not started"
        return "unfinished" if self._stopped is None else "failed" if self.ended_by else "interrupted"

    @property
    def ended_by(self) -> str:
        """First line of the error that ended it; "" where none did."""
        return str((self._stopped or {}).get("error") or "").partition("\n")[0]

    @cached_property
    def _stopped(self) -> dict[str, Any] | None:
        return _json(self.directory / STOPPED)

    @property
    def last_written(self) -> datetime | None:
        """When the latest figure was written."""
        path = self.directory / METRICS
        return datetime.fromtimestamp(path.stat().st_mtime).astimezone() if path.exists() else None

    @cached_property
    def names(self) -> list[str]:
        """The figures it has, in the order of their appearance."""
        names = dict.fromkeys(name for row in self.metrics for name in row)
        return [name for name in names if name not in ("step", "iteration")]

    def series(self, name: str) -> Series:
        """A figure over the steps."""
        rows = [row for row in self.metrics if row.get(name) is not None and "step" in row]
        return Series(
            [row["step"] for row in rows], [row[name] for row in rows], [row.get("iteration") for row in rows]
        )

    @cached_property
    def progress(self) -> dict[float, float]:
        """How many iterations were behind each optimiser step, in parts of one; empty where a stage has none."""
        ends: dict[float, float] = {0: 0}
        for row in self.metrics:
            if row.get("iteration") is not None and "step" in row:
                ends[row["iteration"]] = max(row["step"], ends.get(row["iteration"], 0))
        found: dict[float, float] = {}
        for iteration, last in ends.items():
            before = ends.get(iteration - 1, 0)
            found |= {before + at: iteration - 1 + at / (last - before) for at in range(1, int(last - before) + 1)}
        return {0: 0, **found} if len(ends) > 1 else {}

    def rollout_files(self, kind: str) -> dict[int, Path]:
        """``rollouts/<kind>_N.jsonl`` by N, in order."""
        found = {}
        for path in sorted((self.directory / "rollouts").glob(f"{kind}_*.jsonl")):
            number = path.stem.removeprefix(f"{kind}_")
            if number.isdigit():
                found[int(number)] = path
        return found

    def rows(self, path: Path) -> list[dict[str, Any]]:
        """The rows of a rollout file."""
        return read_json_lines(path)


@dataclass(frozen=True)
class RunRecord:
    """A run: its settings and its stages in order.

    Attributes:
        name: Of the run, unique among those shown together.
        directory: Its folder.
        config: Content of its ``config.yaml``: every setting.
        stages: In order.
    """

    name: str
    directory: Path
    config: dict[str, Any]
    stages: list[StageRecord]

    def stage(self, name: str) -> StageRecord | None:
        """The stage of that name, if it has one."""
        return next((stage for stage in self.stages if stage.name == name), None)


def read_run(directory: Path) -> RunRecord:
    """Reads what a run has left in its folder.

    Raises:
        UserError: the folder is not there, or no run's.
    """
    if not directory.is_dir():
        what = "is a file" if directory.exists() else "does not exist"
        raise UserError(f"{directory} {what}; give the folder of a run, such as runs/quickstart")
    path = directory / "config.yaml"
    if not path.is_file():
        if (directory / RECORD).exists():
            raise UserError(f"{directory} is one stage of a run; give the run's folder, {directory.resolve().parent}")
        raise UserError(f"{directory} has no config.yaml, so no run has been there; give the folder of a run")
    return record_of(directory, read_yaml(path))


def record_of(directory: Path, config: dict[str, Any]) -> RunRecord:
    """A run of known settings."""
    stages: list[StageRecord] = []
    for stage, settings in (config.get("stages") or {}).items():
        uses = [use for use in _uses(settings) if use.stage in [earlier.name for earlier in stages]]
        stages.append(StageRecord(stage, directory / stage, settings, uses))
    return RunRecord(str(config.get("name", directory.name)), directory, config, stages)


def read_runs(directories: list[Path]) -> list[RunRecord]:
    """Reads several runs; those of the same name are shown by their folders."""
    runs = [read_run(directory) for directory in directories]
    names = [run.name for run in runs]
    return [dataclasses.replace(run, name=str(run.directory)) if names.count(run.name) > 1 else run for run in runs]


def _uses(settings: Any, place: str = "") -> Iterator[Use]:
    """Every text that begins with ``@``, with its place among the settings."""
    if isinstance(settings, str) and settings.startswith("@"):
        stage, _, output = settings[1:].partition("/")
        yield Use(place, stage, output or "model")
    if isinstance(settings, list):
        settings = dict(enumerate(settings))
    for key, entry in settings.items() if isinstance(settings, dict) else ():
        # class_path and init_args are the file's spelling, not a setting's name.
        yield from _uses(entry, place if key == "init_args" else f"{place}.{key}" if place else str(key))


def _json(path: Path) -> Any:
    return read_json(path) if path.exists() else None

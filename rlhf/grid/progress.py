"""What a person sees while a grid runs: a table that lives in a terminal, a line for each event elsewhere."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rlhf.experiment import Experiment
from rlhf.grid.plan import work
from rlhf.loops.stage import SHOWN as ON_POLICY
from rlhf.progress import brief
from rlhf.stages.folder import DONE

SHOWN = (*ON_POLICY, "loss", "eval/loss", "accuracy")
"""Figures that are shown of a running cell, besides the grid's own metrics."""
TAIL = 1 << 16
"""Bytes at the end of a file of figures in which the last lines are looked for."""
EVERY = 1.0
"""Seconds between two looks at the files of running cells."""


class Position(NamedTuple):
    """How far a running cell is.

    Attributes:
        stage: Which one it makes; nothing while it starts.
        done: Steps or iterations of it that are made.
        total: Of how many; None where that follows from its data.
        figures: The newest of each name.
        part: Of the whole cell, 0 … 1: stages count alike.
    """

    stage: str
    done: int
    total: int | None
    figures: Mapping[str, float]
    part: float

    def told(self, metrics: Sequence[str]) -> str:
        """In one line."""
        if not self.stage:
            return "starts"
        of = "" if self.total is None else f"/{self.total}"
        shown = (*metrics, *(name for name in SHOWN if name not in metrics))
        return f"{self.stage} {self.done}{of}  {brief(self.figures, shown)}".rstrip()


def position(experiment: Experiment) -> Position:
    """How far a run is, by its files."""
    stages = list(experiment.stages)
    for index, (stage, algorithm) in enumerate(experiment.stages.items()):
        folder = experiment.directory / stage
        if (folder / DONE).exists():
            continue
        figures = _newest(folder / "metrics.jsonl")
        total = work(algorithm).rounds
        done = int(figures.get("iteration", figures.get("step", 0)))
        if not figures and index == 0:
            return Position("", 0, total, {}, 0.0)
        return Position(stage, done, total, figures, (index + (done / total if total else 0.0)) / len(stages))
    return Position(stages[-1], 0, None, {}, 1.0)


def _newest(path: Path) -> dict[str, float]:
    """The newest figure of each name among the last lines of a file that is being written."""
    found: dict[str, float] = {}
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
            lines = file.read().split(b"\n")
    except OSError:
        return found
    for line in lines:
        try:
            found |= {name: value for name, value in json.loads(line).items() if value is not None}
        except (ValueError, AttributeError):
            continue  # the first and the last may be half a line
    return found


class Running(NamedTuple):
    """A cell that runs: what it is, and since when."""

    experiment: Experiment
    since: float


class View:
    """The state of a grid on the screen.

    Args:
        name: Of the grid.
        total: How many cells it has.
        console: Where to print; a quiet one prints nothing.
        metrics: Figures that the grid compares.
    """

    def __init__(self, name: str, total: int, console: Console, metrics: Sequence[str] = ()) -> None:
        self.name, self.total, self.console, self.metrics = name, total, console, list(metrics)
        self.counts: dict[str, int] = {}
        self.running: dict[str, Running] = {}
        self.slots = 1
        self.seconds: list[float] = []
        """Of the cells that were run whole."""
        self._looked, self._positions = 0.0, dict[str, Position]()
        self.live: Live | None = None
        if console.is_terminal and not console.quiet:
            self.live = Live(console=console, auto_refresh=False)  # no thread: processes are forked beside it

    def __enter__(self) -> View:
        if self.live is not None:
            self.live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self.live is not None:
            self.live.update(Text(self.summary()), refresh=True)
            self.live.stop()

    def say(self, text: str) -> None:
        """A line that stays, with the time."""
        self.console.print(f"{time.strftime('%H:%M:%S')} {text}", soft_wrap=True, markup=False, highlight=False)

    def update(self) -> None:
        """Looks at the running cells, once in a while, and shows them where there is a terminal."""
        now = time.monotonic()
        if self.live is None or now - self._looked < EVERY:
            return
        self._looked = now
        self._positions = {name: position(running.experiment) for name, running in self.running.items()}
        self.live.update(self.picture(now), refresh=True)

    def summary(self) -> str:
        """How many cells are in which state."""
        told = ", ".join(f"{count} {state}" for state, count in self.counts.items() if count)
        return f"{self.name}: {told or 'no cell'} of {self.total}"

    def picture(self, now: float) -> RenderableType:
        """The running cells, and how many others there are."""
        table = Table(box=None, pad_edge=False, show_header=False)
        for _ in range(3):
            table.add_column(no_wrap=True, overflow="ellipsis")
        room = max(1, self.console.height - 4)
        for name in list(self.running)[:room]:
            elapsed = timedelta(seconds=round(now - self.running[name].since))
            table.add_row(Text(name, "bold"), Text(str(elapsed)), Text(self._positions[name].told(self.metrics)))
        left = self.left(now)
        ahead = "" if left is None else f", about {timedelta(seconds=round(left))} left"
        return Group(table, Text(self.summary() + ahead, "bold"))

    def left(self, now: float) -> float | None:
        """Seconds to the end by the cells that were run so far; None while none was."""
        if not self.seconds:
            return None
        mean = sum(self.seconds) / len(self.seconds)
        begun = sum(max(mean - (now - running.since), 0.1 * mean) for running in self.running.values())
        return (begun + mean * self.counts.get("waiting", 0)) / max(1, self.slots)


def indented(error: str) -> str:
    """An error's text below what it is said of."""
    return "\n".join(f"    {line}" for line in error.splitlines())

"""What a person sees while a stage runs: a progress bar in a terminal, a line now and then elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from datetime import timedelta
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column


def brief(metrics: Mapping[str, float], names: tuple[str, ...]) -> str:
    """The named figures that are there, in one line."""
    return "  ".join(f"{name} {metrics[name]:.3g}" for name in names if name in metrics)


class StageProgress:
    """Progress of one stage: a bar with the time left in a terminal, lines with the same elsewhere.

    Args:
        stage: Its name.
        total: Steps or iterations in all.
        done: Those made before, by the run that this one continues.
        console: Where to print; a quiet one prints nothing.
        line_every: Seconds between lines where there is no terminal; the last step always has its line.
    """

    def __init__(
        self, stage: str, total: int, *, done: int = 0, console: Console | None = None, line_every: float = 15.0
    ) -> None:
        self.stage, self.total, self.line_every = stage, total, line_every
        self.first = self.told = done
        self.console = console or Console(highlight=False)
        self.start = self.last_line = time.monotonic()
        self.bar: Progress | None = None
        if self.console.is_terminal and not self.console.quiet:
            self.bar = Progress(
                TextColumn(stage, style="bold", markup=False),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                # takes what room is left, so that in a narrow window the figures are cut and not the bar
                TextColumn("{task.description}", markup=False, table_column=Column(ratio=1, no_wrap=True)),
                console=self.console,
                expand=True,
                speed_estimate_period=math.inf,  # an iteration may take longer than the 30 seconds it looks back
            )
            self.task = self.bar.add_task("", total=total, completed=done)

    def __enter__(self) -> StageProgress:
        if self.bar is not None:
            self.bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self.bar is not None:
            self.bar.stop()

    def update(self, done: int, text: str, *, line: bool = False) -> None:
        """Moves the bar; without a terminal, prints a line when one is due.

        Args:
            done: Steps or iterations made.
            text: The figures to show.
            line: Whether a line is due in any case.
        """
        if self.bar is not None:
            self.bar.update(self.task, completed=done, description=text)
            return
        now = time.monotonic()
        due = line or done >= self.total or now - self.last_line >= self.line_every
        if due and done > self.told:
            left = (now - self.start) / (done - self.first) * (self.total - done)
            eta = f"  ({timedelta(seconds=round(left))} left)" if done < self.total else ""
            self.say(f"{self.stage} {done}/{self.total}  {text}{eta}")
            self.told, self.last_line = done, now

    def say(self, text: str) -> None:
        """A line above the bar."""
        self.console.print(text, soft_wrap=True, markup=False, highlight=False)

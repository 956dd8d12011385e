"""What a person sees while a stage runs: a progress bar in a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


def brief(metrics: Mapping[str, float], names: tuple[str, ...]) -> str:
    """The named figures that are there, in one line."""
    return "  ".join(f"{name} {metrics[name]:.3g}" for name in names if name in metrics)


class StageProgress:
    """Progress of one stage."""

    def __init__(self, stage: str, total: int, *, console: Console | None = None, line_every: float = 15.0) -> None:
        self.stage, self.total, self.line_every = stage, total, line_every
        self.console = console or Console(highlight=False)
        self.last_line = time.monotonic()
        self.bar: Progress | None = None
        if self.console.is_terminal:
            self.bar = Progress(
                TextColumn(f"[bold]{stage}"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.description}"),
                console=self.console,
            )
            self.task = self.bar.add_task("", total=total)

    def __enter__(self) -> StageProgress:
        if self.bar is not None:
            self.bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self.bar is not None:
            self.bar.stop()

    def update(self, done: int, text: str) -> None:
        """Moves the bar; without a terminal, prints a line every ``line_every`` seconds and at the end."""
        if self.bar is not None:
            self.bar.update(self.task, completed=done, description=text)
        elif done >= self.total or time.monotonic() - self.last_line >= self.line_every:
            self.console.print(f"{self.stage} {done}/{self.total}  {text}", soft_wrap=True)
            self.last_line = time.monotonic()

    def say(self, text: str) -> None:
        """A line above the bar."""
        self.console.print(text, soft_wrap=True, markup=False)

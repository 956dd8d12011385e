"""What runs the cells of a grid, as an interface: commands are started, and what became of them is asked."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple


class Job(NamedTuple):
    """A cell to be run.

    Attributes:
        name: Of the cell.
        arguments: What follows ``python`` on its command line.
        log: File to which its output is appended.
    """

    name: str
    arguments: Sequence[str]
    log: Path


class Ended(NamedTuple):
    """A job that runs no more.

    Attributes:
        name: Of its cell.
        code: Exit code; minus the number of the signal that killed it.
        why: What became of it, where the code and what it has said do not tell.
    """

    name: str
    code: int
    why: str = ""


class LiveExecutor(ABC):
    """Jobs that run. It decides nothing: which cell comes next is the grid's affair, and so is what is said of it."""

    slots: int
    """How many jobs it takes at once."""

    def adopt(self, jobs: Sequence[Job]) -> dict[str, str]:
        """Finds those of these jobs that an earlier grid has left running or waiting, on a cluster, say.

        They count as started from now on. Called once, before any other.

        Returns:
            By the name of each what it is called there, for people.
        """
        return {}

    @abstractmethod
    def start(self, job: Job) -> int | None:
        """Starts a job; the id of its process, where that is on this machine."""

    def flush(self) -> None:  # noqa: B027
        """Called when no further job is to be started for now: those started since may be handed on together."""

    @abstractmethod
    def ended(self) -> list[Ended]:
        """The jobs that have ended since this was last asked. Returns at once."""

    @abstractmethod
    def stop(self) -> None:
        """Asks all jobs to save and end, as SIGTERM does; asked once more, they end at once."""

    @abstractmethod
    def kill(self) -> None:
        """Ends all jobs, whatever they do, and returns when they have."""


class Executor(ABC):
    """Where the cells of a grid run, and how many at a time."""

    threads: int | None
    """CPU threads of a cell whose experiment leaves them open; None leaves torch's own choice."""

    @property
    @abstractmethod
    def slots(self) -> int:
        """How many cells run at a time."""

    @abstractmethod
    def open(self) -> LiveExecutor:
        """What runs the jobs.

        Raises:
            UserError: this machine lacks what the settings ask for.
        """

    def describe(self) -> str:
        """What each cell gets, for people."""
        return "torch's own number of threads" if self.threads is None else f"threads of each: {self.threads}"

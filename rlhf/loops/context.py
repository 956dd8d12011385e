"""What a loop is told about the stage it runs."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from rich.console import Console

from rlhf import distributed
from rlhf.data.cache import AUTO
from rlhf.engines.checkpoint import Checkpoints
from rlhf.interfaces import MetricSink
from rlhf.interruption import StopRequest
from rlhf.metrics import MetricsFile, NoMetrics


@dataclass(frozen=True, kw_only=True)
class StageContext:
    """Place and seed of a stage.

    Attributes:
        directory: Folder of the stage: metrics, rollouts, checkpoints, models.
        seed: Run seed; every stage and purpose derives its own from it.
        name: Of the stage, for people.
        sinks: Further metric sinks.
        console: Where to print; None for the terminal.
        stop: Whether somebody has asked the run to stop; a loop looks at it where it can save a checkpoint.
        cache_dir: Where prepared data are kept, see :class:`rlhf.Experiment`.
        keep_checkpoints: How many checkpoints are kept.
        save_in_background: Whether checkpoints are written while the training goes on.
    """

    directory: Path
    seed: int = 1
    name: str = "stage"
    sinks: Sequence[MetricSink] = ()
    console: Console | None = None
    stop: StopRequest = field(default_factory=StopRequest)
    cache_dir: str | None = AUTO
    keep_checkpoints: int = 2
    save_in_background: bool = False

    @property
    def writes(self) -> bool:
        """Whether this is the process that writes the stage's files; the others compute the same."""
        return distributed.is_main()

    def metrics(self) -> MetricsFile:
        """The stage's ``metrics.jsonl`` and sinks."""
        return MetricsFile(self.directory, self.sinks) if self.writes else NoMetrics()

    def checkpoints(self) -> Checkpoints:
        """The stage's checkpoints, written by all processes of the run."""
        return Checkpoints(
            self.directory / "checkpoints",
            keep=self.keep_checkpoints,
            background=self.save_in_background,
            rank=distributed.rank(),
            world_size=distributed.world_size(),
            total=distributed.total,
        )

    def part_dropout(self) -> None:
        """From here on each process draws from torch's random numbers for itself: those of dropout."""
        if distributed.rank():
            torch.manual_seed(self.seed_for(f"dropout/{distributed.rank()}"))

    def seed_for(self, purpose: str) -> int:
        """A seed of its own for each purpose, the same in every process: no two streams are correlated."""
        digest = hashlib.blake2b(f"{self.seed}/{purpose}".encode(), digest_size=4).digest()
        return int.from_bytes(digest, "big") >> 1

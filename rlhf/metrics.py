"""Where figures go: ``metrics.jsonl`` always, further sinks where asked."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import resource
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf.errors import UserError
from rlhf.files import read_json_lines
from rlhf.interfaces import LiveSink, MetricSink


class MetricsFile:
    """A stage's ``metrics.jsonl`` and its further sinks.

    One JSON object per optimiser step or evaluation. What is written after the last checkpoint is taken back when the
    stage resumes from it, so that no step is missing or doubled.
    """

    def __init__(self, directory: Path, sinks: Sequence[MetricSink] = ()) -> None:
        self.path = directory / "metrics.jsonl"
        directory.mkdir(parents=True, exist_ok=True)
        self.file = self.path.open("a", encoding="utf-8")
        self.sinks: list[LiveSink] = [sink.open(directory) for sink in sinks]

    def write(self, metrics: Mapping[str, float]) -> None:
        """Appends one line; a figure that is not finite is written as null, which JSON has."""
        line = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        self.file.write(json.dumps(line) + "\n")
        self.file.flush()
        for sink in self.sinks:
            sink.write(metrics)

    def position(self) -> int:
        """Bytes written so far, which are safe on disk then: a checkpoint may count on them."""
        self.file.flush()
        os.fsync(self.file.fileno())
        return self.file.tell()

    def rewind(self, position: int) -> None:
        """Forgets what was written after ``position``."""
        if (there := os.fstat(self.file.fileno()).st_size) < position:
            raise UserError(
                f"{self.path} has {there} bytes, but the checkpoint was made after {position}; put the file back, "
                "or run the stage anew"
            )
        self.file.truncate(position)
        self.file.seek(position)

    def close(self) -> None:
        """Closes the file and the sinks."""
        self.file.close()
        for sink in self.sinks:
            sink.close()


def peak_memory_gb() -> float:
    """Most memory that this process has held so far."""
    unit = 2**30 if sys.platform == "darwin" else 2**20  # macOS counts bytes, Linux kibibytes
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def read_metrics(directory: Path) -> list[dict[str, float]]:
    """The lines of a stage's ``metrics.jsonl``."""
    path = directory / "metrics.jsonl"
    return read_json_lines(path) if path.exists() else []


class _TensorBoardWriter(LiveSink):
    def __init__(self, directory: Path) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        self.writer: Any = SummaryWriter(str(directory / "tensorboard"))

    def write(self, metrics: Mapping[str, float]) -> None:
        step = int(metrics["step"])
        for name, value in metrics.items():
            if name != "step":
                self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        self.writer.close()


@dataclass(frozen=True, kw_only=True)
class TensorBoard(MetricSink):
    """TensorBoard event files in the stage's ``tensorboard/``; needs the extra ``rlhf[tensorboard]``."""

    def __post_init__(self) -> None:
        if importlib.util.find_spec("tensorboard") is None:
            raise UserError("TensorBoard: the package tensorboard is missing; pip install 'rlhf[tensorboard]'")

    def open(self, directory: Path) -> LiveSink:
        return _TensorBoardWriter(directory)

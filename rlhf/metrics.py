"""Where figures go: ``metrics.jsonl`` always, further sinks where asked."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import resource
import sys
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rlhf.errors import UserError
from rlhf.files import atomic_text, read_json_lines, refusals_named
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
        with refusals_named(self.path):
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


class NoMetrics(MetricsFile):
    """Stands where another process writes the figures."""

    def __init__(self) -> None:
        pass

    def write(self, metrics: Mapping[str, float]) -> None:
        pass

    def position(self) -> int:
        return 0

    def rewind(self, position: int) -> None:
        pass

    def close(self) -> None:
        pass


def peak_memory_gb() -> float:
    """Most memory that this process has held so far."""
    unit = 2**30 if sys.platform == "darwin" else 2**20  # macOS counts bytes, Linux kibibytes
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def read_metrics(directory: Path) -> list[dict[str, float]]:
    """The lines of a stage's ``metrics.jsonl``."""
    path = directory / "metrics.jsonl"
    return read_json_lines(path) if path.exists() else []


def _check_installed(sink: str, package: str) -> None:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:  # without an origin it is a folder of that name, such as what W&B leaves
        raise UserError(f"{sink}: the package {package} is missing; pip install 'rlhf[{package}]'")


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
        _check_installed("TensorBoard", "tensorboard")

    def open(self, directory: Path) -> LiveSink:
        return _TensorBoardWriter(directory)


class _WandBRun(LiveSink):
    """A stage as a run of W&B.

    What W&B has got cannot be taken back, so ``wandb.json`` keeps the run's id and the last step that was given. A
    stage that continues from an earlier step makes those between again, and they are not given twice.
    """

    def __init__(self, settings: WandB, directory: Path) -> None:
        import wandb
        from wandb.errors import Error

        self.record = directory / "wandb.json"
        former = json.loads(self.record.read_text(encoding="utf-8")) if self.record.exists() else None
        self.id: str = former["id"] if former else uuid.uuid4().hex
        self.given: int = former["step"] if former else -1
        stage = directory / "stage.json"  # the stage's settings, where an experiment runs it
        try:
            self.run = wandb.init(
                project=settings.project,
                entity=settings.entity,
                name=settings.name or f"{directory.parent.name}/{directory.name}",
                group=directory.parent.name,
                mode=settings.mode,
                id=self.id,
                resume="allow" if settings.mode == "online" else None,
                dir=str(directory),
                config=json.loads(stage.read_text(encoding="utf-8"))["settings"] if stage.exists() else None,
                reinit="create_new",
                settings=wandb.Settings(console="off", quiet=True),
            )
        except Error as error:
            raise UserError(f"WandB: {error}; run wandb login, or set mode to offline") from error

    def write(self, metrics: Mapping[str, float]) -> None:
        step = int(metrics["step"])
        if step <= self.given:
            return
        # first, so that a crash in between loses a line rather than doubling it
        atomic_text(self.record, json.dumps({"id": self.id, "step": step}))
        self.run.log({name: value for name, value in metrics.items() if name != "step"}, step=step)

    def close(self) -> None:
        self.run.finish()


@dataclass(frozen=True, kw_only=True)
class WandB(MetricSink):
    """Weights & Biases: each stage is a run, those of an experiment a group; needs the extra ``rlhf[wandb]``.

    A stage that is resumed goes on in the same run, and steps that were logged before are not logged again. Offline,
    each start writes a folder of its own in the stage's ``wandb/``, which ``wandb sync`` sends.

    Args:
        project: Project of W&B.
        entity: User or team; null for your default.
        name: Of the run, the same for all stages; null for ``<experiment>/<stage>``.
        mode: ``online``; ``offline`` to send later; ``disabled`` for nothing.
    """

    project: str = "rlhf"
    entity: str | None = None
    name: str | None = None
    mode: Literal["online", "offline", "disabled"] = "online"

    def __post_init__(self) -> None:
        if not self.project:
            raise UserError("project: it is empty; name a project of W&B")
        _check_installed("WandB", "wandb")

    def open(self, directory: Path) -> LiveSink:
        return _WandBRun(self, directory)

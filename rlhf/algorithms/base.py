"""Settings and checks that algorithms share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from rlhf.algorithms.optimizers import AdamW
from rlhf.algorithms.schedules import Constant
from rlhf.data.dataset import Data
from rlhf.engines.local import Local
from rlhf.errors import require
from rlhf.interfaces import Engine, OfflineAlgorithm, Optimizer, Schedule
from rlhf.types import Selectable

M = TypeVar("M", bound=Selectable)


def check_positive(**values: float | None) -> list[str]:
    """Problems of settings that must be at least 1 where they are given."""
    return [
        f"{name}: is {value}; must be at least 1" for name, value in values.items() if value is not None and value < 1
    ]


def check_batch(batch_size: int, engine: Engine, *, name: str = "batch_size") -> list[str]:
    """Problems of a global batch that must be cut into equal micro-batches over all processes (case H4)."""
    micro = engine.micro_batch_size or 1
    unit = micro * engine.world_size
    if batch_size % unit == 0:
        return []
    return [
        f"{name}: {batch_size} % {unit} = {batch_size % unit}, not 0: the batch must be cut into micro-batches of "
        f"{micro} on each of {engine.world_size} processes; make {name} a multiple of {unit}, or change "
        "engine.micro_batch_size"
    ]


@dataclass(frozen=True, kw_only=True)
class Offline(OfflineAlgorithm[M]):
    """Settings of learning from fixed data.

    Args:
        data: What to learn from.
        epochs: Passes over the training rows; ignored where ``steps`` is given.
        steps: Optimiser steps; null follows from ``epochs``.
        batch_size: Rows (pairs, for comparisons) per optimiser step over all processes.
        optimizer: How gradients become weight changes.
        schedule: Learning rate over the stage.
        max_grad_norm: Gradients are scaled down to this global norm; null leaves them.
        eval_every: Optimiser steps between evaluations on the held-out rows; 0 only after the last.
        save_every: Optimiser steps between checkpoints; 0 none.
        engine: Where and how the model runs.
    """

    data: Data
    epochs: float = 1.0
    steps: int | None = None
    batch_size: int = 32
    optimizer: Optimizer = AdamW()
    schedule: Schedule = Constant()
    max_grad_norm: float | None = 1.0
    eval_every: int = 0
    save_every: int = 0
    engine: Engine = Local()

    def __post_init__(self) -> None:
        require(at_least=0, eval_every=self.eval_every, save_every=self.save_every)
        require(above=0, epochs=self.epochs, max_grad_norm=self.max_grad_norm)

    def check(self) -> list[str]:
        problems = check_positive(batch_size=self.batch_size, steps=self.steps)
        return problems or check_batch(self.batch_size, self.engine)

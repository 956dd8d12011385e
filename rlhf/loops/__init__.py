"""The loops that algorithms run in, and which loop an algorithm's family runs in."""

from __future__ import annotations

from functools import singledispatch
from pathlib import Path
from typing import Any, Protocol

from rlhf.algorithms.base import Offline
from rlhf.algorithms.ppo import PPO
from rlhf.interfaces import Algorithm
from rlhf.loops.context import StageContext


class Stage(Protocol):
    """A stage ready to run."""

    def fit(self) -> dict[str, float]:
        """Runs it and leaves its outputs in the stage's folder; returns the last figures."""
        ...

    def resume(self, checkpoint: Path) -> None:
        """Takes up the state of a checkpoint, from which ``fit`` is to go on; changes no file."""
        ...


@singledispatch
def build_stage(algorithm: Algorithm, context: StageContext) -> Stage:
    """Loads data and models of an algorithm.

    A new family of algorithms registers its loop: ``@build_stage.register``.
    """
    raise TypeError(
        f"no loop is registered for {type(algorithm).__name__}; derive it from Offline or PPO, or register a loop with "
        "rlhf.loops.build_stage.register"
    )


@build_stage.register
def _(algorithm: Offline, context: StageContext) -> Stage:
    from rlhf.loops.offline import OfflineTrainer

    trainer: OfflineTrainer[Any] = OfflineTrainer(algorithm, context)
    return trainer


@build_stage.register
def _(algorithm: PPO, context: StageContext) -> Stage:
    from rlhf.loops.stage import OnlineStage

    return OnlineStage(algorithm, context)

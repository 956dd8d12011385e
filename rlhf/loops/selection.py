"""Which weights of an on-policy stage become ``model/``: those of the best evaluation are kept until then."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from rlhf import distributed
from rlhf.engines.manifest import Damaged, read_manifest
from rlhf.errors import UserError
from rlhf.files import atomic_folder
from rlhf.interfaces import SelectionByEvaluation
from rlhf.stages.folder import BEST, link_tree

if TYPE_CHECKING:
    from rlhf.loops.online import OnlineTrainer


class Export(Protocol):
    """Writes the policy, or its average, into a folder of the stage."""

    def __call__(self, output: str, *, averaged: bool = False) -> None: ...


@dataclass(frozen=True)
class Kept:
    """The weights of an evaluation, in ``best/<name>``.

    Attributes:
        name: Of their folder.
        step: Optimiser steps made then.
        iteration: Rollouts learned from then.
        value: How good they are; more is better.
        text: The figure that says so, and its value.
    """

    name: str
    step: int
    iteration: int
    value: float
    text: str


class Selector:
    """Carries out a stage's ``select``.

    The weights of each evaluation that is the best so far are written to ``best/iteration_N``, whole or not at all. A
    checkpoint names the one that was the best when it was made, and that folder stays as long as the checkpoint: a run
    that goes on from it finds what it would have had.

    Args:
        trainer: Of the stage.
        export: Writes its weights.
    """

    def __init__(self, trainer: OnlineTrainer, export: Export) -> None:
        self.trainer, self.export = trainer, export
        self.settings = trainer.algorithm.select
        self.directory = trainer.context.directory
        self.best: Kept | None = None
        self._in_newest = ""
        """What was the best when the newest checkpoint was begun, which may still be on its way to the disk."""
        self._others: list[str] = []

    # ---------------------------------------------------------------------------------------------------- evaluations

    def observe(self, figures: Mapping[str, float]) -> dict[str, float]:
        """Keeps the weights that were evaluated where they are the best so far.

        Args:
            figures: Of an evaluation.

        Returns:
            ``select/step`` and ``select/iteration`` of those that are the best now; nothing where no evaluation counts.
        """
        if not isinstance(self.settings, SelectionByEvaluation):
            return {}
        worth, trainer = self.settings.worth(figures), self.trainer
        better = worth.value == worth.value and (self.best is None or worth.value > self.best.value)
        if distributed.broadcast(better):  # a judge may have answered each process otherwise
            name = f"iteration_{trainer.iteration}"
            self.export(f"{BEST}/{name}", averaged=worth.averaged)
            self.best = Kept(name, trainer.steps, trainer.iteration, worth.value, worth.text)
            self._prune()
        if self.best is None:
            return {}
        return {"select/step": self.best.step, "select/iteration": self.best.iteration}

    def _prune(self) -> None:
        """Removes what is not the best any more, and was not when a checkpoint that is there was made."""
        if not self.trainer.context.writes:
            return
        needed = {self._in_newest, "" if self.best is None else self.best.name}
        for path in (self.directory / "checkpoints").glob("step_*"):
            try:
                needed.add(read_manifest(path)["about"].get(BEST, ""))
            except Damaged:  # nobody goes on from it
                continue
        for path in (self.directory / BEST).glob("*"):
            if path.name not in needed:
                shutil.rmtree(path, ignore_errors=True)

    # -------------------------------------------------------------------------------------------------------- the end

    def save(self) -> None:
        """Writes ``model/``, once all checkpoints are on the disk."""
        if self.settings.evaluates:
            self._prune()
        if self.best is None:
            self.export("model", averaged=self.settings.averaged)
        elif self.trainer.context.writes:
            with atomic_folder(self.directory / "model") as folder:
                link_tree(self.directory / BEST / self.best.name, folder)

    def notes(self) -> list[str]:
        """What is to be said at the end."""
        if self.settings.averaged:
            return ["model/ has the average's weights"]
        if not self.settings.evaluates:
            return []
        if self.best is None:
            return [*self._others, "no evaluation had a number to select by, so model/ has the last weights"]
        of = f"iteration {self.best.iteration} of {self.trainer.iteration} (step {self.best.step})"
        return [*self._others, f"model/ has the weights of {of}, the best evaluation: {self.best.text}"]

    # ---------------------------------------------------------------------------------------------------- checkpoints

    def state_dict(self) -> dict[str, Any]:
        """What is the best so far, by which selection."""
        best = None if self.best is None else dataclasses.asdict(self.best)
        return {"settings": repr(self.settings), "best": best}

    def about(self) -> dict[str, str]:
        """What a checkpoint says of it to whoever does not load it."""
        return {} if self.best is None else {BEST: self.best.name}

    def saved(self) -> None:
        """Called when a checkpoint with :meth:`state_dict` has been begun, and so all earlier ones are on the disk."""
        self._in_newest = "" if self.best is None else self.best.name
        if self.settings.evaluates:
            self._prune()

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Goes on from a checkpoint; one of another selection says nothing of this one's best."""
        if not self.settings.evaluates:
            return
        if state is None or state["settings"] != repr(self.settings):
            self._others = ["the checkpoint was made with another select, so evaluations before it do not count"]
        elif state["best"] is not None:
            self.best = Kept(**state["best"])

    def check(self) -> None:
        """Refuses to go on without the weights that a checkpoint counts on.

        Raises:
            UserError: they are not in the stage's folder.
        """
        distributed.once(self._check)  # which the main process may only now have put in place

    def _check(self) -> None:
        if self.best is not None and not (path := self.directory / BEST / self.best.name).is_dir():
            raise UserError(
                f"{path} is not there, and the checkpoint counts on it as the best evaluation so far "
                f"({self.best.text}); put it back, or begin the stage anew with --resume never"
            )

"""Step checkpoints: everything needed to continue a stage exactly."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlhf.errors import UserError
from rlhf.files import atomic_folder, atomic_text


def rng_state() -> dict[str, Any]:
    """States of the global random number generators."""
    return {"torch": torch.get_rng_state(), "numpy": np.random.get_state(), "python": random.getstate()}


def restore_rng(state: dict[str, Any]) -> None:
    """Puts the global random number generators back."""
    torch.set_rng_state(state["torch"])
    np.random.set_state(state["numpy"])
    random.setstate(state["python"])


class Checkpoints:
    """The checkpoints of one stage: ``step_N/state.pt``, and ``latest`` naming the newest complete one."""

    def __init__(self, directory: Path, *, keep: int = 2) -> None:
        self.directory = directory
        self.keep = keep

    def save(self, step: int, state: dict[str, Any]) -> Path:
        """Writes a checkpoint, then points ``latest`` at it, then removes those beyond ``keep``."""
        target = self.directory / f"step_{step}"
        with atomic_folder(target) as folder:
            torch.save(state, folder / "state.pt")
        atomic_text(self.directory / "latest", target.name)
        complete = {int(path.name.removeprefix("step_")): path for path in self.directory.glob("step_*")}
        for old in sorted(number for number in complete if number <= step)[: -self.keep]:
            shutil.rmtree(complete[old])
        return target

    def load(self) -> dict[str, Any] | None:
        """The newest checkpoint's state, or None where there is none.

        Raises:
            UserError: it is not there any more, or cannot be read.
        """
        pointer = self.directory / "latest"
        if not pointer.exists():
            return None
        path = self.directory / pointer.read_text(encoding="utf-8").strip() / "state.pt"
        try:
            return torch.load(path, weights_only=False)
        except Exception as error:  # a damaged file may fail in any way
            others = sorted(other.name for other in self.directory.glob("step_*") if other != path.parent)
            reason = " ".join(str(error).split())[:200]
            raise UserError(
                f"{path}, which {pointer} names, cannot be read ({reason}); write the name of another checkpoint there "
                f"({', '.join(others) or 'there is none'}), or remove {self.directory} to run the stage anew"
            ) from error

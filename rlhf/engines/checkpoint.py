"""Step checkpoints: everything needed to continue a stage exactly."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch


def rng_state() -> dict[str, Any]:
    """States of the global random number generators."""
    return {"torch": torch.get_rng_state(), "numpy": np.random.get_state(), "python": random.getstate()}


def restore_rng(state: dict[str, Any]) -> None:
    """Puts the global random number generators back."""
    torch.set_rng_state(state["torch"])
    np.random.set_state(state["numpy"])
    random.setstate(state["python"])


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def publish(temporary: Path, target: Path) -> None:
    """Gives a completely written folder its name: it is there whole, or not at all.

    An older folder of the same name stays until the new one is safe on disk.
    """
    for path in temporary.rglob("*"):
        if path.is_file():
            _sync(path)
    _sync(temporary)
    former = target.with_name(f".{target.name}.former")  # hidden: what a crash leaves is no checkpoint
    shutil.rmtree(former, ignore_errors=True)
    if target.exists():
        target.rename(former)
    temporary.rename(target)
    _sync(target.parent)
    shutil.rmtree(former, ignore_errors=True)


class Checkpoints:
    """The checkpoints of one stage: ``step_N/state.pt``, and ``latest`` naming the newest complete one."""

    def __init__(self, directory: Path, *, keep: int = 2) -> None:
        self.directory = directory
        self.keep = keep

    def save(self, step: int, state: dict[str, Any]) -> Path:
        """Writes a checkpoint, then points ``latest`` at it, then removes those beyond ``keep``."""
        self.directory.mkdir(parents=True, exist_ok=True)
        target = self.directory / f"step_{step}"
        temporary = self.directory / f".step_{step}.partial"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        torch.save(state, temporary / "state.pt")
        publish(temporary, target)
        pointer = self.directory / ".latest.partial"
        pointer.write_text(target.name, encoding="utf-8")
        _sync(pointer)
        pointer.replace(self.directory / "latest")
        complete = {int(path.name.removeprefix("step_")): path for path in self.directory.glob("step_*")}
        for old in sorted(number for number in complete if number <= step)[: -self.keep]:
            shutil.rmtree(complete[old])
        return target

    def load(self) -> dict[str, Any] | None:
        """The newest checkpoint's state, or None where there is none."""
        pointer = self.directory / "latest"
        if not pointer.exists():
            return None
        path = self.directory / pointer.read_text(encoding="utf-8").strip() / "state.pt"
        return torch.load(path, weights_only=False)

"""What is saved of a number that is not finite, to look into it later."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from rlhf import distributed
from rlhf.errors import NonFiniteError
from rlhf.files import atomic_file
from rlhf.interfaces import Algorithm

DUMP = "nan_dump.pt"


@contextmanager
def nan_dumped(directory: Path, algorithm: Algorithm) -> Iterator[None]:
    """Saves the evidence of a ``NonFiniteError`` raised inside, and adds to its message where.

    ``torch.load(path, weights_only=False)`` gives a dict: ``algorithm`` (the settings), ``step``, ``first`` (the first
    tensor that is not finite), ``model`` and ``pass``; ``dump["pass"].find(dump["model"])`` finds it again. Where a
    score is not finite: ``algorithm``, ``rollout`` and ``scores``.

    Args:
        directory: The stage's folder.
        algorithm: What the stage runs.
    """
    try:
        yield
    except NonFiniteError as error:
        if not distributed.is_main():
            raise
        path = directory / DUMP
        try:
            directory.mkdir(parents=True, exist_ok=True)
            with atomic_file(path) as partial, partial.open("wb") as file:
                torch.save({"algorithm": algorithm, **error.evidence}, file)
            where = f"all that shows it again is in {path}"
        except Exception as problem:  # a foreign object may refuse to be saved in any way; the NaN is the news
            where = f"what shows it could not be saved ({type(problem).__name__}: {problem})"
        error.args = (f"{error}; {where}",)
        raise

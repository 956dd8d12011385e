"""Step checkpoints: everything needed to continue a stage exactly, written by all of its processes together.

::

    step_4/manifest.json   step, number of processes, sizes and checksums of the other files
    step_4/state.pt        what is the same in every process (positions, coefficients), written by rank 0
    step_4/rank_0.pt …     what is a process's own: its shards of models and optimisers, its random numbers
    latest                 name of the newest

All processes write into one temporary folder. Rank 0 then writes the manifest, gives the folder its name and points
``latest`` at it, in this order and each on the disk before the next: wherever that is cut, an older one is whole.
"""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch

from rlhf.engines.manifest import MANIFEST, SHARED, Damaged, check_files, own_file, read_manifest
from rlhf.errors import UserError
from rlhf.files import (
    SummedFile,
    atomic_text,
    begin_folder,
    full_disk_named,
    put_in_place,
    recover_folder,
    refusals_named,
)


def rng_state() -> dict[str, Any]:
    """States of the global random number generators; that of the GPU where one is in use."""
    state = {"torch": torch.get_rng_state(), "numpy": np.random.get_state(), "python": random.getstate()}
    return {**state, "cuda": torch.cuda.get_rng_state()} if torch.cuda.is_initialized() else state


def restore_rng(state: dict[str, Any]) -> None:
    """Puts the global random number generators back."""
    torch.set_rng_state(state["torch"])
    np.random.set_state(state["numpy"])
    random.setstate(state["python"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


@contextmanager
def fitting(path: Path) -> Iterator[None]:
    """Inside, what a checkpoint holds is given to those who go on from it: a refusal has its name.

    Raises:
        UserError: it is of another model, optimiser or data.
    """
    try:
        yield
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    except (RuntimeError, ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise UserError(
            f"{path} does not fit this stage ({reason}); a checkpoint continues a stage of the same models, optimiser "
            "and data only"
        ) from error


@dataclass(frozen=True)
class Loaded:
    """A checkpoint that was read.

    Attributes:
        path: Its folder.
        shared: What is the same in every process.
        own: What is this process's; empty where the checkpoint is of another number of processes.
        notes: Newer checkpoints that were passed over, and why, and what cannot be exact; for the log.
    """

    path: Path
    shared: dict[str, Any]
    own: dict[str, Any]
    notes: tuple[str, ...] = ()

    def remarks(self, engine: str) -> list[str]:
        """The notes, and what another engine than that of the checkpoint cannot do exactly.

        Args:
            engine: Its settings, as text; a checkpoint has those it was made with under ``engine_settings``.
        """
        made_by = self.shared.get("engine_settings", engine)
        if not self.own or made_by == engine:
            return [*self.notes]
        other = f"{self.path.name} was made by {made_by}, and {engine} goes on: sums may be cut otherwise"
        return [*self.notes, f"{other}, so the last digits may differ"]


class _Writing:
    """A checkpoint on its way to the disk."""

    def __init__(self, target: Path, step: int, about: Mapping[str, Any]) -> None:
        self.target, self.step, self.about = target, step, about
        self.folder = target.with_name(f".{target.name}.new")
        self.thread: threading.Thread | None = None
        self.error: Exception | None = None


class Checkpoints:
    """The checkpoints of one stage.

    Every process makes its own, and all call each method alike. A failure in one process is an error in all of them, so
    that nobody waits for somebody who has given up.

    Args:
        directory: Where they are, on a disk that all processes share.
        keep: How many are kept.
        background: Whether a thread writes them, from a copy in memory, while the training goes on. They are given
            their names by :meth:`poll`, :meth:`finish` or the next :meth:`save`, where what the thread met is raised.
        rank: Number of this process.
        world_size: Number of processes.
        total: Sum of a number over all processes, for which each of them waits: an engine's ``total``. It is called
            from the thread that calls the methods, never from the background.
    """

    def __init__(
        self,
        directory: Path,
        *,
        keep: int = 2,
        background: bool = False,
        rank: int = 0,
        world_size: int = 1,
        total: Callable[[float], float] = float,
    ) -> None:
        self.directory = directory
        self.keep = keep
        self.background = background
        self.rank, self.world_size, self.total = rank, world_size, total
        self._writing: _Writing | None = None

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Waits for the background. Where the block failed in one of several processes, the others cannot be asked."""
        if error is None:
            self.finish()
        elif self._writing is not None:
            if self._writing.thread is not None:
                self._writing.thread.join()
            if self.world_size == 1:
                try:
                    self.finish()
                except Exception as late:  # the block's own error is the one to be told
                    error.args = (f"{error} (besides, a checkpoint could not be written: {late})", *error.args[1:])

    # ----------------------------------------------------------------------------------------------------------- save

    def save(
        self, step: int, shared: dict[str, Any], own: dict[str, Any], *, about: Mapping[str, Any] | None = None
    ) -> None:
        """Writes a checkpoint, then points ``latest`` at it, then removes those beyond ``keep``.

        Args:
            step: Optimiser steps made.
            shared: What is the same in every process; rank 0's is written.
            own: What is this process's.
            about: Plain values for whoever looks at it without loading it.

        Raises:
            OSError: the disk is full, say; what was there before is as it was.
            UserError: the folder that the checkpoints belong to has gone.
        """
        self.finish()
        writing = _Writing(self.directory / f"step_{step}", step, about or {})
        parts = {own_file(self.rank): own}
        if self.rank == 0:
            parts[SHARED] = shared
        self._together(lambda: self._begin(writing) if self.rank == 0 else None)
        self._writing = writing
        if not self.background:
            self._write(writing, {name: _saver(state) for name, state in parts.items()})
            self.finish()
            return
        copies = {name: _copier(state) for name, state in parts.items()}
        writing.thread = threading.Thread(target=self._write, args=(writing, copies), name=f"save {step}")
        writing.thread.start()

    def poll(self) -> None:
        """Completes a checkpoint that all have written by now; to be called after each step."""
        if self._writing is None or self._writing.thread is None:
            return
        if self.total(float(not self._writing.thread.is_alive())) == self.world_size:
            self.finish()

    def finish(self) -> None:
        """Waits for a checkpoint that is being written, and completes it."""
        writing, self._writing = self._writing, None
        if writing is None:
            return
        if writing.thread is not None:
            writing.thread.join()
        try:
            self._together(lambda: _raise(writing.error))
        except BaseException:
            if self.rank == 0:
                shutil.rmtree(writing.folder, ignore_errors=True)
            raise
        self._together(lambda: self._complete(writing) if self.rank == 0 else None)

    def _together(self, action: Callable[[], None]) -> None:
        """Does something, waits for the others, and fails where any of them has."""
        error: Exception | None = None
        try:
            action()
        except Exception as met:
            error = met
        failed = self.total(float(error is not None))
        if error is not None:
            raise error
        if failed:
            raise UserError(
                f"{self.directory}: another process could not do its part of a checkpoint; its own message says why"
            )

    def _begin(self, writing: _Writing) -> None:
        stage = self.directory.parent
        if not stage.is_dir():  # made at its start, with the record that a checkpoint is worth nothing without
            raise UserError(
                f"{stage}: the stage's folder was removed while the stage ran, so that no checkpoint in it could go on "
                "later; the stage ends here. Run the same command again"
            )
        with refusals_named(writing.target):
            self.directory.mkdir(exist_ok=True)
            self._recover()
            for leftover in self.directory.glob(".step_*"):
                shutil.rmtree(leftover, ignore_errors=True)
            begin_folder(writing.target)

    def _recover(self) -> None:
        for old in self.directory.glob(".step_*.old"):
            recover_folder(self.directory / old.name[1:].removesuffix(".old"))

    def _write(self, writing: _Writing, parts: Mapping[str, Callable[[SummedFile], None]]) -> None:
        """This process's files, and a note of their sums for rank 0."""
        try:
            with refusals_named(writing.target), full_disk_named(writing.folder, writing.target):
                sums = {}
                for name, write in parts.items():
                    with (writing.folder / name).open("wb") as file:
                        summed = SummedFile(file)
                        write(summed)
                        summed.flush()
                        os.fsync(file.fileno())
                    sums[name] = summed.sums()
                (writing.folder / f".sums_{self.rank}").write_text(json.dumps(sums), encoding="utf-8")
        except Exception as error:
            writing.error = error

    def _complete(self, writing: _Writing) -> None:
        files: dict[str, Any] = {}
        with refusals_named(writing.target):
            for rank in range(self.world_size):
                note = writing.folder / f".sums_{rank}"
                if not note.exists():
                    raise UserError(
                        f"{writing.folder}: the part of process {rank} is not there; put output_dir on a disk that "
                        "all processes share"
                    )
                files |= json.loads(note.read_text(encoding="utf-8"))
                note.unlink()
            manifest = {"step": writing.step, "world_size": self.world_size, "about": writing.about, "files": files}
            atomic_text(writing.folder / MANIFEST, json.dumps(manifest, indent=2))
            put_in_place(writing.target)
            atomic_text(self.directory / "latest", writing.target.name)
            self._rotate(writing.step)

    def _rotate(self, step: int) -> None:
        there = self._numbered()
        for old in sorted(number for number in there if number <= step)[: -self.keep]:
            shutil.rmtree(there[old])

    def _numbered(self) -> dict[int, Path]:
        names = {path.name.removeprefix("step_"): path for path in self.directory.glob("step_*")}
        return {int(number): path for number, path in names.items() if number.isdecimal()}

    # ----------------------------------------------------------------------------------------------------------- load

    def load(self, path: Path | None = None) -> Loaded | None:
        """The newest checkpoint that is whole, or None where there has never been one.

        Args:
            path: The folder of a checkpoint, here or elsewhere, which is to be taken and no other.

        Raises:
            UserError: there are some, but none of them is whole.
        """
        self._together(lambda: self._recover() if self.rank == 0 else None)
        candidates, notes = ([path], []) if path is not None else self._candidates()
        for path in candidates:
            found, problem = self._read(path)
            if not self.total(float(found is None)):
                assert found is not None
                notes = [f"{note}; going on from {path.name}" for note in notes]
                if not found[1]:
                    notes.append(
                        f"{path.name} is of another number of processes: weights, optimisers and positions go on, but "
                        "sums are cut otherwise, so the last digits differ, and dropout draws anew"
                    )
                return Loaded(path, *found, tuple(notes))
            notes.append(f"{path} is damaged: {problem or 'another process cannot read its part'}")
        if notes:
            raise UserError(
                f"{'; '.join(notes)}; there is no other to go on from. Put one back, or begin the stage anew with "
                "--resume never"
            )
        return None

    def _candidates(self) -> tuple[list[Path], list[str]]:
        """What may be loaded, newest first: what ``latest`` names and those before it; and what is wrong with that."""
        there, pointer = self._numbered(), self.directory / "latest"
        newest_first = [there[number] for number in sorted(there, reverse=True)]
        if not pointer.exists():
            return newest_first, []
        name = pointer.read_text(encoding="utf-8", errors="replace").strip()
        number = name.removeprefix("step_")
        if not number.isdecimal() or int(number) not in there:
            return newest_first, [f"{pointer} names {name!r}, which is not there"]
        return [path for path in newest_first if int(path.name.removeprefix("step_")) <= int(number)], []

    def _read(self, path: Path) -> tuple[tuple[dict[str, Any], dict[str, Any]] | None, str]:
        """The two parts; or None, and what is wrong with them."""
        try:
            manifest = read_manifest(path)
            names = [SHARED, own_file(self.rank)]
            if manifest["world_size"] != self.world_size:  # what is a process's own has nobody to go to
                names = [SHARED]
            check_files(path, manifest, names)
            shared, *own = (torch.load(path / name, weights_only=False) for name in names)
        except Damaged as damaged:
            return None, str(damaged)
        except (UserError, MemoryError):
            raise
        except Exception as error:  # bytes as they were written, and yet unreadable: such as by another torch
            return None, " ".join(f"{type(error).__name__}: {error}".split())[:200]
        return (shared, own[0] if own else {}), ""


def _raise(error: Exception | None) -> None:
    if error is not None:
        raise error


def _saver(state: dict[str, Any]) -> Callable[[SummedFile], None]:
    """Writes the state as it is then."""
    return lambda file: torch.save(state, file)  # pyright: ignore[reportArgumentType]: it asks for write() alone


def _copier(state: dict[str, Any]) -> Callable[[SummedFile], None]:
    """Writes the state as it is now."""
    copy = io.BytesIO()
    torch.save(state, copy)

    def write(file: SummedFile) -> None:
        file.write(copy.getbuffer())

    return write

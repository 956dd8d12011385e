"""Writing so that a crash leaves the old content or the new, never half of one."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rlhf.errors import UserError


def sync(path: Path) -> None:
    """Waits until a file's, or a folder's, content is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def only_one(directory: Path) -> Iterator[None]:
    """Holds a folder for this process; the system lets go of it when the process ends, however it ends.

    Raises:
        UserError: another process holds it.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{directory} is in use by another run; wait for it, or choose another --name") from None
        yield


@contextmanager
def atomic_folder(directory: str | Path) -> Iterator[Path]:
    """Yields a temporary folder that takes the directory's place when the block ends without an error.

    An interrupted write leaves the old folder as it was, and the remains of the new one are cleared by the next write.
    Both helpers' names begin with a dot: what a crash leaves of them is taken for nothing else.
    """
    target = Path(directory)
    new, old = (target.with_name(f".{target.name}.{suffix}") for suffix in ("new", "old"))
    target.parent.mkdir(parents=True, exist_ok=True)
    if old.exists() and not target.exists():
        os.rename(old, target)  # a write was cut between the two renames below
    for leftover in (new, old):
        shutil.rmtree(leftover, ignore_errors=True)
    new.mkdir()
    try:
        yield new
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
    for path in new.rglob("*"):
        if path.is_file():
            sync(path)
    sync(new)
    if target.exists():
        os.rename(target, old)
    os.rename(new, target)
    sync(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def read_json_lines(path: Path) -> list[Any]:
    """The objects of a file of JSON lines; what a killed process left half-written at its end is left out."""
    *whole, rest = path.read_text(encoding="utf-8").split("\n")
    rows = [json.loads(line) for line in whole]
    try:
        return [*rows, json.loads(rest)] if rest else rows
    except json.JSONDecodeError:
        return rows


def atomic_text(path: Path, text: str) -> None:
    """Writes a file whole, in place of an older one."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    sync(partial)
    partial.replace(path)
    sync(path.parent)

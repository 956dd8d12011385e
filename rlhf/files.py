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
def refusals_named(path: Path) -> Iterator[None]:
    """Adds the path to what the system refuses inside, where it has not said it: to a write it answers without."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, os.strerror(error.errno), str(path)) from error


def _refused(folder: Path) -> OSError | None:
    """What the system says to writing a mebibyte there; None if it does not mind.

    Libraries in other languages tell of a full disk each in its own words, torch not at all.
    """
    probe = folder / ".probe"
    try:
        with refusals_named(folder), probe.open("wb") as file:
            file.write(bytes(2**20))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return error
    return None


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
        with refusals_named(target):
            yield new
    except BaseException as error:
        refused = None if isinstance(error, OSError) or not isinstance(error, Exception) else _refused(new)
        shutil.rmtree(new, ignore_errors=True)
        if refused is not None:
            raise OSError(refused.errno, refused.strerror, str(target)) from error
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


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yields where to write a file that takes the path's place when the block ends without an error."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        with refusals_named(path):
            yield partial
        sync(partial)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    sync(path.parent)


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
    with atomic_file(path) as partial:
        partial.write_text(text, encoding="utf-8")

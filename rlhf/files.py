"""Writing so that a crash leaves the old content or the new, never half of one."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

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


def _helpers(target: Path) -> tuple[Path, Path]:
    """Where a folder's successor is written, and where it stands itself while the two change places.

    Both names begin with a dot: what a crash leaves of them is taken for nothing else.
    """
    return target.with_name(f".{target.name}.new"), target.with_name(f".{target.name}.old")


def recover_folder(target: Path) -> None:
    """Gives a folder its name back whose replacement was cut between the two renames."""
    _, old = _helpers(target)
    if old.exists() and not target.exists():
        os.rename(old, target)


def begin_folder(target: Path) -> Path:
    """An empty folder to be filled and then given to :func:`put_in_place`; remains of a former try are cleared."""
    new, old = _helpers(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    recover_folder(target)
    for leftover in (new, old):
        shutil.rmtree(leftover, ignore_errors=True)
    new.mkdir()
    return new


def put_in_place(target: Path) -> None:
    """The filled folder of :func:`begin_folder` takes the target's place, once it is on the disk."""
    new, old = _helpers(target)
    for path in new.rglob("*"):
        sync(path)
    sync(new)
    if target.exists():
        os.rename(target, old)
    os.rename(new, target)
    sync(target.parent)
    shutil.rmtree(old, ignore_errors=True)


@contextmanager
def atomic_folder(directory: str | Path) -> Iterator[Path]:
    """Yields a temporary folder that takes the directory's place when the block ends without an error.

    An interrupted write leaves the old folder as it was, and the remains of the new one are cleared by the next write.
    """
    target = Path(directory)
    new = begin_folder(target)
    try:
        with refusals_named(target), full_disk_named(new, target):
            yield new
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
    put_in_place(target)


@contextmanager
def full_disk_named(folder: Path, target: Path) -> Iterator[None]:
    """Whatever a library says inside when it cannot write into a folder: the system's own refusal is raised."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        refused = _refused(folder)
        if refused is None:
            raise
        raise OSError(refused.errno, refused.strerror, str(target)) from error


class SummedFile:
    """A binary file being written that knows the size and the checksum of what it was given.

    What comes to the disk otherwise than it was given is so found out when it is read.
    """

    def __init__(self, file: IO[bytes]) -> None:
        import xxhash

        self.file = file
        self.digest = xxhash.xxh3_128()
        self.size = 0

    def write(self, content: Any) -> int:
        """Writes bytes, or anything with a buffer of bytes."""
        self.digest.update(content)
        self.size += memoryview(content).nbytes
        return self.file.write(content)

    def flush(self) -> None:
        """Hands what is buffered to the system."""
        self.file.flush()

    def sums(self) -> tuple[int, str]:
        """Bytes given so far, and their checksum."""
        return self.size, self.digest.hexdigest()


def checksum(path: Path) -> tuple[int, str]:
    """Size and checksum of a file, as :meth:`SummedFile.sums` tells them."""
    import xxhash

    digest, size = xxhash.xxh3_128(), 0
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
            size += len(piece)
    return size, digest.hexdigest()


LINKED_FROM = 1 << 20
"""Bytes from which a file is linked rather than copied."""


def link_or_copy(source: Path, target: Path) -> None:
    """The same file in a second place, without taking its space again where that can be.

    Small files are copied: they are the ones that people edit in place.
    """
    if source.stat().st_size >= LINKED_FROM:
        try:
            os.link(source, target)
            return
        except OSError:  # another disk, or one without links
            pass
    shutil.copy2(source, target)


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


def damaged(path: Path, why: object) -> UserError:
    """The error of a file in a stage's folder that is not as its stage has left it."""
    return UserError(
        f"{path} is damaged ({why}); put it back, or remove the folder {path.parent} to run its stage anew"
    )


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file of a stage.

    Raises:
        UserError: it is damaged.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise damaged(path, error) from None
    if not isinstance(found, dict):
        raise damaged(path, "it is no JSON object")
    return found


def read_json_lines(path: Path) -> list[Any]:
    """The objects in a stage's file of JSON lines; what a killed process left half-written at its end is left out.

    Raises:
        UserError: it is damaged.
    """
    try:
        *whole, rest = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise damaged(path, error) from None
    rows: list[Any] = []
    for line in whole:
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            raise damaged(path, f"line {len(rows) + 1}: {error}") from None
    try:
        return [*rows, json.loads(rest)] if rest else rows
    except json.JSONDecodeError:
        return rows


def atomic_text(path: Path, text: str) -> None:
    """Writes a file whole, in place of an older one."""
    with atomic_file(path) as partial:
        partial.write_text(text, encoding="utf-8")

"""Prepared data kept between runs: folders under a key of everything that decides their content.

One process builds a folder while others that want it wait; a folder appears whole, by one rename, and is checked
against the hashes of its files before it is read. A lock is the system's own (``flock``), so it ends with the process
that holds it. Where a shared disk has no locks, every process builds for itself and the first one's folder stays.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf.data import fingerprint
from rlhf.errors import UserError
from rlhf.files import atomic_text, sync

AUTO = "auto"
"""Means the folder that the environment variable names, or the user's cache folder."""
VARIABLE = "RLHF_CACHE_DIR"
INDEX = "index.json"
WAITING = "%s: another process prepares these data; waiting for it"
STALE_AFTER = 7 * 24 * 3600.0
"""Seconds after which what a killed process left unfinished is removed."""

logger = logging.getLogger(__name__)
_scratch: ContextVar[Path | None] = ContextVar("scratch", default=None)


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder for files that nobody needs by name once they are open; beside the cache where there is one.

    Beside the cache, as what is larger than memory may not fit into ``/tmp``. A memory map outlives the folder.
    """
    parent = _scratch.get()
    with tempfile.TemporaryDirectory(prefix=".scratch-", dir=parent) as folder:
        yield Path(folder)


@dataclass(frozen=True)
class Entry:
    """A folder of the cache.

    Attributes:
        folder: Where it is.
        content: What ``build`` said of it.
        built: Whether this process has just built it.
        kept: Whether it will be there for the next run.
    """

    folder: Path
    content: dict[str, Any]
    built: bool
    kept: bool


class Cache:
    """Folders kept between runs.

    Args:
        root: Where they are; None keeps nothing.
    """

    def __init__(self, root: Path | None) -> None:
        self.root = root

    @classmethod
    def at(cls, cache_dir: str | None) -> Cache:
        """The cache that a setting means.

        Args:
            cache_dir: A folder; ``auto``; or None, which keeps nothing.

        Raises:
            UserError: the folder cannot be made. Where ``auto`` cannot, nothing is kept and a warning says so.
        """
        if cache_dir is None:
            return cls(None)
        given = os.environ.get(VARIABLE) if cache_dir == AUTO else cache_dir
        if given == "":
            return cls(None)
        home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        root = (Path(given) if given is not None else Path(home) / "rlhf").expanduser()
        try:
            root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            problem = f"{root}: cannot be a folder for prepared data ({error.strerror})"
            if given is not None:
                where = f"${VARIABLE}" if cache_dir == AUTO else "cache_dir"
                raise UserError(f"{where}: {problem}; give another, or null (empty in ${VARIABLE})") from error
            logger.warning("%s: nothing is kept; set cache_dir or $%s", problem, VARIABLE)
            return cls(None)
        return cls(root)

    @contextlib.contextmanager
    def scratch(self) -> Iterator[None]:
        """Lets :func:`scratch_folder` make its folders here."""
        token = _scratch.set(self.root if self.root is not None and os.access(self.root, os.W_OK) else None)
        try:
            yield
        finally:
            _scratch.reset(token)

    @contextlib.contextmanager
    def folder(self, key: str, build: Callable[[Path], dict[str, Any]]) -> Iterator[Entry]:
        """The folder of a key, built unless it is there whole; where nothing is kept it goes when the block ends.

        Args:
            key: Says everything that decides the content.
            build: Fills a folder, which may hold finished files of a build that was killed, and says what is in it.

        Raises:
            UserError: ``build`` does; or the disk is full.
        """
        if self.root is None:
            with scratch_folder() as folder:
                yield Entry(folder, build(folder), built=True, kept=False)
            return
        yield self._kept(self.root, key, build)

    def _kept(self, root: Path, key: str, build: Callable[[Path], dict[str, Any]]) -> Entry:
        target = root / key
        content = read_index(target)
        if content is not None:
            return Entry(target, content, built=False, kept=True)
        remove_stale(root)
        lock = root / f".{key}.lock"
        with locked(lock, lambda: logger.warning(WAITING, lock)) as alone:
            content = read_index(target)  # somebody else may have built it meanwhile
            if content is not None:
                return Entry(target, content, built=False, kept=True)
            owner = "" if alone else f".{socket.gethostname()}-{os.getpid()}"
            partial = root / f".{key}{owner}.partial"
            partial.mkdir(exist_ok=True)
            try:
                content = build(partial)
                write_index(partial, content)
            except UserError:  # nothing to go on from: the same rows give the same error
                shutil.rmtree(partial, ignore_errors=True)
                raise
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                raise UserError(
                    f"cache_dir: no space left in {root}; free some and run again, what is finished is kept, or set "
                    "cache_dir to another folder"
                ) from error
            return Entry(target, put(partial, target, content), built=True, kept=True)


def put(partial: Path, target: Path, content: dict[str, Any]) -> dict[str, Any]:
    """Gives a finished folder its name, in place of a broken one, but not of one that another process finished."""
    broken = partial.with_suffix(".broken")
    while True:
        try:
            partial.rename(target)  # before a look at what is there: it may change between a look and what follows
            sync(target.parent)
            return content
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
        there = read_index(target)
        if there is not None:
            shutil.rmtree(partial, ignore_errors=True)
            return there
        with contextlib.suppress(FileNotFoundError):  # without locks, somebody else may just have done it
            target.rename(broken)
        shutil.rmtree(broken, ignore_errors=True)


@contextlib.contextmanager
def locked(path: Path, waiting: Callable[[], None]) -> Iterator[bool]:
    """Holds a lock file; answers False where the disk has no locks.

    Args:
        path: The file.
        waiting: Called where another process holds it, before waiting for that.
    """
    with path.open("a") as file:
        try:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                waiting()
                fcntl.flock(file, fcntl.LOCK_EX)
            alone = True
        except OSError:
            alone = False
        yield alone


def write_index(folder: Path, content: dict[str, Any]) -> None:
    """Notes what is in a folder and the hash of every file below it, the note's own included."""
    below = {path.relative_to(folder): path for path in sorted(folder.rglob("*")) if path.is_file()}
    kept = {name.as_posix(): path for name, path in below.items() if not name.name.startswith(".")}
    files = {name: [path.stat().st_size, fingerprint.of_files([path])] for name, path in kept.items() if name != INDEX}
    body = json.dumps({"content": content, "files": files}, ensure_ascii=True)
    atomic_text(folder / INDEX, json.dumps({"hash": fingerprint.of(body), "body": body}))


def read_index(folder: Path) -> dict[str, Any] | None:
    """What a folder holds; None where it is not there, or not as it was written."""
    try:
        index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        if index["hash"] != fingerprint.of(index["body"]):
            return None
        body = json.loads(index["body"])
        for name, (size, digest) in body["files"].items():
            if (folder / name).stat().st_size != size or fingerprint.of_files([folder / name]) != digest:
                return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return body["content"]


def remove_stale(root: Path) -> None:
    """Removes what processes that are long dead left unfinished."""
    for path in root.glob(".*"):
        unfinished = path.name.endswith((".partial", ".broken")) or path.name.startswith(".scratch-")
        with contextlib.suppress(OSError):
            if unfinished and time.time() - path.stat().st_mtime > STALE_AFTER:
                shutil.rmtree(path, ignore_errors=True)

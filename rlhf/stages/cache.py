"""Finished stages kept for other runs, under a key of everything that their result follows from.

A folder ``<stage>-<key>`` appears whole, by one rename, and is checked against the hashes of its files before it is
used. Large files are hard links, which take no space as long as the run that made them stands on the same disk. One
process makes a stage while others that want the same wait; the lock is the system's own, so it ends with its process.
"""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rlhf.data.cache import AUTO, INDEX, VARIABLE, locked, put, read_index, remove_stale, write_index
from rlhf.errors import UserError
from rlhf.files import link_or_copy, read_json
from rlhf.stages.folder import BEST, KEPT_BY_SINKS, RECORD, link_tree, new_folder, write_json
from rlhf.stages.key import explain

LEFT_OUT = ("checkpoints", BEST, "nan_dump.pt", INDEX, *KEPT_BY_SINKS)
"""What no later stage or reader of a finished one needs, or what belongs to the run that made it."""


class StageCache:
    """Finished stages by their keys.

    Args:
        root: Where they are; None keeps nothing.
    """

    def __init__(self, root: Path | None) -> None:
        self.root = root
        self.kept = False
        """Whether something new has been kept."""

    @classmethod
    def at(cls, stage_cache: str | None, output_dir: Path) -> StageCache:
        """The cache that a setting means.

        Raises:
            UserError: the folder cannot be made.
        """
        root = cls.meant(stage_cache, output_dir)
        if root is not None:
            try:
                root.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise UserError(
                    f"stage_cache: {root}: cannot be a folder for finished stages ({error.strerror}); give another, or "
                    "null"
                ) from error
        return cls(root)

    @staticmethod
    def meant(stage_cache: str | None, output_dir: Path) -> Path | None:
        """The folder that a setting means; None keeps nothing."""
        if stage_cache != AUTO:
            return None if stage_cache is None else Path(stage_cache).expanduser()
        given = os.environ.get(VARIABLE)
        if given is None:
            return output_dir / ".stages"
        return Path(given).expanduser() / "stages" if given else None

    def _folder(self, stage: str, key: str) -> Path:
        assert self.root is not None
        return self.root / f"{stage}-{key}"

    def has(self, stage: str, key: str | None) -> bool:
        """Whether a stage is kept, as far as can be seen without reading it."""
        return self.root is not None and key is not None and (self._folder(stage, key) / INDEX).exists()

    @contextmanager
    def claimed(self, stage: str, key: str | None, waiting: Callable[[], None]) -> Iterator[Path | None]:
        """The kept stage; or None, and then nobody else makes it inside the block.

        Args:
            stage: Its name.
            key: None finds nothing and claims nothing.
            waiting: Called where another process makes it, before waiting for that.
        """
        if self.root is None or key is None:
            yield None
            return
        target = self._folder(stage, key)
        if read_index(target) is not None:
            yield target
            return
        remove_stale(self.root)
        with locked(self.root / f".{target.name}.lock", waiting):
            yield target if read_index(target) is not None else None

    def take(self, kept: Path, directory: Path, uses: Mapping[str, Any]) -> bool:
        """Puts a kept stage into a run, in place of what is in its folder.

        Args:
            kept: From :meth:`claimed`.
            directory: The stage's folder.
            uses: Ids of the stages of this run that it refers to.

        Returns:
            Whether it was there to the end: somebody may clear the cache meanwhile.
        """
        try:
            with new_folder(directory) as folder:
                link_tree(kept, folder)
                (folder / INDEX).unlink()
                record = read_json(folder / RECORD)
                write_json(folder / RECORD, {**record, "uses": dict(uses), "taken_from": str(kept)})
        except FileNotFoundError:
            return False
        return True

    def keep(self, stage: str, key: str | None, directory: Path, *, replace: bool = False) -> None:
        """Keeps a finished stage.

        Args:
            stage: Its name.
            key: None keeps nothing.
            directory: The stage's folder.
            replace: Whether it takes the place of one that is there already.

        Raises:
            OSError: it could not be written; nothing half of it is left.
        """
        if self.root is None or key is None:
            return
        target = self._folder(stage, key)
        partial = self.root / f".{target.name}.{socket.gethostname()}-{os.getpid()}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        try:
            for path in directory.iterdir():
                if path.name in LEFT_OUT or path.name.startswith("."):
                    continue
                if path.is_dir():
                    link_tree(path, partial / path.name)
                else:
                    link_or_copy(path, partial / path.name)
            write_index(partial, {})
            if replace and target.exists():
                shutil.rmtree(target)
            put(partial, target, {})
            self.kept = True
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def nearest(self, stage: str, record: Mapping[str, Any]) -> list[str]:
        """In what the kept stage of this name that is most like it differs; empty where none is kept."""
        found: list[list[str]] = []
        if self.root is not None:
            for path in self.root.glob(f"{stage}-*/{RECORD}"):
                if "-" in path.parent.name.removeprefix(f"{stage}-"):
                    continue  # of a stage whose name only begins so
                try:
                    found.append(explain(read_json(path), record))
                except (UserError, OSError, KeyError, TypeError, AttributeError):
                    continue  # damaged, or of another version of this program: near to nothing
        return min((changes for changes in found if changes), key=len, default=[])

    def remark(self) -> str:
        """Where it is and how large, for the log."""
        assert self.root is not None
        stages = [path.parent for path in self.root.glob(f"*/{INDEX}")]
        size = sum(_size(folder) for folder in stages)
        return (
            f"finished stages are kept for other runs in {self.root} ({len(stages)}, {size / 1e6:.1f} MB, hard links "
            "to the runs where that can be); delete what you like"
        )


def _size(folder: Path) -> int:
    """Bytes of the files below a folder, of those that are there to the end: another run may replace it meanwhile."""
    size = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                size += os.lstat(os.path.join(place, name)).st_size
    return size

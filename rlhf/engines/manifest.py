"""The manifest of a checkpoint: which files belong to it, and what was written to each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlhf.files import checksum

MANIFEST = "manifest.json"
SHARED = "state.pt"
"""What is the same in every process."""


def own_file(rank: int) -> str:
    """Name of the file with what is a process's own."""
    return f"rank_{rank}.pt"


class Damaged(Exception):
    """A checkpoint is not as it was written; the text says in what."""


def read_manifest(path: Path) -> dict[str, Any]:
    """What a checkpoint says of itself.

    Raises:
        Damaged: it does not, or not in full.
    """
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        files = manifest["files"]
        if not {SHARED, *(own_file(rank) for rank in range(manifest["world_size"]))} <= files.keys():
            raise Damaged(f"{MANIFEST} does not name all files")
    except FileNotFoundError:
        raise Damaged(f"there is no {path.name}/{MANIFEST}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Damaged(f"{MANIFEST} cannot be read ({type(error).__name__}: {error})") from None
    return manifest


def check_files(path: Path, manifest: Mapping[str, Any], names: list[str]) -> None:
    """Compares files of a checkpoint with what the manifest says was written.

    Raises:
        Damaged: one is not there, or is another.
    """
    for name in names:
        size, digest = manifest["files"][name]
        try:
            there = checksum(path / name)
        except OSError as error:
            raise Damaged(f"{name}: {error.strerror}") from None
        if there[0] != size:
            raise Damaged(f"{name} has {there[0]} bytes, and {size} were written")
        if there[1] != digest:
            raise Damaged(f"{name} does not hold what was written")

"""A stage's folder in a run: its record, its figures, and how another's content comes into it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rlhf.engines.manifest import Damaged, check_files, read_manifest
from rlhf.errors import UserError
from rlhf.files import atomic_text, begin_folder, checksum, damaged, link_or_copy, put_in_place, read_json

RECORD = "stage.json"
"""What a stage was run with, written before it starts."""
DONE = "done.json"
"""The last figures of a stage, written when it has ended."""
METRICS = "metrics.jsonl"
"""Its figures over its steps."""
STOPPED = "stopped.json"
"""Why a stage ended before its time: the text of the error, or an empty one where it was asked to stop. Of a stage that
runs, or was killed, there is none."""
BEST = "best"
"""Weights of the evaluations that were the best in their time, while a checkpoint may still go back to them."""
KEPT_BY_SINKS = ("tensorboard", "wandb", "wandb.json")


def write_json(path: Path, content: Any) -> None:
    """Writes a file whole, in place of an older one."""
    atomic_text(path, json.dumps(content, indent=2))


def read_done(directory: Path) -> dict[str, Any]:
    """What a finished stage wrote when it ended: ``figures``, ``seconds`` and more.

    Raises:
        UserError: it is damaged, or the stage's ``metrics.jsonl`` is not as it was then.
    """
    path, metrics = directory / DONE, directory / METRICS
    done = read_json(path)
    if not {"figures", "seconds"} <= done.keys():
        raise damaged(path, "it lacks figures, or seconds")
    known = done.get("metrics")  # earlier versions of this program did not write it
    if known is not None and (not metrics.is_file() or [*checksum(metrics)] != known):
        raise damaged(metrics, "it is not as its stage has left it" if metrics.exists() else "it is not there")
    return done


def write_done(directory: Path, figures: Mapping[str, float], seconds: float) -> None:
    """Notes that a stage has ended; nothing is written to its figures any more."""
    metrics = directory / METRICS
    summed = {"metrics": checksum(metrics)} if metrics.is_file() else {}
    write_json(directory / DONE, {"figures": dict(figures), "seconds": seconds, **summed})


@contextmanager
def ending_told(directory: Path, record: Mapping[str, Any]) -> Iterator[None]:
    """Leaves in a stage's folder why the block did not come to its end; until then, what was left before is gone.

    Args:
        directory: The stage's folder. Nothing is written where it is not there, or still another's.
        record: What the stage is run with.
    """
    path = directory / STOPPED

    def mine() -> bool:
        return (directory / RECORD).exists() and read_json(directory / RECORD).get("id") == record.get("id")

    if mine():
        path.unlink(missing_ok=True)
    try:
        yield
    except BaseException as error:
        asked = isinstance(error, KeyboardInterrupt)
        kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
        with suppress(OSError, UserError):  # a full disk, say: the error itself says more
            if mine():
                write_json(path, {"error": "" if asked else f"{kind}{error}"})
        raise


@contextmanager
def new_folder(directory: Path) -> Iterator[Path]:
    """An empty folder that takes a stage's place, when the block has filled it; a former one goes at once then.

    No half of either is ever taken for whole.
    """
    folder = begin_folder(directory)
    try:
        yield folder
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    put_in_place(directory)


def link_tree(source: Path, target: Path) -> None:
    """The files below a folder in a second place."""
    for path in sorted(source.rglob("*")):
        if path.is_file():
            place = target / path.relative_to(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            link_or_copy(path, place)


def check_checkpoint(path: Path) -> dict[str, Any]:
    """What a checkpoint says about itself: ``stage``, ``algorithm`` and how far it is.

    Raises:
        UserError: saying what it is, and what to give.
    """
    checkpoints = next((at for at in (path / "checkpoints", path) if next(at.glob("step_*"), None)), None)
    if checkpoints is not None:
        there = ", ".join(sorted(str(step) for step in checkpoints.glob("step_*")))
        raise UserError(f"--resume: {path} holds checkpoints and is none; give one of {there}")
    if not path.is_dir():
        raise UserError(
            f"--resume: {path} is no folder (looked in {Path.cwd()}); give auto, never, or a checkpoint such as "
            "runs/NAME/STAGE/checkpoints/step_4"
        )
    try:
        manifest = read_manifest(path)
        check_files(path, manifest, list(manifest["files"]))
    except Damaged as damaged:
        raise UserError(f"--resume: {path} is no whole checkpoint ({damaged}); give another") from None
    if not (origin(path) / METRICS).is_file():
        raise UserError(
            f"--resume: {origin(path)} has no metrics.jsonl, so the figures before the checkpoint would be lost; put "
            "it there, two folders above the checkpoint"
        )
    return manifest["about"]


def check_algorithm(path: Path, algorithm: str) -> None:
    """Refuses a checkpoint of another algorithm's stage."""
    about = read_manifest(path)["about"]
    if about["algorithm"] != algorithm:
        raise UserError(
            f"--resume: {path} is a checkpoint of {about['algorithm']}, and the stage to go on with is {algorithm}"
        )


def origin(checkpoint: Path) -> Path:
    """The stage's folder that a checkpoint lies in."""
    return checkpoint.resolve().parents[1]


def adopt(checkpoint: Path, folder: Path, directory: Path) -> None:
    """Puts a checkpoint, and the figures, rollouts and best weights up to it, into the new folder of a stage.

    Args:
        checkpoint: Of this stage or another.
        folder: Where the stage's new folder is being filled.
        directory: Where it will stand.
    """
    source, about = origin(checkpoint), read_manifest(checkpoint)["about"]
    link_tree(checkpoint, folder / "checkpoints" / checkpoint.name)
    atomic_text(folder / "checkpoints" / "latest", checkpoint.name)
    if best := about.get(BEST):
        link_tree(source / BEST / best, folder / BEST / best)
    shutil.copy2(source / METRICS, folder)  # never linked: it is written on
    for path in sorted((source / "rollouts").glob("*.jsonl")):
        kind, _, rest = path.stem.partition("_")
        last = about.get("rollouts" if kind == "iteration" else "iteration", 0)
        number = rest.removesuffix("_ema")
        if not number.isdecimal() or int(number) <= last:
            (folder / "rollouts").mkdir(exist_ok=True)
            shutil.copy2(path, folder / "rollouts")
    if source == directory.resolve():
        for name in KEPT_BY_SINKS:
            if (source / name).is_dir():
                shutil.copytree(source / name, folder / name)
            elif (source / name).is_file():
                shutil.copy2(source / name, folder)

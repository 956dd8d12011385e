"""An experiment: named stages run in order, each reusable on its own."""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from rlhf.data.cache import AUTO
from rlhf.errors import UserError
from rlhf.files import atomic_text, only_one
from rlhf.interfaces import Algorithm, MetricSink, NeedsInputs
from rlhf.interruption import Stopped
from rlhf.schema import model_paths

if TYPE_CHECKING:
    from rlhf.loops.context import StageContext
    from rlhf.loops.preview import Preview

RECORD = "stage.json"
"""What a stage was run with, written before it starts."""
DONE = "done.json"
"""The last figures of a stage, written when it has ended."""


def settings_tree(value: Any) -> Any:
    """A component as plain data: class names and settings, all defaults written out."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        fields = {item.name: settings_tree(getattr(value, item.name)) for item in dataclasses.fields(value)}
        return {"class_path": kind, **fields}
    if isinstance(value, dict):
        return {key: settings_tree(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [settings_tree(item) for item in value]
    return value


def _change_model_paths(value: Any, change: Callable[[str, str], str], place: str = "") -> Any:
    """The component with ``change(place, path)`` in every setting annotated as ``ModelPath``; itself if all stay."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        entries = {item.name: getattr(value, item.name) for item in dataclasses.fields(value)}
        taken = {name for name, entry in entries.items() if isinstance(entry, str)} & model_paths(type(value))
    elif isinstance(value, dict):
        entries, taken = value, set[str]()
    elif isinstance(value, list):
        entries, taken = dict(enumerate(value)), set[str]()
    else:
        return value
    changed = {}
    for name, entry in entries.items():
        where = f"{place}.{name}" if place else str(name)
        new = change(where, entry) if name in taken else _change_model_paths(entry, change, where)
        if new is not entry:
            changed[name] = new
    if not changed:
        return value
    if isinstance(value, dict):
        return {**value, **changed}
    if isinstance(value, list):
        return [changed.get(index, entry) for index, entry in enumerate(value)]
    return dataclasses.replace(value, **changed)


def references(value: Any) -> list[tuple[str, str]]:
    """Every ``@stage`` or ``@stage/output`` in a component's settings, with its place."""
    found = []

    def note(place: str, path: str) -> str:
        if path.startswith("@"):
            found.append((place, path))
        return path

    _change_model_paths(value, note)
    return found


def resolve(value: Any, folders: dict[str, str]) -> Any:
    """The component with every reference replaced by the folder it stands for."""
    return _change_model_paths(value, lambda _, path: folders[path] if path.startswith("@") else path)


def missing_inputs(value: Any, path: str) -> Iterator[str]:
    """Files and functions that a component needs and that are not there, each with its place.

    What refers to an earlier stage is left out: it will be there.
    """
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from missing_inputs(inner, f"{path}.{key}")
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return
    if isinstance(value, NeedsInputs) and not any("." not in place for place, _ in references(value)):
        try:
            value.check_inputs()
        except (UserError, OSError) as error:
            yield f"{path}: {error}"
    for item in dataclasses.fields(value):
        yield from missing_inputs(getattr(value, item.name), f"{path}.{item.name}")


def differences(old: Any, new: Any, path: str = "") -> list[str]:
    """The settings in which two trees differ, as ``key: old → new``."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = list(dict.fromkeys([*old, *new]))
        missing = object()
        found = []
        for key in keys:
            a, b = old.get(key, missing), new.get(key, missing)
            where = f"{path}.{key}" if path else key
            if a is missing or b is missing:
                found.append(f"{where}: {'absent' if a is missing else a} → {'absent' if b is missing else b}")
            else:
                found += differences(a, b, where)
        return found
    return [] if old == new else [f"{path}: {old} → {new}"]


def _plain(name: str) -> bool:
    """Whether a name can be a folder's: of a run, or of a stage that others refer to by ``@``."""
    return name not in ("", ".", "..") and not any(character in name for character in "/\\@")


def _write_json(path: Path, content: Any) -> None:
    atomic_text(path, json.dumps(content, indent=2))


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(
            f"{path} is damaged ({error}); put it back, or remove the folder {path.parent} to run its stage anew"
        ) from None


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Stages run in order; what an earlier one leaves is ``@stage`` to the later ones.

    Args:
        name: Of the run: its folder is ``<output_dir>/<name>``.
        stages: Algorithms by stage name, run in this order.
        seed: Seed of the whole run: weights, data order, sampling.
        output_dir: Folder of all runs.
        sinks: Where figures go besides ``metrics.jsonl``.
        threads: CPU threads of torch; null leaves its own choice. Sums are cut differently by another number of
            threads, so exact repetition needs the same one.
        cache_dir: Folder in which tokenised data are kept for later runs; null keeps nothing. ``auto`` is the folder
            that the environment variable RLHF_CACHE_DIR names (empty: keeps nothing), else ``~/.cache/rlhf``.
    """

    name: str
    stages: dict[str, Algorithm]
    seed: int = 1
    output_dir: str = "runs"
    sinks: list[MetricSink] = field(default_factory=list)
    threads: int | None = None
    cache_dir: str | None = AUTO

    @property
    def directory(self) -> Path:
        """Folder of the run."""
        return Path(self.output_dir) / self.name

    def check(self) -> list[str]:
        """Problems that can be known before a model loads, each ``"<key>: <problem>; <remedy>"``."""
        problems = [] if self.stages else ["stages: there is none; name at least one"]
        if not _plain(self.name):
            problems.append(f"name: is {self.name!r}; must be a plain folder name")
        if self.threads is not None and self.threads < 1:
            problems.append(f"threads: is {self.threads}; must be at least 1, or null")
        occupied = next((path for path in (self.directory, *self.directory.parents) if path.is_file()), None)
        if occupied is not None:
            problems.append(f"output_dir: {occupied} is a file, so no folder can be made there; give another")
        known: list[str] = []
        for stage, algorithm in self.stages.items():
            if not _plain(stage):
                problems.append(f"stages.{stage}: a stage's name must be a plain folder name")
            problems += [f"stages.{stage}.{problem}" for problem in algorithm.check()]
            for where, reference in references(algorithm):
                if reference not in known:
                    near = difflib.get_close_matches(reference, known, 1)
                    hint = f"did you mean {near[0]}? " if near else ""
                    there = ", ".join(known) or "none, this is the first stage"
                    text = f"no earlier stage leaves {reference!r}; {hint}Known: {there}"
                    problems.append(f"stages.{stage}.{where}: {text}")
            known += [f"@{stage}" if output == "model" else f"@{stage}/{output}" for output in algorithm.outputs()]
        return problems

    def folders(self) -> dict[str, str]:
        """Where each reference leads."""
        return {
            f"@{stage}" if output == "model" else f"@{stage}/{output}": str(self.directory / stage / output)
            for stage, algorithm in self.stages.items()
            for output in algorithm.outputs()
        }

    def run(self, *, overwrite: bool = False, console: Console | None = None) -> dict[str, dict[str, float]]:
        """Runs the stages that are not finished yet, and writes the settings to ``config.yaml``.

        A finished stage with the same settings, made from the same runs of earlier stages, is kept. One that was
        interrupted goes on from its newest checkpoint.

        Args:
            overwrite: Run stages anew that were made with other settings or from other runs of earlier stages; without
                it that is an error.
            console: Where progress is shown; None for the terminal, a quiet one for nowhere.

        Returns:
            The last figures of each stage.

        Raises:
            Stopped: SIGINT or SIGTERM arrived; the stage was saved first, so that running again continues it.
            UserError: the settings have problems, or the folder holds a run of other settings.
        """
        import torch

        if problems := self.check():
            raise UserError("\n".join(problems))
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        with only_one(self.directory):
            return self._run_stages(overwrite, console or Console(highlight=False))

    def previews(self) -> Iterator[tuple[str, Preview | str]]:
        """The first batch of every stage, or why there is none; nothing is trained, and no run written.

        The data are prepared, and kept in ``cache_dir``, as the run itself does it.

        Raises:
            UserError: the settings have problems, or data or models cannot be loaded.
        """
        from rlhf.loops.preview import needed, preview

        if problems := self.check():
            raise UserError("\n".join(problems))
        folders = self.folders()
        for name, algorithm in self.stages.items():
            used = [reference for _, reference in references(needed(algorithm))]
            if absent := [reference for reference in used if not Path(folders[reference]).is_dir()]:
                yield name, f"not shown, as {absent[0]} is not there yet; run the experiment up to that stage first"
                continue
            context = self._context(name)
            try:
                yield name, preview(resolve(algorithm, folders), context)
            except UserError as error:
                error.args = (f"stage {name}: {error}", *error.args[1:])
                raise

    def _run_stages(self, overwrite: bool, console: Console) -> dict[str, dict[str, float]]:
        from rlhf.config import dump

        states = self._states(overwrite)
        missing = [
            problem
            for stage, state in states.items()
            if state != "keep"
            for problem in missing_inputs(self.stages[stage], f"stages.{stage}")
        ]
        if missing:
            raise UserError("\n".join(missing))
        atomic_text(self.directory / "config.yaml", dump(self))
        return {name: self._run_stage(name, state, console) for name, state in states.items()}

    def _identity(self, stage: str) -> dict[str, Any]:
        settings = {"seed": self.seed, "threads": self.threads, **settings_tree(self.stages[stage])}
        return json.loads(json.dumps(settings))

    def _uses(self, stage: str) -> list[str]:
        """The earlier stages that a stage refers to."""
        found = (reference.removeprefix("@").split("/")[0] for _, reference in references(self.stages[stage]))
        return list(dict.fromkeys(found))

    def _states(self, overwrite: bool) -> dict[str, str]:
        """What to do with each stage: "keep", "continue" or "start"; checked for all before the first runs."""
        states: dict[str, str] = {}
        for name in self.stages:
            directory = self.directory / name
            if not (directory / RECORD).exists():
                if any(not path.name.startswith(".") for path in directory.glob("*")):
                    raise UserError(f"{directory} holds files that no run left; move them, or choose another --name")
                states[name] = "start"
                continue
            changes = self._changes(name, states)
            if changes and not overwrite:
                raise UserError(
                    f"{directory} holds a stage that was run otherwise:\n  "
                    + "\n  ".join(changes[:8])
                    + "\nChoose another --name, or pass --overwrite to run this stage, and those that use it, anew."
                )
            finished = (directory / DONE).exists()
            states[name] = "start" if changes else "keep" if finished else "continue"
        return states

    def _changes(self, stage: str, states: dict[str, str]) -> list[str]:
        """Why a stage's folder cannot be kept: other settings, or earlier stages that ran, or will run, anew."""
        record = _read_json(self.directory / stage / RECORD)
        changes = differences(record["settings"], self._identity(stage))
        for used in self._uses(stage):
            if states[used] != "keep":
                changes.append(f"@{used}: is to be run first")
            elif record["uses"].get(used) != self._run_id(used):
                changes.append(f"@{used}: has been run anew since")
        return changes

    def _run_id(self, stage: str) -> str:
        return _read_json(self.directory / stage / RECORD)["id"]

    def _run_stage(self, name: str, state: str, console: Console) -> dict[str, float]:
        from rlhf.loops import build_stage

        directory = self.directory / name
        if state == "keep":
            console.print(f"{name}: finished before, kept ({directory})", soft_wrap=True, markup=False, highlight=False)
            return _read_json(directory / DONE)["figures"]
        start = time.perf_counter()
        context = self._context(name, console)
        stop = context.stop
        try:
            # A former run's folder goes only when this one's models and data are there.
            trainer = build_stage(resolve(self.stages[name], self.folders()), context)
            if state == "start":
                self._clear(name)
                uses = {used: self._run_id(used) for used in self._uses(name)}
                record = {"id": uuid.uuid4().hex, "settings": self._identity(name), "uses": uses}
                _write_json(directory / RECORD, record)
            with stop.listening():
                figures = trainer.fit()
                _write_json(directory / DONE, {"figures": figures, "seconds": time.perf_counter() - start})
        except (UserError, Stopped) as error:  # say where; the error stays what it is
            error.args = (f"stage {name}: {error}", *error.args[1:])
            raise
        if stop.signal is not None and name != list(self.stages)[-1]:
            raise stop.stopped(f"stage {name} is finished")
        return figures

    def _clear(self, stage: str) -> None:
        """An empty folder for a stage; a former one goes at once, so that no half of it is ever taken for whole."""
        directory, former = self.directory / stage, self.directory / f".{stage}.former"
        shutil.rmtree(former, ignore_errors=True)
        if directory.exists():
            directory.rename(former)
            shutil.rmtree(former)
        directory.mkdir(parents=True)

    def _context(self, stage: str, console: Console | None = None) -> StageContext:
        from rlhf.loops import StageContext

        return StageContext(
            directory=self.directory / stage,
            seed=self._stage_seed(stage),
            name=stage,
            sinks=self.sinks,
            console=console,
            cache_dir=self.cache_dir,
        )

    def _stage_seed(self, stage: str) -> int:
        digest = hashlib.blake2b(f"{self.seed}/{stage}".encode(), digest_size=4).digest()
        return int.from_bytes(digest, "big") >> 1

"""An experiment: named stages run in order, each reusable on its own."""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlhf.errors import UserError
from rlhf.interfaces import Algorithm, MetricSink

DONE = "done.json"


def settings_tree(value: Any) -> Any:
    """A component as plain data: class names and settings, all defaults written out."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        return {"class_path": kind, **{f.name: settings_tree(getattr(value, f.name)) for f in dataclasses.fields(value)}}
    if isinstance(value, dict):
        return {key: settings_tree(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [settings_tree(item) for item in value]
    return value


def references(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Every ``@stage`` or ``@stage/output`` in a component's ``path`` settings, with its place."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        for item in dataclasses.fields(value):
            inner = getattr(value, item.name)
            where = f"{path}.{item.name}" if path else item.name
            if item.name == "path" and isinstance(inner, str) and inner.startswith("@"):
                yield where, inner
            else:
                yield from references(inner, where)
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from references(inner, f"{path}.{key}")
    elif isinstance(value, (list, tuple)):
        for index, inner in enumerate(value):
            yield from references(inner, f"{path}.{index}")


def resolve(value: Any, folders: dict[str, str]) -> Any:
    """The component with every reference replaced by the folder it stands for."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changes = {}
        for item in dataclasses.fields(value):
            inner = getattr(value, item.name)
            if item.name == "path" and isinstance(inner, str) and inner.startswith("@"):
                changes[item.name] = folders[inner]
            else:
                new = resolve(inner, folders)
                if new is not inner:
                    changes[item.name] = new
        return dataclasses.replace(value, **changes) if changes else value
    if isinstance(value, dict):
        return {key: resolve(inner, folders) for key, inner in value.items()} if any(references(value)) else value
    if isinstance(value, (list, tuple)):
        return type(value)(resolve(inner, folders) for inner in value) if any(references(value)) else value
    return value


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
    """

    name: str
    stages: dict[str, Algorithm]
    seed: int = 1
    output_dir: str = "runs"
    sinks: list[MetricSink] = field(default_factory=list)
    threads: int | None = None

    @property
    def directory(self) -> Path:
        """Folder of the run."""
        return Path(self.output_dir) / self.name

    def check(self) -> list[str]:
        """Problems that can be known before a model loads, each ``"<key>: <problem>; <remedy>"``."""
        problems = [] if self.stages else ["stages: there is none; name at least one"]
        if not self.name or any(character in self.name for character in "/\\"):
            problems.append(f"name: is {self.name!r}; must be a plain folder name")
        known: list[str] = []
        for stage, algorithm in self.stages.items():
            if not stage or "/" in stage or stage.startswith("@"):
                problems.append(f"stages.{stage}: a stage's name must be a plain folder name")
            problems += [f"stages.{stage}.{problem}" for problem in algorithm.check()]
            for where, reference in references(algorithm):
                if reference not in known:
                    near = difflib.get_close_matches(reference, known, 1)
                    hint = f"did you mean {near[0]}? " if near else ""
                    there = ", ".join(known) or "none, this is the first stage"
                    problems.append(f"stages.{stage}.{where}: no earlier stage leaves {reference!r}; {hint}Known: {there}")
            known += [f"@{stage}" if output == "model" else f"@{stage}/{output}" for output in algorithm.outputs()]
        return problems

    def folders(self) -> dict[str, str]:
        """Where each reference leads."""
        return {
            f"@{stage}" if output == "model" else f"@{stage}/{output}": str(self.directory / stage / output)
            for stage, algorithm in self.stages.items()
            for output in algorithm.outputs()
        }

    def run(self, *, overwrite: bool = False) -> dict[str, dict[str, float]]:
        """Runs the stages that are not finished yet.

        A finished stage with the same settings, and the same earlier stages, is kept. One that was interrupted goes on
        from its newest checkpoint.

        Args:
            overwrite: Run stages anew whose folder holds other settings; without it that is an error.

        Returns:
            The last figures of each stage.

        Raises:
            UserError: the settings have problems, or the folder holds a run of other settings.
        """
        import torch

        if problems := self.check():
            raise UserError("\n".join(problems))
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        stages = {name: resolve(algorithm, self.folders()) for name, algorithm in self.stages.items()}
        states = self._states(stages, overwrite)
        self.directory.mkdir(parents=True, exist_ok=True)
        results = {}
        for name, algorithm in stages.items():
            results[name] = self._run_stage(name, algorithm, states[name])
        return results

    def _identity(self, algorithm: Algorithm) -> dict[str, Any]:
        return {"seed": self.seed, "threads": self.threads, **settings_tree(algorithm)}

    def _states(self, stages: dict[str, Algorithm], overwrite: bool) -> dict[str, str]:
        """What to do with each stage: "keep", "continue" or "start"; checked for all before the first runs."""
        states: dict[str, str] = {}
        for name, algorithm in stages.items():
            record = self.directory / name / "stage.json"
            used = {reference.lstrip("@").split("/")[0] for _, reference in references(self.stages[name])}
            renewed = any(states.get(other) != "keep" for other in used)
            if not record.exists():
                if any((self.directory / name).glob("*")):
                    raise UserError(f"{self.directory / name} holds files that no run left; move them, or choose another --name")
                states[name] = "start"
                continue
            former = json.loads(record.read_text(encoding="utf-8"))
            changed = differences(former["settings"], json.loads(json.dumps(self._identity(algorithm))))
            if changed and not overwrite:
                raise UserError(
                    f"{self.directory / name} holds a stage of other settings:\n  "
                    + "\n  ".join(changed[:8])
                    + "\nChoose another --name, or pass --overwrite to run this stage, and those that use it, anew."
                )
            finished = (self.directory / name / DONE).exists()
            states[name] = "start" if changed or renewed else ("keep" if finished else "continue")
        return states

    def _run_stage(self, name: str, algorithm: Algorithm, state: str) -> dict[str, float]:
        from rlhf.loops import StageContext, build_stage

        directory = self.directory / name
        if state == "keep":
            print(f"{name}: finished before, kept ({directory})", flush=True)
            return json.loads((directory / DONE).read_text(encoding="utf-8"))["figures"]
        if state == "start" and directory.exists():
            shutil.rmtree(directory)
        directory.mkdir(parents=True, exist_ok=True)
        record = {"settings": self._identity(algorithm)}
        (directory / "stage.json").write_text(json.dumps(record, indent=2), encoding="utf-8")
        start = time.perf_counter()
        context = StageContext(directory=directory, seed=self._stage_seed(name), name=name, sinks=self.sinks)
        figures = build_stage(algorithm, context).fit()
        done = {"figures": figures, "seconds": time.perf_counter() - start}
        partial = directory / f".{DONE}.partial"
        partial.write_text(json.dumps(done, indent=2), encoding="utf-8")
        partial.replace(directory / DONE)
        return figures

    def _stage_seed(self, stage: str) -> int:
        digest = hashlib.blake2b(f"{self.seed}/{stage}".encode(), digest_size=4).digest()
        return int.from_bytes(digest, "big") >> 1

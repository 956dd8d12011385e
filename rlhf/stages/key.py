"""What a stage's result follows from: its settings, what they lead to outside of them, versions, and earlier stages."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import os
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf.data import fingerprint
from rlhf.data.cache import Cache
from rlhf.interfaces import Algorithm, NeedsInputs, Source
from rlhf.models.policy import looks_local
from rlhf.schema import model_paths
from rlhf.stages.settings import differences, settings_tree, used_stages

if TYPE_CHECKING:
    from rlhf.experiment import Experiment

PACKAGES = ("torch", "transformers", "tokenizers", "datasets", "pyarrow", "numpy", "peft", "deepspeed")
CODE = ("algorithms", "data", "engines", "loops", "models", "interfaces", "types.py", "tally.py")
"""What of this package takes part in a stage."""
NEUTRAL = ("save_every",)
"""Settings of algorithms that change nothing of what a stage leaves."""


def identity(algorithm: Algorithm, *, seed: int, threads: int | None) -> dict[str, Any]:
    """The settings that decide what a stage leaves, as JSON has them."""
    tree = {name: value for name, value in settings_tree(algorithm).items() if name not in NEUTRAL}
    return json.loads(json.dumps({"seed": seed, "threads": threads, **tree}))


@functools.cache
def versions() -> dict[str, str]:
    """Of the installed packages that compute, and of this one's own source."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    home = Path(__file__).parents[1]
    places = [home / name for name in CODE]
    files = [path for place in places for path in ([place] if place.is_file() else sorted(place.rglob("*.py")))]
    return {**found, "rlhf": fingerprint.of_files(files)[:12]}


class Inputs:
    """What stages read from outside their settings: rows, models, functions. Each is looked at once.

    Args:
        cache_dir: Of the experiment: beside it, rows are unpacked that must be read to be known.
    """

    def __init__(self, cache_dir: str | None) -> None:
        self.cache_dir = cache_dir
        self._known: dict[str, str] = {}

    def of(self, algorithm: Algorithm) -> dict[str, str | None]:
        """By place in the settings, a text that is equal where the content is; None where it cannot be read."""
        found = {}
        for place, kind, value in _outside(algorithm, ""):
            key = f"{kind} {value!r}"
            if key not in self._known:
                try:
                    text = self._read(kind, value)
                except Exception:  # files, networks and functions of users fail in any way; who needs them will say so
                    found[place] = None
                    continue
                if text is None:
                    continue
                self._known[key] = text
            found[place] = self._known[key]
        return found

    def _read(self, kind: str, value: Any) -> str | None:
        if kind == "code":
            return fingerprint.of_files([Path(value)])
        if kind == "model":
            return _of_model(Path(value))
        known = value.fingerprint()
        if known is not None or not isinstance(value, Source):
            return known
        with Cache.at(self.cache_dir).scratch():
            return fingerprint.of_rows(value.load())


def _outside(value: Any, place: str) -> Iterator[tuple[str, str, Any]]:
    """Every component that may read something, local model and foreign source file in a component's settings."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _outside(inner, f"{place}.{name}")
    elif isinstance(value, (list, tuple)):
        for number, inner in enumerate(value):
            yield from _outside(inner, f"{place}.{number}")
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return
    if (file := _foreign_source(type(value))) is not None:
        yield f"{place} (its class)".strip(), "code", file
    if isinstance(value, NeedsInputs):
        yield place or "(itself)", "component", value
    for item in dataclasses.fields(value):
        inner, where = getattr(value, item.name), f"{place}.{item.name}".strip(".")
        if item.name in model_paths(type(value)) and isinstance(inner, str):
            if not inner.startswith("@") and looks_local(os.path.expanduser(inner)):
                yield where, "model", os.path.expanduser(inner)
        else:
            yield from _outside(inner, where)


def _foreign_source(cls: type) -> str | None:
    if cls.__module__.startswith("rlhf."):
        return None
    try:
        return inspect.getsourcefile(cls)
    except (TypeError, OSError):  # from a notebook, say
        return None


def _of_model(path: Path) -> str:
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    if not files:
        raise FileNotFoundError(path)
    return fingerprint.of(*(str(file.relative_to(path)) for file in files), fingerprint.of_files(files))


def stage_key(
    stage_seed: int,
    settings: Mapping[str, Any],
    inputs: Mapping[str, str | None],
    used: Mapping[str, str | None],
) -> str | None:
    """A text that is equal where a stage's result is; None where something that it follows from is not known.

    Args:
        stage_seed: Of the stage, which its name takes part in.
        settings: From :func:`identity`.
        inputs: From :class:`Inputs`.
        used: Keys of the stages it refers to, by name.
    """
    if None in (*inputs.values(), *used.values()):
        return None
    parts = {"seed": stage_seed, "settings": settings, "inputs": inputs, "used": used, "versions": versions()}
    return fingerprint.of(json.dumps(parts, sort_keys=True))


def keys_of(experiment: Experiment, inputs: Inputs) -> dict[str, str | None]:
    """The key of each stage, known before any of them is made.

    Args:
        experiment: With its engines chosen.
        inputs: What is known of what its stages read.
    """
    keys: dict[str, str | None] = {}
    for name, algorithm in experiment.stages.items():
        settings = identity(algorithm, seed=experiment.given_seed(name), threads=experiment.threads)
        used = {stage: keys[stage] for stage in used_stages(algorithm)}
        keys[name] = stage_key(experiment.stage_seed(name), settings, inputs.of(algorithm), used)
    return keys


def changed_inputs(old: Mapping[str, str | None], new: Mapping[str, str | None]) -> list[str]:
    """What is read in both and is not the same; what cannot be read any more is taken on trust."""
    both = [place for place in old if place in new and None not in (old[place], new[place])]
    return [f"{place}: its content has changed since" for place in both if old[place] != new[place]]


def explain(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """In what two records of a stage (``stage.json``) differ, most telling first."""
    found = differences(old["settings"], new["settings"]) + changed_inputs(old["inputs"], new["inputs"])
    found += [f"@{stage}: is another" for stage, key in new["used_keys"].items() if old["used_keys"].get(stage) != key]
    return found + differences(old["versions"], new["versions"])

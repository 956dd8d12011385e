"""A stage's settings as data: written out, compared, and with what they refer to put in."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from rlhf.errors import UserError
from rlhf.interfaces import NeedsInputs
from rlhf.schema import model_paths, settings


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
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    kind = type(value)  # a component of somebody's that is no dataclass
    found = {name: settings_tree(getattr(value, name)) for name in settings(kind)}
    return {"class_path": f"{kind.__module__}.{kind.__qualname__}", **found}


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


def used_stages(value: Any) -> list[str]:
    """The earlier stages that a component refers to, each once."""
    found = (reference.removeprefix("@").split("/")[0] for _, reference in references(value))
    return list(dict.fromkeys(found))


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

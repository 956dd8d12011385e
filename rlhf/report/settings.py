"""The settings of a run for people: what differs from the defaults of the classes, and what differs between runs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import MISSING
from typing import Any, NamedTuple

from rlhf.errors import UserError


class Change(NamedTuple):
    """A setting that is not at its default.

    Attributes:
        key: Its dotted place.
        value: As text.
        default: As text; "" where the setting has none.
    """

    key: str
    value: str
    default: str


def changes(config: dict[str, Any]) -> list[Change]:
    """The settings of a config that are not at the defaults of their classes.

    Of a class that cannot be imported here, all settings are given, without defaults.
    """
    from rlhf.experiment import Experiment
    from rlhf.schema import settings

    known = settings(Experiment)
    return list(_inside(Experiment, config, {name: _plain(known[name]) for name in known}, ""))


def _inside(cls: type, values: dict[str, Any], defaults: dict[str, Any], place: str) -> Iterator[Change]:
    from rlhf.schema import settings

    known = settings(cls)
    for name, value in values.items():
        where = f"{place}.{name}" if place else name
        if name in known:
            yield from _changed(known[name].annotation, value, defaults.get(name, MISSING), where)
        else:
            yield from _all(value, where)


def _changed(annotation: Any, value: Any, default: Any, place: str) -> Iterator[Change]:
    """What differs from the default in one setting."""
    from rlhf.schema import shape

    form = shape(annotation)
    if default is None and isinstance(value, dict) and form.kind in ("dict", "group"):
        yield Change(place, text(value), text(None))  # it being there is what differs, whatever stands in it
    elif form.kind == "dict" and isinstance(value, dict):
        for key, entry in value.items():
            inner = default.get(key, MISSING) if isinstance(default, dict) else MISSING
            yield from _changed(form.inner, entry, inner, f"{place}.{key}")
    elif form.kind == "component" and isinstance(value, dict) and "class_path" in value:
        yield from _component(value, default, place)
    elif form.kind == "group" and isinstance(value, dict):
        inner = default if isinstance(default, dict) else _defaults(form.inner)
        yield from _inside(form.inner, value, inner, place)
    elif value != default:
        yield Change(place, text(value), "" if default is MISSING else text(default))


def _component(value: dict[str, Any], default: Any, place: str) -> Iterator[Change]:
    from rlhf.registry import locate

    path, arguments = value["class_path"], value.get("init_args") or {}
    inner = default["init_args"] if isinstance(default, dict) and default.get("class_path") == path else None
    if inner is None:
        yield Change(place, text(value, deep=False), "" if default is MISSING else text(default, deep=False))
    try:
        cls = locate(path)
    except (UserError, ImportError):
        yield from _all(arguments, place)
        return
    yield from _inside(cls, arguments, inner if inner is not None else _defaults(cls), place)


def _defaults(cls: type) -> dict[str, Any]:
    from rlhf.schema import settings

    return {name: _plain(setting) for name, setting in settings(cls).items()}


def _plain(setting: Any) -> Any:
    from rlhf.schema import to_plain

    return MISSING if setting.default is MISSING else to_plain(setting.annotation, setting.default)


def _all(value: Any, place: str) -> Iterator[Change]:
    for key, entry in flat(value, place).items():
        yield Change(key, text(entry), "")


def text(value: Any, *, deep: bool = True) -> str:
    """A value as a config would have it, on one line; components by the name of their class.

    Args:
        value: Plain data.
        deep: Whether a component's settings follow its name.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and "class_path" in value:
        arguments = value.get("init_args") if deep else None
        name = str(value["class_path"]).rpartition(".")[2]
        return f"{name}({json.dumps(arguments, ensure_ascii=False)})" if arguments else name
    return json.dumps(value, ensure_ascii=False, default=str)


class ClassPath(str):
    """The whole name of a class, among texts."""


def flat(value: Any, place: str = "", *, whole: bool = False) -> dict[str, Any]:
    """A config as dotted keys; a component is the name of its class, and its settings follow.

    Args:
        value: Plain data.
        place: Its dotted key.
        whole: Whether classes have their whole path, and what stands in lists of components has keys of its own.
    """
    if whole and isinstance(value, list) and any(isinstance(entry, dict) for entry in value):
        value = {str(index): entry for index, entry in enumerate(value)}
    if not (isinstance(value, dict) and value):
        return {place: value}
    found: dict[str, Any] = {}
    if "class_path" in value:
        found[place] = ClassPath(value["class_path"]) if whole else text(value, deep=False)
        value = value.get("init_args") or {}
    for key, entry in value.items():
        found |= flat(entry, f"{place}.{key}" if place else str(key), whole=whole)
    return found


def differences(configs: Sequence[dict[str, Any]]) -> list[tuple[str, list[str]]]:
    """The settings in which runs differ: the dotted key, and each run's value; "—" where it has none."""
    flattened = [flat(config) for config in configs]
    keys = dict.fromkeys(key for one in flattened for key in one)
    rows = [(key, [text(one[key]) if key in one else "—" for one in flattened]) for key in keys]
    return [(key, values) for key, values in rows if len(set(values)) > 1]

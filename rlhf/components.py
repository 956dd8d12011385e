"""``python -m rlhf.components [KIND or NAME]``: what can be named in a config, with its settings."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import json
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import MISSING
from typing import TYPE_CHECKING, Any

from rlhf.command import guarded, prepare_environment

if TYPE_CHECKING:
    from rlhf.registry import Registry
    from rlhf.schema import Setting


GROUPS, COLUMN_MAPS_KIND = "settings-groups", "column-maps"


def _default(value: Any) -> str:
    """A default as it would stand in a config, a component or group by its class."""
    if value is MISSING:
        return "required"
    if dataclasses.is_dataclass(value):
        return type(value).__name__
    return json.dumps(value, ensure_ascii=False)


def _line(setting: Setting) -> str:
    from rlhf.schema import spell

    return f"{setting.name}: {spell(setting.annotation)} = {_default(setting.default)}"


def _print_kind(kind: str, registry: Registry[Any], only: str | None = None) -> None:
    print(f"{kind} ({registry.base.__name__})")
    for name in [only] if only else registry.names():
        _print_class(registry.get(name), name, whole=only is not None)
    if not len(registry):
        print("  none")
    print()


def _print_class(cls: type, name: str | None = None, *, whole: bool = False) -> None:
    """A class with its settings; ``whole``: with all that it says of itself, such as formula and source."""
    from rlhf.registry import import_path
    from rlhf.schema import explanations, settings

    about = inspect.cleandoc(cls.__doc__ or "").partition("\nArgs:")[0].strip()
    about = about if whole else about.partition("\n")[0]
    print(f"  {name or cls.__name__}  [{import_path(cls)}]\n{textwrap.indent(about, '    ')}")
    texts = explanations(cls)
    for setting in settings(cls).values():
        print(f"      {_line(setting)}")
        if setting.name in texts:
            print(f"          {texts[setting.name]}")


def _groups() -> dict[str, type]:
    """Settings that are no choice of a class: the experiment's own, and the groups that stand in others'."""
    from rlhf.experiment import Experiment
    from rlhf.registry import REGISTRIES
    from rlhf.schema import classes

    components = {cls for registry in REGISTRIES.values() for cls in registry}
    found = classes([Experiment, *components]) - components
    return {cls.__name__: cls for cls in sorted(found, key=lambda cls: cls.__name__)}


def _print_groups(only: str | None = None) -> None:
    print(f"{GROUPS} (settings that stand in others', without class_path)")
    for name, cls in _groups().items():
        if only in (None, name):
            _print_class(cls, whole=only is not None)
    print()


def _print_column_maps() -> None:
    from rlhf.data.column_maps import COLUMN_MAPS

    print(f"{COLUMN_MAPS_KIND} (what columns of a data source may name)")
    for name, columns in COLUMN_MAPS.items():
        print(f"  {name}: {json.dumps(columns)}")
    print()


def _list(argv: Sequence[str] | None) -> int:
    from rlhf.registry import REGISTRIES, load_components

    parser = argparse.ArgumentParser(
        prog="python -m rlhf.components",
        description="Lists every registered component with its settings, as name: type = default.",
        epilog=f"kinds: {', '.join([*REGISTRIES, GROUPS, COLUMN_MAPS_KIND])}",
    )
    parser.add_argument("what", nargs="*", metavar="KIND or NAME", help="only these kinds or components")
    wanted = parser.parse_args(argv).what
    load_components()
    for what in wanted or [*REGISTRIES, GROUPS, COLUMN_MAPS_KIND]:
        _print(what)
    return 0


def _print(what: str) -> None:
    """A kind, or every component and group of a name."""
    from rlhf.errors import ConfigError
    from rlhf.registry import REGISTRIES, did_you_mean

    if what in REGISTRIES:
        return _print_kind(what, REGISTRIES[what])
    if what == GROUPS:
        return _print_groups()
    if what == COLUMN_MAPS_KIND:
        return _print_column_maps()
    groups, homes = _groups(), [kind for kind, registry in REGISTRIES.items() if what in registry.names()]
    if not homes and what not in groups:
        kinds = [*REGISTRIES, GROUPS, COLUMN_MAPS_KIND]
        names = [*(name for registry in REGISTRIES.values() for name in registry.names()), *groups]
        hint = did_you_mean(what, [*kinds, *names])
        raise ConfigError(f"no component or kind is called '{what}'.{hint} Kinds: {', '.join(kinds)}.")
    for kind in homes:
        _print_kind(kind, REGISTRIES[kind], what)
    if what in groups:
        _print_groups(what)
    return None


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; see ``--help``.

    Args:
        argv: Arguments; those of the process where not given.

    Returns:
        Exit code: 0 done, 2 nothing of that name.
    """
    prepare_environment()
    return guarded(lambda: _list(argv), "rlhf.registry", "rlhf.experiment")


if __name__ == "__main__":
    sys.exit(main())

"""``python -m rlhf.components [KIND or NAME]``: what can be named in a config, with its settings."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from dataclasses import MISSING
from typing import TYPE_CHECKING, Any

from rlhf.command import guarded, prepare_environment

if TYPE_CHECKING:
    from rlhf.registry import Registry
    from rlhf.schema import Setting


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
    from rlhf.registry import import_path
    from rlhf.schema import explanations, settings

    print(f"{kind} ({registry.base.__name__})")
    for name in [only] if only else registry.names():
        cls = registry.get(name)
        summary = (cls.__doc__ or "").strip().partition("\n")[0]
        print(f"  {name}  [{import_path(cls)}]\n    {summary}")
        texts = explanations(cls)
        for setting in settings(cls).values():
            print(f"      {_line(setting)}")
            if setting.name in texts:
                print(f"          {texts[setting.name]}")
    if not len(registry):
        print("  none")
    print()


def _list(argv: Sequence[str] | None) -> int:
    from rlhf.errors import ConfigError
    from rlhf.registry import REGISTRIES, did_you_mean, load_components

    parser = argparse.ArgumentParser(
        prog="python -m rlhf.components",
        description="Lists every registered component with its settings, as name: type = default.",
        epilog=f"kinds: {', '.join(REGISTRIES)}",
    )
    parser.add_argument("what", nargs="?", metavar="KIND or NAME", help="only this kind, or this one component")
    what = parser.parse_args(argv).what
    load_components()
    if what is None or what in REGISTRIES:
        for kind in [what] if what else REGISTRIES:
            _print_kind(kind, REGISTRIES[kind])
        return 0
    homes = [kind for kind, registry in REGISTRIES.items() if what in registry.names()]
    if not homes:
        names = [name for registry in REGISTRIES.values() for name in registry.names()]
        hint = did_you_mean(what, [*REGISTRIES, *names])
        raise ConfigError(f"no component or kind is called '{what}'.{hint} Kinds: {', '.join(REGISTRIES)}.")
    for kind in homes:
        _print_kind(kind, REGISTRIES[kind], what)
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; see ``--help``.

    Args:
        argv: Arguments; those of the process where not given.

    Returns:
        Exit code: 0 done, 2 nothing of that name.
    """
    prepare_environment()
    return guarded(lambda: _list(argv), "rlhf.registry")


if __name__ == "__main__":
    sys.exit(main())

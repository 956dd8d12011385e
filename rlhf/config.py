"""From YAML and command line to an experiment, and back.

Files are merged key by key, the later one wins; then the overrides. Naming another class drops the former one's
settings, except those that both inherit alike; naming the same class keeps them. Everything is checked before any model
loads, and all problems are told at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

from jsonargparse import ArgumentError

from rlhf.errors import ConfigError
from rlhf.registry import load_components
from rlhf.schema import to_plain
from rlhf.tree import COMMAND_LINE, Checker, Merger, Node, make, refusals
from rlhf.yaml_files import read_yaml, write

T = TypeVar("T")


def split_overrides(arguments: Sequence[str]) -> list[tuple[str, str]]:
    """Pairs of key and value from ``--a.b value`` and ``--a.b=value``.

    Raises:
        ConfigError: something is no such pair.
    """
    pairs, rest = [], list(arguments)
    while rest:
        word = rest.pop(0)
        key, equals, value = word[2:].partition("=")
        if not word.startswith("--") or not key:
            raise ConfigError(f"{COMMAND_LINE}: '{word}' is no setting; write --key value, such as --seed 2")
        if not equals:
            if not rest or rest[0].startswith("--"):
                raise ConfigError(f"{COMMAND_LINE}: --{key} has no value; write --{key} value")
            value = rest.pop(0)
        pairs.append((key, value))
    return pairs


def _experiment() -> type:
    from rlhf.experiment import Experiment  # late: it imports every part of the house

    return Experiment


def load(
    files: Iterable[str | Path], overrides: Iterable[tuple[str, str]] = (), *, root: type[T] | None = None
) -> T | Any:
    """Makes an experiment.

    Args:
        files: YAML files, merged key by key, the later one wins.
        overrides: Dotted key and text each, as from the command line; see :func:`split_overrides`.
        root: What to make; an ``Experiment`` where not given.

    Returns:
        The checked experiment, or object of class ``root``.

    Raises:
        ConfigError: with every problem found.
    """
    root = root or _experiment()
    load_components()
    tree = Node(root)
    problems: list[str] = []
    mergers = [(Merger(str(path)), read_yaml(path)) for path in files]
    for merger, content in mergers:
        tree = cast(Node, merger.merge(root, tree, content, ""))
    command_line = Merger(COMMAND_LINE)
    for key, text in overrides:
        content: Any = text
        for part in reversed(key.split(".")):
            content = {part: content}
        tree = cast(Node, command_line.merge(root, tree, content, ""))
    for merger in [*(merger for merger, _ in mergers), command_line]:
        merger.explain(tree)
        problems += merger.problems
    if problems:
        raise ConfigError(problems)
    checker = Checker()
    plain = checker.plain(tree)
    if checker.problems:
        raise ConfigError(checker.problems)
    try:
        made = make(root, plain)
    except ArgumentError as error:
        raise ConfigError(str(error)) from None
    except ValueError as error:
        raise ConfigError(refusals(tree) or [str(error)]) from None
    if problems := made.check() if hasattr(made, "check") else []:
        raise ConfigError(problems)
    return made


def dump(experiment: Any) -> str:
    """An experiment as YAML with every setting spelt out; :func:`load` makes an equal one of it."""
    plain = to_plain(type(experiment), experiment)
    return write(plain)

"""From YAML and command line to an experiment, and back.

Files are merged key by key, the later one wins; then the overrides. Naming another class drops the former one's
settings, except those that both inherit alike; naming the same class keeps them. Everything is checked before any model
loads, and all problems are told at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from jsonargparse import ArgumentError

from rlhf.errors import ConfigError
from rlhf.registry import did_you_mean, load_components
from rlhf.schema import to_plain
from rlhf.tree import COMMAND_LINE, Checker, Merger, Node, construct, make, refusals
from rlhf.yaml_files import read_yaml, write

T = TypeVar("T")


def split_overrides(arguments: Sequence[str], options: Iterable[str] = ()) -> list[tuple[str, str]]:
    """Pairs of key and value from ``--a.b value`` and ``--a.b=value``.

    Args:
        arguments: Those that the command has left.
        options: Its own ones, one of which may be meant.

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
                meant = did_you_mean(f"--{key.replace('-', '_')}", [f"--{option}" for option in options])
                raise ConfigError(f"{COMMAND_LINE}: --{key} has no value; write --{key} value.{meant}")
            value = rest.pop(0)
        pairs.append((key, value))
    return pairs


def _experiment() -> type:
    from rlhf.experiment import Experiment  # late: it imports every part of the house

    return Experiment


class Override(NamedTuple):
    """A change of one setting.

    Attributes:
        key: Its dotted path.
        value: A text, as on the command line, or what YAML has for it.
        origin: Where it stands, for messages.
    """

    key: str
    value: Any
    origin: str = COMMAND_LINE


def _merged(
    files: Iterable[str | Path], overrides: Iterable[tuple[str, Any] | Override], root: type
) -> tuple[Node, Any]:
    """The tree of a config, and its plain form.

    Raises:
        ConfigError: with every problem found.
    """
    tree = Node(root)
    mergers = {}
    for path in files:
        merger = mergers[str(path)] = Merger(str(path))
        tree = cast(Node, merger.merge(root, tree, read_yaml(path), ""))
    for key, value, origin in (Override(*override) for override in overrides):
        content: Any = value
        for part in reversed(key.split(".")):
            content = {part: content}
        merger = mergers.setdefault(f"{origin}\n", Merger(origin, override=True))
        tree = cast(Node, merger.merge(root, tree, content, ""))
    for merger in mergers.values():
        merger.explain(tree)
    if problems := [problem for merger in mergers.values() for problem in merger.problems]:
        raise ConfigError(problems)
    checker = Checker()
    plain = checker.plain(tree)
    if checker.problems:
        raise ConfigError(checker.problems)
    return tree, plain


def load(
    files: Iterable[str | Path],
    overrides: Iterable[tuple[str, Any] | Override] = (),
    *,
    root: type[T] | None = None,
    quickly: bool = False,
) -> T | Any:
    """Makes an experiment.

    Args:
        files: YAML files, merged key by key, the later one wins.
        overrides: Dotted key and text each, as from the command line; see :func:`split_overrides`. Or
            :class:`Override`.
        root: What to make; an ``Experiment`` where not given.
        quickly: Whether the objects are made without jsonargparse, which looks at every value once more.

    Returns:
        The checked experiment, or object of class ``root``.

    Raises:
        ConfigError: with every problem found.
    """
    root = root or _experiment()
    load_components()
    tree, plain = _merged(files, overrides, root)
    try:
        made = construct(tree) if quickly else make(root, plain)
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

"""YAML as people write it: 1e-3 is a number, a key given twice is an error, dates are text."""

from __future__ import annotations

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from rlhf.errors import ConfigError


def _name(key: yaml.Node) -> yaml.Node:
    """A key as it is meant: ``on:`` and ``no:`` are names, though as values these words are true and false."""
    if key.tag == "tag:yaml.org,2002:bool" and key.value.lower() not in ("true", "false"):
        return yaml.ScalarNode("tag:yaml.org,2002:str", key.value, key.start_mark, key.end_mark)
    return key


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: dict[Hashable, str] = {}  # 1 and 1.0 are one key, and so are 1 and true
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                continue
            value = self.construct_object(_name(key), deep=True)
            if isinstance(value, Hashable) and value in seen:
                first = "" if seen[value] == key.value else f", first as '{seen[value]}'"
                raise yaml.constructor.ConstructorError(
                    None, None, f"'{key.value}' is given twice{first}", key.start_mark
                )
            if isinstance(value, Hashable):
                seen[value] = key.value
        self.flatten_mapping(node)
        node.value = [(_name(key), value) for key, value in node.value]
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Quotes what :class:`_Loader` would not read back as text."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_FLOAT = re.compile(
    r"[-+]?(?:[0-9][0-9_]*)?\.[0-9_]+(?:[eE][-+]?[0-9]+)?$|[-+]?[0-9][0-9_]*\.?(?:[eE][-+]?[0-9]+)$|[-+]?[0-9][0-9_]*\.$"
    r"|[-+]?\.(?:inf|Inf|INF)$|\.(?:nan|NaN|NAN)$"
)
for _class in (_Loader, _Dumper):
    _class.yaml_implicit_resolvers = {
        first: [(tag, rule) for tag, rule in rules if tag.rpartition(":")[2] not in ("float", "timestamp")]
        for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    _class.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+.0123456789"))


def parse(text: str) -> Any:
    """What a YAML text says.

    Raises:
        yaml.YAMLError: it is no YAML.
    """
    return yaml.load(text, _Loader)


def write(content: Any) -> str:
    """A tree of plain values as YAML, keys in their order; :func:`parse` reads the same back."""
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def read_yaml(path: str | Path) -> dict[str, Any]:
    """The mapping in a YAML file.

    Raises:
        ConfigError: no such file, no YAML, or something other than keys with values.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        folder = Path(path).resolve().parent
        near = ", ".join(sorted(p.name for p in folder.glob("*.yaml"))) if folder.is_dir() else ""
        there = f"{folder} has {near}" if near else f"there is no YAML file in {folder}"
        raise ConfigError(f"{path}: no such file; {there}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}; give a YAML file") from None
    try:
        content = parse(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: is not YAML: {' '.join(str(error).split())}") from None
    if content is None:
        raise ConfigError(f"{path}: is empty; give at least name and stages")
    if not isinstance(content, dict):
        raise ConfigError(
            f"{path}: holds a {type(content).__name__}; its top level must be keys, such as name and stages"
        )
    return content

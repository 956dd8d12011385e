"""A config between YAML and objects: files and overrides are merged into it by annotation, then it is built.

Every setting knows where it was written, so every error can say so. Merging knows the classes, so that naming another
class drops the settings of the former one (but keeps those inherited from a common component, as PPO's data in a
variant of PPO), and naming none changes those of the default.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field
from typing import Any, Union, get_args, get_origin

from jsonargparse import ArgumentParser, set_parsing_settings
from yaml import YAMLError

from rlhf.registry import REGISTRIES, Registry, did_you_mean, import_path
from rlhf.schema import Shape, classes, is_named, resolve_annotations, settings, shape, shared, spell, to_plain, typed
from rlhf.yaml_files import parse

COMMAND_LINE = "command line"
DEFAULT = "default"
MANY = 3
"""Up to so many classes are named as those that have a setting."""

# null is a value, not "left out"; a dict in a free-form setting stays a dict
set_parsing_settings(unset_sentinel=True, instantiate_subclass_spec_in_any=False)


@dataclass(frozen=True)
class Leaf:
    """A plain value, not typed yet, and where it was written: in a file, or in an override, where text may be more."""

    value: Any
    annotation: Any
    origin: str
    written: bool = True


@dataclass(frozen=True)
class Node:
    """A component or a group: its class, and those of its settings that were given."""

    cls: type
    given: dict[str, Tree] = field(default_factory=dict)


Tree = Union[Node, Leaf, dict[str, "Tree"], list["Tree"]]


def join(path: str, key: object) -> str:
    """The dotted path of a key."""
    return f"{path}.{key}" if path else str(key)


def from_value(annotation: Any, value: Any) -> Tree:
    """The tree of a default value."""
    kind, inner, _, _ = shape(annotation)
    if kind in ("component", "group") and isinstance(value, inner):
        cls = type(value)
        return Node(cls, {name: from_value(s.annotation, getattr(value, name)) for name, s in settings(cls).items()})
    if kind == "dict" and isinstance(value, Mapping):
        return {key: from_value(inner, entry) for key, entry in value.items()}
    if kind == "list" and isinstance(value, (list, tuple)):
        return [from_value(inner, entry) for entry in value]
    return Leaf(value, annotation, DEFAULT)


@dataclass
class Merger:
    """Puts one file, or one override, into the tree.

    Attributes:
        origin: The file's name, or where the override stands.
        override: Whether it is one: there ``init_args`` may be left out, and a text is read as what its setting is.
        problems: What was wrong so far.
        misplaced: Path, class and key of each setting that its class does not have; explained once the tree is whole.
    """

    origin: str
    override: bool = False
    problems: list[str] = field(default_factory=list)
    misplaced: list[tuple[str, type, str]] = field(default_factory=list)

    def problem(self, path: str, text: str) -> None:
        """Notes a problem at a place."""
        self.problems.append(f"{self.origin}: {path}: {text}" if path else f"{self.origin}: {text}")

    def merge(self, annotation: Any, old: Tree | None, new: Any, path: str, default: Any = MISSING) -> Tree | None:
        """The tree with ``new`` put over ``old``; ``default`` is what holds where there is no old.

        Returns:
            None where ``new`` is wrong; the problem is noted.
        """
        form = shape(annotation)
        if form.kind != "value" and self.override and isinstance(new, str):
            new = _read(new, plain=form.plain is not None)
        if new is None:
            if form.optional:
                return Leaf(None, annotation, self.origin)
            otherwise = "it is required" if default is MISSING else "or leave the key out"
            return self.problem(path, f"null is not allowed; give {spell(annotation)}, {otherwise}")
        if form.kind == "value" or _is_plain(form, new):
            return Leaf(new, annotation, self.origin, written=not self.override)
        if isinstance(old, Leaf):  # null, or a plain value where a structure may stand
            old = None
        if form.kind == "dict":
            return self._dict(form, old, new, path, default)
        if form.kind == "list":
            if isinstance(new, list):
                entries = [self.merge(form.inner, None, entry, join(path, i)) for i, entry in enumerate(new)]
                return [entry for entry in entries if entry is not None]
            return self.problem(path, f"expected a list of {spell(form.inner)}, not {new!r}")
        node = old if isinstance(old, Node) else None
        usual = from_value(annotation, default)
        fallback = usual if isinstance(usual, Node) else None
        merge = self._component if form.kind == "component" else self._group
        return merge(form.inner, node, fallback, new, path)

    def _dict(self, form: Shape, old: Tree | None, new: Any, path: str, default: Any) -> Tree | None:
        if not isinstance(new, dict):
            return self.problem(path, f"expected named entries (name: {spell(form.inner)}), not {new!r}")
        merged = dict(old) if isinstance(old, dict) else {}
        if not merged and self.override and isinstance(default, Mapping):
            merged = {key: from_value(form.inner, entry) for key, entry in default.items()}
        if merged and not new:
            return self.problem(path, f"{{}} would change nothing; set what is to go to null ({', '.join(merged)})")
        for key, entry in ((str(key), entry) for key, entry in new.items()):
            if key not in merged and _nameless(form.inner, entry):
                there = f"Known: {', '.join(merged)}." if merged else "It has no entries yet."
                hint = f"{did_you_mean(key, merged)} {there} To add one, name its class with class_path."
                self.problem(join(path, key), f"there is no '{key}' here.{hint}")
                continue
            if (entry is None or entry == "null") and key in merged and not shape(form.inner).optional:
                del merged[key]
                continue
            tree = self.merge(form.inner, merged.get(key), entry, join(path, key))
            if tree is not None:
                merged[key] = tree
        return merged

    def _group(self, cls: type, old: Node | None, fallback: Node | None, new: Any, path: str) -> Tree | None:
        if not isinstance(new, dict):
            wanted = f"one key per setting: {', '.join(settings(cls))}"
            return self.problem(path, f"expected the settings of {cls.__name__}, not {new!r}; write {wanted}")
        return self._settings(old or fallback or Node(cls), new, path)

    def _component(self, base: type, old: Node | None, fallback: Node | None, new: Any, path: str) -> Tree | None:
        new = {"class_path": new} if isinstance(new, str) else new
        if not isinstance(new, dict):
            return self.problem(
                path, f"expected {base.__name__}, as 'Name' or {{class_path: Name, init_args: {{…}}}}, not {new!r}"
            )
        if old is not None and not new:
            return self.problem(path, f"{{}} would change nothing of {old.cls.__name__}; name what is to change")
        inside = new.get("init_args") or {}
        beside = {key: value for key, value in new.items() if key not in ("class_path", "init_args")}
        if not isinstance(inside, dict):
            return self.problem(join(path, "init_args"), f"expected the settings of the class, not {inside!r}")
        if self.override:
            inside, beside = {**inside, **beside}, {}
        node = old or fallback or (Node(base) if base in Registry(base) else None)
        if "class_path" in new:
            try:
                cls = Registry(base).get(str(new["class_path"]))
            except ValueError as error:
                return self.problem(path, str(error))
            node = _turned(old, cls) if old is not None else Node(cls)
        for key in beside:
            self.problem(
                join(path, key),
                f"the settings of a class belong under init_args; write {{class_path: "
                f"{node.cls.__name__ if node else 'Name'}, init_args: {{{key}: …}}}}",
            )
        if node is None:
            known = ", ".join(Registry(base).names()) or "none"
            return self.problem(path, f"names no {base.__name__}; give class_path. Known: {known}.")
        return self._settings(node, inside, path)

    def _settings(self, node: Node, new: dict[Any, Any], path: str) -> Node:
        known, given = settings(node.cls), dict(node.given)
        for key, value in new.items():
            if key not in known:
                self.misplaced.append((path, node.cls, str(key)))
                continue
            setting = known[key]
            tree = self.merge(setting.annotation, given.get(key), value, join(path, key), setting.default)
            if tree is not None:
                given[key] = tree
        return Node(node.cls, given)

    def explain(self, root: Node) -> None:
        """Turns each misplaced key into a problem that says what was meant, or where the key belongs."""
        everywhere = list(places(root, ""))
        for path, cls, key in self.misplaced:
            text = f"{cls.__name__} has no setting '{key}'."
            meant = did_you_mean(key, settings(cls))
            homes = sorted((p for p, name in everywhere if name == key), key=lambda p: -_shared(p, path))
            if homes and not meant:
                meant = f" It is a setting of {homes[0] or 'the experiment itself'}."
            if not meant and 0 < len(others := _with_setting(cls, key)) <= MANY:
                meant = f" {' and '.join(others)} {'have' if others[1:] else 'has'} it: name that class first."
            if not meant:
                meant = f" It has: {', '.join(settings(cls)) or 'none'}."
            self.problem(join(path, key), text + meant)


def _with_setting(cls: type, key: str) -> list[str]:
    """Other classes of the same kind that have the setting."""
    kinds = [registry for registry in REGISTRIES.values() if cls in registry]
    return sorted({other.__name__ for registry in kinds for other in registry if key in settings(other)})


def _turned(node: Node, cls: type) -> Node:
    """The node as one of another class, with those of its settings that mean the same there."""
    kept = shared(node.cls, cls) if cls is not node.cls else node.given
    return Node(cls, {name: tree for name, tree in node.given.items() if name in kept})


def _nameless(annotation: Any, content: Any) -> bool:
    """Whether settings are given of a component that must be named, and is not."""
    kind, base, _, _ = shape(annotation)
    return (
        kind == "component" and isinstance(content, dict) and "class_path" not in content and base not in Registry(base)
    )


def _is_plain(form: Shape, new: Any) -> bool:
    """Whether a value is one that may stand in the place of a structure."""
    if form.plain is None or isinstance(new, dict):
        return False
    return not isinstance(new, list) or list in (get_origin(one) for one in (form.plain, *get_args(form.plain)))


def _read(text: str, *, plain: bool) -> Any:
    """What stands on the command line for a structure: a name, null, or YAML in braces."""
    try:
        content = parse(text)
    except YAMLError:
        return text
    return text if plain and not isinstance(content, (dict, list)) else content


def _shared(a: str, b: str) -> int:
    """How many leading keys two paths share."""
    pairs = zip(a.split("."), b.split("."), strict=False)
    return next((i for i, (left, right) in enumerate(pairs) if left != right), min(a.count("."), b.count(".")) + 1)


def places(tree: Tree, path: str) -> Iterator[tuple[str, str]]:
    """Path of the owner and name of every setting that the tree has, given or by default."""
    if isinstance(tree, Node):
        for name, setting in settings(tree.cls).items():
            yield path, name
            below = tree.given.get(name) or from_value(setting.annotation, setting.default)
            yield from places(below, join(path, name))
    elif isinstance(tree, dict):
        for key, entry in tree.items():
            yield from places(entry, join(path, key))
    elif isinstance(tree, list):
        for index, entry in enumerate(tree):
            yield from places(entry, join(path, index))


class Checker:
    """Turns a tree into the plain config that jsonargparse makes objects of: values typed, classes by their path.

    Attributes:
        problems: What was wrong so far, each with the place it was written at.
    """

    def __init__(self) -> None:
        self.problems: list[str] = []

    def plain(self, tree: Tree, path: str = "", *, named: bool = False) -> Any:
        """The config of a tree; ``named`` where a class must be said beside its settings."""
        if isinstance(tree, Leaf):
            return self._value(tree, path)
        if isinstance(tree, dict):
            return {key: self.plain(entry, join(path, key), named=named) for key, entry in tree.items()}
        if isinstance(tree, list):
            return [self.plain(entry, join(path, index), named=named) for index, entry in enumerate(tree)]
        known = settings(tree.cls)
        given = {
            name: self.plain(entry, join(path, name), named=is_named(known[name].annotation))
            for name, entry in tree.given.items()
        }
        for name, setting in known.items():
            if name in given:
                continue
            if setting.default is MISSING:
                self.problems.append(
                    f"{join(path, name)}: {tree.cls.__name__} needs this setting, of type {spell(setting.annotation)}"
                )
            else:  # said outright, for jsonargparse would take it from a default instance of the same class
                given[name] = to_plain(setting.annotation, setting.default)
        return {"class_path": import_path(tree.cls), "init_args": given} if named else given

    def _value(self, leaf: Leaf, path: str) -> Any:
        if leaf.origin == DEFAULT or leaf.value is None:
            return leaf.value
        try:
            return typed(leaf.annotation, leaf.value, written=leaf.written)
        except ValueError as error:
            self.problems.append(f"{leaf.origin}: {path}: {error}")


def make(cls: type, plain: Mapping[str, Any]) -> Any:
    """The object of a class from its settings, nested components included: jsonargparse's part.

    Raises:
        UserError: a constructor refused its settings.
        ArgumentError: jsonargparse did.
    """
    for reachable in classes([cls, *(component for registry in REGISTRIES.values() for component in registry)]):
        resolve_annotations(reachable)
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(cls, "made")
    return parser.instantiate(parser.parse_object({"made": dict(plain)})).made


def construct(tree: Tree) -> Any:
    """The object of a tree in which :class:`Checker` has found no problem, as :func:`make` makes it, in a tenth of the
    time: values are typed already, and jsonargparse would look at each of them several times more.

    Raises:
        UserError: a constructor refused its settings.
    """
    if isinstance(tree, Leaf):
        if tree.origin == DEFAULT or tree.value is None:
            return tree.value
        return typed(tree.annotation, tree.value, written=tree.written)
    if isinstance(tree, dict):
        return {key: construct(entry) for key, entry in tree.items()}
    if isinstance(tree, list):
        return [construct(entry) for entry in tree]
    return tree.cls(**{name: construct(entry) for name, entry in tree.given.items()})


def refusals(tree: Tree, path: str = "") -> list[str]:
    """Which objects of a tree their constructors refuse to be, innermost first, each with its place."""
    if isinstance(tree, Leaf):
        return []
    below = tree.given if isinstance(tree, Node) else dict(enumerate(tree)) if isinstance(tree, list) else tree
    found = [problem for key, entry in below.items() for problem in refusals(entry, join(path, key))]
    if found or not isinstance(tree, Node):
        return found
    try:
        make(tree.cls, Checker().plain(tree))
    except ValueError as error:
        return [f"{path or 'experiment'} ({tree.cls.__name__}): {error}"]
    return []

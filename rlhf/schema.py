"""What an annotation allows in a config: a component, a group of settings, a dict or list of such, or a plain value."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
import typing
from abc import ABCMeta
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass
from typing import Any, Literal, NamedTuple, Union

from jsonargparse import ArgumentError, ArgumentParser

from rlhf.interfaces import ModelPath
from rlhf.registry import did_you_mean, import_path

Kind = Literal["component", "group", "dict", "list", "value"]


@dataclass(frozen=True)
class Setting:
    """One constructor argument of a component.

    Attributes:
        name: Its name.
        annotation: Its type, resolved.
        default: Its default value, ``dataclasses.MISSING`` where it must be given.
    """

    name: str
    annotation: Any
    default: Any = MISSING


@functools.cache
def settings(cls: type) -> dict[str, Setting]:
    """The constructor arguments of a class, in order. Classes that are no dataclasses count by their ``__init__``."""
    if dataclasses.is_dataclass(cls):
        hints = typing.get_type_hints(cls)
        return {f.name: Setting(f.name, hints[f.name], _default(f)) for f in dataclasses.fields(cls) if f.init}
    hints = typing.get_type_hints(cls.__init__)
    parameters = list(inspect.signature(cls).parameters.values())
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    return {
        p.name: Setting(p.name, hints.get(p.name, Any), MISSING if p.default is p.empty else p.default) for p in named
    }


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


@functools.cache
def model_paths(cls: type) -> frozenset[str]:
    """The settings of a dataclass that are annotated as ``ModelPath``, alone or in a union."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return frozenset(
        field.name
        for field in dataclasses.fields(cls)
        if ModelPath in (hints[field.name], *typing.get_args(hints[field.name]))
    )


def shared(a: type, b: type) -> set[str]:
    """Settings that mean the same in two classes: inherited from a common component, and with the same default."""
    ancestors = [cls for cls in a.__mro__ if cls in b.__mro__ and dataclasses.is_dataclass(cls)]
    names = {name for cls in ancestors for name in settings(cls)}
    return {name for name in names if settings(a).get(name) == settings(b).get(name)}


def classes(roots: Iterable[type]) -> set[type]:
    """The given classes and the groups of settings that theirs lead to."""
    found: set[type] = set()
    pending = list(roots)
    while pending:
        cls = pending.pop()
        if cls not in found:
            found.add(cls)
            shapes = [shape(setting.annotation) for setting in settings(cls).values()]
            pending += [inner for kind, inner, _, _ in map(_innermost, shapes) if kind == "group"]
    return found


def _innermost(form: Shape) -> Shape:
    return _innermost(shape(form.inner)) if form.kind in ("dict", "list") else form


def resolve_annotations(cls: type) -> None:
    """Puts types in the place of the texts that ``from __future__ import annotations`` leaves on a constructor.

    jsonargparse would evaluate the texts itself, for which it imports what stands under TYPE_CHECKING (transformers:
    seconds), and where that fails it accepts any value.
    """
    if isinstance(cls.__init__, types.FunctionType):  # else it has no constructor of its own, and no settings
        cls.__init__.__annotations__ = {name: setting.annotation for name, setting in settings(cls).items()}


def explanations(cls: type) -> dict[str, str]:
    """What each setting of a class means, from the ``Args:`` of its docstring and those of its bases."""
    from docstring_parser import parse

    texts: dict[str, str] = {}
    for ancestor in reversed(cls.__mro__):
        for parameter in parse(ancestor.__doc__ or "").params if ancestor is not object else ():
            texts[parameter.arg_name] = " ".join((parameter.description or "").replace("``", "").split())
    return {name: texts[name] for name in settings(cls) if name in texts}


class Shape(NamedTuple):
    """How the config of an annotation looks.

    Attributes:
        kind: What it is.
        inner: The class of a component or group; the annotation of a dict's or list's entries; else the annotation.
        optional: Whether null is allowed.
        plain: Annotation of a plain value that may stand in its place, as in ``float | dict[str, float]``; or None.
    """

    kind: Kind
    inner: Any
    optional: bool = False
    plain: Any = None


def is_component(annotation: Any) -> bool:
    """Whether a class of this base is chosen by name. Abstract bases say so; plain dataclasses are groups."""
    return isinstance(annotation, ABCMeta) and annotation.__module__ != "collections.abc"


@functools.cache
def shape(annotation: Any) -> Shape:
    """The shape of an annotation."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (Union, types.UnionType):
        members = [a for a in arguments if a is not type(None)]
        structured = [member for member in members if shape(member).kind != "value"]
        if len(structured) == 1:
            others = [member for member in members if member is not structured[0]]
            plain = Union[tuple(others)] if others else None
            return shape(structured[0])._replace(optional=len(members) < len(arguments), plain=plain)
        return Shape("value", annotation, optional=type(None) in arguments)
    if origin is dict and arguments[0] is str:
        return Shape("dict", arguments[1])
    if origin is list and shape(arguments[0]).kind != "value":
        return Shape("list", arguments[0])
    if is_component(origin or annotation):
        return Shape("component", origin or annotation)
    if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
        return Shape("group", annotation)
    return Shape("value", annotation, optional=annotation in (Any, type(None)))


def is_named(annotation: Any) -> bool:
    """Whether what stands there says its class: a component, or a dict or list of them."""
    kind, inner, _, _ = shape(annotation)
    return kind == "component" or (kind in ("dict", "list") and is_named(inner))


def spell(annotation: Any) -> str:
    """An annotation as a person would write it: ``float | None``, ``'token' | 'sequence'``."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is type(None):
        return "None"
    if origin in (Union, types.UnionType):
        return " | ".join(spell(argument) for argument in arguments)
    if origin is Literal:
        return " | ".join(repr(argument) for argument in arguments)
    if origin is not None:
        return f"{spell(origin)}[{', '.join(spell(argument) for argument in arguments)}]"
    return getattr(annotation, "__name__", str(annotation))


def typed(annotation: Any, value: Any, *, written: bool) -> Any:
    """A plain value as its annotation wants it.

    Args:
        annotation: What it shall be.
        value: What was given.
        written: It stood in a file, where text is text; on the command line everything is, and ``null`` means None.

    Raises:
        ValueError: it cannot be that.
    """
    is_union = typing.get_origin(annotation) in (Union, types.UnionType)
    members = typing.get_args(annotation) if is_union else (annotation,)
    if isinstance(value, str):
        if written and (str in members or Any in members):
            return value
        if bool in members and value in ("0", "1"):  # the parser takes true, yes, on and their opposites itself
            return value == "1"
    try:
        found = _parser(annotation).parse_object({"value": value}).value
        if found != found:
            raise ValueError(f"{value!r} is not a number that a setting can have.")
        return found
    except ArgumentError:
        choices = [str(c) for m in members if typing.get_origin(m) is Literal for c in typing.get_args(m)]
        wanted = "one of" if typing.get_origin(annotation) is Literal else "of type"
        hint = did_you_mean(str(value), choices) or f" Give {'one of these' if choices else _example(members)}."
        raise ValueError(f"{value!r} is not {wanted} {spell(annotation)}.{hint}") from None


def _example(members: Iterable[Any]) -> str:
    """What a value may look like, in words."""
    words = {
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        str: "a text",
        list[int]: "a list of whole numbers, as [1, 2]",
        list[float]: "a list of numbers, as [0.5, 1.0]",
        list[str]: "a list of texts, as [one, two], each number or null among them in quotes",
        type(None): "null",
    }
    known = [words[member] for member in members if member in words]
    return " or ".join(known) or "what python -m rlhf.components says of it"


@functools.cache
def _parser(annotation: Any) -> ArgumentParser:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--value", type=annotation)
    return parser


def to_plain(annotation: Any, value: Any) -> Any:
    """An object made from a config, as config again: all settings, components as ``class_path`` and ``init_args``."""
    kind, inner, _, _ = shape(annotation)
    if isinstance(value, Mapping) and kind == "dict":
        return {key: to_plain(inner, entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(inner if kind == "list" else Any, entry) for entry in value]
    if not (kind in ("component", "group") and isinstance(value, inner)):
        return value
    arguments = {name: to_plain(s.annotation, getattr(value, name)) for name, s in settings(type(value)).items()}
    return {"class_path": import_path(type(value)), "init_args": arguments} if kind == "component" else arguments

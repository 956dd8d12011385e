"""The axes of a grid: what their choices are called, what they set, and how other settings speak of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rlhf.registry import did_you_mean

if TYPE_CHECKING:
    from rlhf.grid.settings import Grid

_WORDS = {True: ("true", "on", "yes", "True"), False: ("false", "off", "no", "False")}
"""What YAML takes for a truth value, though it may be the name of a choice."""
Choices = Mapping[str, str]
"""A choice for each of some axes."""


class Axis(NamedTuple):
    """Something that varies.

    Attributes:
        name: As in the grid's file.
        choices: The settings that each choice sets, by its name, as dotted keys and values.
    """

    name: str
    choices: dict[str, dict[str, Any]]

    @property
    def first(self) -> str:
        """The choice that the baseline has where nothing else is said."""
        return next(iter(self.choices))


def labels(axes: Iterable[str]) -> dict[str, str]:
    """Short names of axes: of a path the last word, where no other axis has the same."""
    names = list(axes)
    last = [name.rpartition(".")[2] for name in names]
    return {name: short if last.count(short) == 1 else name for name, short in zip(names, last, strict=True)}


def spelt(value: Any) -> str | None:
    """A plain value as the name of a choice, as one would write it in YAML; None for what has no short name."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, float):
        mantissa, e, exponent = repr(value).partition("e")
        return f"{mantissa}e{int(exponent)}" if e else mantissa
    return str(value) if isinstance(value, (int, str)) else None


def read_axes(given: Mapping[str, Any], problems: list[str]) -> list[Axis]:
    """The axes of a grid; what is wrong with them is added to ``problems``."""
    found = []
    for name, entry in given.items():
        place = f"axes.{name}"
        if not name:
            problems.append("axes: one has no name; name it")
            continue
        if isinstance(entry, list):
            axis = _shorthand(name, entry, problems)
        else:
            axis = Axis(name, {})
            for choice, changes in entry.items():
                if choice == "":
                    problems.append(f"{place}: a choice has no name; name it")
                    continue
                if "." in name and (not isinstance(changes, Mapping) or "class_path" in changes):
                    changes = {name: changes}  # a value of the setting that the axis is called by
                if not isinstance(changes, Mapping):
                    problems.append(
                        f"{place}.{choice}: is {changes!r}; a choice is the settings that it sets, such as "
                        "{stages.ppo.score_clip: 5.0}, or {} for none"
                    )
                    continue
                axis.choices[spelt(choice) or str(choice)] = dict(changes)
        if not entry:
            problems.append(f"{place}: has no choices; give two or more, or leave the axis out")
        if axis.choices:
            found.append(axis)
    return found


def _shorthand(name: str, values: Sequence[Any], problems: list[str]) -> Axis:
    """An axis that is called by the setting whose values it lists."""
    axis, place = Axis(name, {}), f"axes.{name}"
    if "." not in name and values:
        problems.append(
            f"{place}: is a list, so its name must be the path of the setting whose values it lists, such as "
            "stages.ppo.score_clip; or name its choices, each with the settings that it sets"
        )
    for value in values:
        choice = spelt(value)
        if choice is None:
            problems.append(f"{place}: {value!r} has no short name; name the choices: {{a: {{{name}: …}}, b: …}}")
        elif choice in axis.choices:
            problems.append(f"{place}: {choice} is given twice; name each value once")
        else:
            axis.choices[choice] = {name: value}
    return axis


def named(axis: Axis, value: Any) -> str | None:
    """The choice of an axis that a setting speaks of; None where there is none.

    ``whitening: off`` in YAML says false, and means a choice that is called ``off``.
    """
    words = _WORDS[value] if isinstance(value, bool) else (spelt(value),)
    return next((word for word in words if word in axis.choices), None)


def wanted(axis: Axis, value: Any) -> list[str]:
    """The choices that a condition allows: one, or a list of them."""
    found = [named(axis, one) for one in (value if isinstance(value, list) else [value])]
    return [choice for choice in found if choice is not None]


def holds(condition: Mapping[str, Any], choices: Choices, axes: Mapping[str, Axis]) -> bool:
    """Whether some choices are among those that a condition allows of each axis that it names."""
    return all(choices.get(name) in wanted(axes[name], value) for name, value in condition.items())


# -------------------------------------------------------------------------------------------------------------- checks


def check_axes(grid: Grid) -> list[str]:
    """Problems of a grid's axes, and of what speaks of them."""
    problems: list[str] = []
    axes = {axis.name: axis for axis in read_axes(grid.axes, problems)}
    known = {**dict.fromkeys(grid.axes), **axes}  # one with wrong choices is there, too
    for name, condition in grid.only_if.items():
        problems += _unknown(f"only_if.{name}", [name], known)
        problems += _check_condition(f"only_if.{name}", condition, known)
        if name in condition:
            problems.append(f"only_if.{name}: depends on itself; name other axes")
    for index, condition in enumerate(grid.exclude):
        problems += _check_condition(f"exclude.{index}", condition, known)
    if isinstance(grid.baseline, str):
        if grid.baseline not in grid.variants:
            text = f"no variant is called '{grid.baseline}'.{did_you_mean(grid.baseline, grid.variants)}"
            problems.append(f"baseline: {text} Give the name of one, or a choice for each axis")
    else:
        problems += _check_condition("baseline", grid.baseline, known, lists=False) if grid.baseline else []
    problems += _check_zip(grid.zip, known)
    for name, changes in grid.variants.items():
        if not changes:
            problems.append(f"variants.{name}: sets nothing, and would be the baseline again; leave it out")
    if not problems and (circle := _circle(grid.only_if)):
        problems.append(f"only_if: {' → '.join(circle)}: each depends on the next; let one of them stand free")
    return problems


def _unknown(place: str, names: Iterable[str], known: Mapping[str, object]) -> list[str]:
    there = ", ".join(known) or "none"
    return [
        f"{place}: no axis is called '{name}'.{did_you_mean(name, known)} Axes: {there}"
        for name in names
        if name not in known
    ]


def _check_condition(
    place: str, condition: Mapping[str, Any], axes: Mapping[str, Axis | None], *, lists: bool = True
) -> list[str]:
    if not condition:
        return [f"{place}: is empty; give a choice for each of some axes, or leave it out"]
    problems = _unknown(place, condition, axes)
    for name, value in condition.items():
        if (axis := axes.get(name)) is None:
            continue
        if isinstance(value, list) and not (lists and value):
            problems.append(f"{place}.{name}: is {value!r}; give one of {', '.join(axis.choices)}")
            continue
        for one in value if isinstance(value, list) else [value]:
            if named(axis, one) is None:
                said = spelt(one) or repr(one)
                text = f"{name} has no choice '{said}'.{did_you_mean(said, axis.choices)}"
                problems.append(f"{place}.{name}: {text} Choices: {', '.join(axis.choices)}")
    return problems


def _check_zip(groups: Sequence[Sequence[str]], axes: Mapping[str, Axis | None]) -> list[str]:
    problems: list[str] = []
    for index, group in enumerate(groups):
        place = f"zip.{index}"
        problems += _unknown(place, group, axes)
        if len(group) < 2:
            problems.append(f"{place}: is {list(group)}; a group has at least two axes, or is left out")
        sizes = {name: len(axis.choices) for name in group if (axis := axes.get(name)) is not None}
        if len(set(sizes.values())) > 1:
            counted = ", ".join(f"{name} has {size}" for name, size in sizes.items())
            problems.append(f"{place}: {counted}; axes that move together need as many choices as each other")
    every = [name for group in groups for name in group]
    twice = sorted({name for name in every if every.count(name) > 1})
    return problems + [f"zip: '{name}' is named twice; an axis moves with one group" for name in twice]


def _circle(only_if: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Axes that depend on each other in a circle; empty where none do."""

    def walk(name: str, path: list[str]) -> Iterator[list[str]]:
        if name in path:
            yield [*path[path.index(name) :], name]
            return
        for other in only_if.get(name, {}):
            yield from walk(other, [*path, name])

    return next((circle for name in only_if for circle in walk(name, [])), [])

r"""From the column names of a data set to ours.

What ours are made of, in a column map:

* ``question.full_text``, ``messages.-1.content`` — a column, or a path of fields and indices into one
* ``"{instruction}\n{input}"`` — a text with columns in it
* ``[answer_0, answer_1]`` — a list of such, row by row
* ``{label: {1: answer_0, 0: answer_1}}`` — one of such, by the value of a column; other values give none
"""

from __future__ import annotations

import difflib
import string
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rlhf.data.column_maps import COLUMN_MAPS
from rlhf.data.spool import spooled
from rlhf.errors import UserError

if TYPE_CHECKING:
    import datasets


_BLOCK = 1000


def _missing(name: str, spec: str, present: Iterable[str], where: str) -> UserError:
    names = list(present)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else "correct the column map."
    within = "" if name == spec else f" (in {spec!r})"
    return UserError(f"{where}: no column {name!r}{within}; {hint} Columns present: {', '.join(names) or 'none'}")


def _walk(value: Any, steps: Sequence[str], spec: str, where: str) -> Any:
    """Follows field names into dicts and indices into lists; None where the row holds nothing there."""
    for step in steps:
        if isinstance(value, Mapping):
            if step not in value:
                raise _missing(step, spec, value, where)
            value = value[step]
        elif isinstance(value, list):
            if not step.lstrip("-").isdigit():
                raise UserError(f"{where}: {spec!r} meets a list at {step!r}; give an index, 0 first or -1 last")
            index = int(step)
            value = value[index] if -len(value) <= index < len(value) else None
        elif value is not None:
            raise UserError(f"{where}: {spec!r} looks for {step!r} in a {type(value).__name__}; shorten the path")
    return value


def _field(dataset: datasets.Dataset, path: str, spec: str, where: str) -> list[Any]:
    """Values of a column, or of a field nested in one."""
    if path in dataset.column_names:
        return dataset[path][:]
    head, *steps = path.split(".")
    if head not in dataset.column_names:
        raise _missing(head, spec, dataset.column_names, where)
    return [_walk(value, steps, spec, where) for value in dataset[head][:]]


def _joined(dataset: datasets.Dataset, spec: str, where: str) -> list[str]:
    """Values of a pattern over columns, without white space at its ends; what a row lacks is empty."""
    parts = [(literal, name) for literal, name, _, _ in string.Formatter().parse(spec)]
    values = {name: _field(dataset, name, spec, where) for _, name in parts if name is not None}

    def text(row: int) -> str:
        pieces = [
            literal + ("" if name is None or (v := values[name][row]) is None else str(v)) for literal, name in parts
        ]
        return "".join(pieces).strip()

    return [text(row) for row in range(len(dataset))]


def _chosen(dataset: datasets.Dataset, spec: Mapping[str, Mapping[Any, Any]], where: str) -> list[Any]:
    """Values of the column that each row's value of another column points to."""
    ((by, cases),) = spec.items()
    given = {key: _values(dataset, theirs, where) for key, theirs in cases.items()}
    names = {_spelt(key): key for key in cases}
    pointers = [_spelt(value) for value in _field(dataset, by, by, where)]
    return [given[names[pointer]][row] if pointer in names else None for row, pointer in enumerate(pointers)]


def _spelt(value: Any) -> str:
    """A value as a YAML key spells it: 1, 1.0 and "1" are one, as are true and "True"."""
    return f"{value:g}" if isinstance(value, float) else str(value).lower()


def _values(dataset: datasets.Dataset, spec: Any, where: str) -> list[Any]:
    """What a column of ours is made of, see the module."""
    if isinstance(spec, list):
        return [list(row) for row in zip(*(_values(dataset, one, where) for one in spec), strict=True)]
    if isinstance(spec, Mapping):
        return _chosen(dataset, spec, where)
    pattern = "{" in spec and spec not in dataset.column_names
    return _joined(dataset, spec, where) if pattern else _field(dataset, spec, spec, where)


def check_columns(columns: str | Mapping[str, Any]) -> None:
    """Refuses a column map that says nothing that could be read.

    Raises:
        UserError: it is no known name, or an entry is no text, list or choice.
    """

    def sound(spec: Any) -> bool:
        if isinstance(spec, str):
            return bool(spec)
        if isinstance(spec, list):
            return bool(spec) and all(map(sound, spec))
        if not isinstance(spec, Mapping) or len(spec) != 1:
            return False
        ((by, cases),) = spec.items()
        return isinstance(by, str) and isinstance(cases, Mapping) and bool(cases) and all(map(sound, cases.values()))

    for ours, theirs in named(columns).items():
        if not sound(theirs):
            raise UserError(
                f"columns.{ours}: {theirs!r}; give a column, a list of columns, or {{column: {{value: column, …}}}}"
            )


def named(columns: str | Mapping[str, Any]) -> Mapping[str, Any]:
    """A column map, by its name in ``COLUMN_MAPS`` or as it is."""
    if not isinstance(columns, str):
        return columns
    if columns not in COLUMN_MAPS:
        near = difflib.get_close_matches(columns, COLUMN_MAPS, n=1)
        hint = f"did you mean {near[0]}?" if near else "write {ours: theirs}."
        raise UserError(f"columns: {columns!r} is no column map; {hint} Known: {', '.join(COLUMN_MAPS)}")
    return COLUMN_MAPS[columns]


def map_columns(dataset: datasets.Dataset, columns: str | Mapping[str, Any], where: str) -> datasets.Dataset:
    """Gives a data set our column names.

    Args:
        dataset: The rows as they were read.
        columns: Ours -> theirs, see the module; or a name of ``COLUMN_MAPS``.
        where: The source, for errors.

    Returns:
        The mapped columns, and all others that were not renamed. Where both have a name, the mapped one wins.

    Raises:
        UserError: theirs is not there.
    """
    import datasets

    columns = named(columns)
    if not columns:
        return dataset
    taken = {ours: theirs for ours, theirs in columns.items() if theirs in dataset.column_names}
    parts = [
        part if ours == theirs else part.rename_column(theirs, ours)
        for ours, theirs in taken.items()
        for part in [dataset.select_columns([theirs])]
    ]
    if made := {ours: theirs for ours, theirs in columns.items() if ours not in taken}:
        parts.append(spooled(_made(dataset, made, where), where))
    others = [name for name in dataset.column_names if name not in columns and name not in columns.values()]
    mapped = datasets.concatenate_datasets([*parts, dataset.select_columns(others)] if others else parts, axis=1)
    return mapped.select_columns([*columns, *others])


def _made(dataset: datasets.Dataset, columns: Mapping[str, Any], where: str) -> Iterator[dict[str, Any]]:
    """Rows of the columns that are not there as they are: all but names."""
    for start in range(0, len(dataset), _BLOCK):
        block = dataset.select(range(start, min(start + _BLOCK, len(dataset))))
        values = {ours: _values(block, theirs, where) for ours, theirs in columns.items()}
        yield from ({name: column[row] for name, column in values.items()} for row in range(len(block)))

"""From the column names of a data set to ours."""

from __future__ import annotations

import difflib
import string
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rlhf.errors import UserError

if TYPE_CHECKING:
    import datasets


def _missing(name: str, spec: str, present: Iterable[str], where: str) -> UserError:
    names = list(present)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else "correct the column map"
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


def map_columns(dataset: datasets.Dataset, columns: Mapping[str, str], where: str) -> datasets.Dataset:
    """Gives a data set our column names.

    Args:
        dataset: The rows as they were read.
        columns: Ours -> theirs: a column, a path into one (``a.b``, ``messages.-1.content``) or a pattern with braces.
        where: The source, for errors.

    Returns:
        The mapped columns, and all others that were not renamed. Where both have a name, the mapped one wins.

    Raises:
        UserError: theirs is not there.
    """
    import datasets

    if not columns:
        return dataset
    mapped: dict[str, list[Any]] = {}
    for ours, theirs in columns.items():
        pattern = "{" in theirs and theirs not in dataset.column_names
        mapped[ours] = _joined(dataset, theirs, where) if pattern else _field(dataset, theirs, theirs, where)
    renamed = datasets.Dataset.from_dict(mapped)
    others = [name for name in dataset.column_names if name not in mapped and name not in columns.values()]
    return datasets.concatenate_datasets([renamed, dataset.select_columns(others)], axis=1) if others else renamed

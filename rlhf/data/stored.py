"""Examples in files that are mapped into memory and read example by example.

A shard is one Arrow file: a row per example, those for training first and the held-out ones behind them, and a note of
what was counted while it was made. It appears whole, by a rename, so a shard that is there is finished.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, overload

import numpy as np

from rlhf.data.examples import E, Example
from rlhf.errors import UserError
from rlhf.files import sync

if TYPE_CHECKING:
    import pyarrow as pa

_LISTS = {"list[int]": ("int32", "int32"), "list[bool] | None": ("bool_", "uint8")}
"""Annotations of rows of many small values -> what they are, and as what they are kept, in Arrow's words."""
_NOTE, _JSON = b"rlhf", b"json"


def _column(name: str, annotation: Any, values: list[Any]) -> tuple[pa.Field, pa.Array]:
    """Values as Arrow holds them: ids as int32, others as they are, or as JSON where Arrow would change them."""
    import pyarrow as pa

    if annotation in _LISTS:
        kind, width = _LISTS[annotation]
        rows = pa.array(values, type=pa.list_(getattr(pa, kind)())).cast(pa.list_(getattr(pa, width)()))
        return pa.field(name, rows.type), rows
    try:
        column = pa.array(values)
        if repr(column.to_pylist()) == repr(values):  # == would let 1 pass for 1.0, and NaN for nothing
            return pa.field(name, column.type), column
    except (pa.ArrowException, ValueError, OverflowError):
        pass
    try:
        column = pa.array([json.dumps(value) for value in values], type=pa.string())
    except (TypeError, ValueError) as error:
        raise UserError(f"{name}: cannot be kept in a file ({error}); leave such columns out of the source") from error
    return pa.field(name, column.type, metadata={_JSON: b"1"}), column


def write_shard(path: Path, examples: Sequence[Example], note: Mapping[str, Any]) -> None:
    """Writes examples of one kind, and a note (plain data) on them, in one step."""
    import pyarrow as pa

    kind = type(examples[0]) if examples else None
    columns = [
        _column(item.name, item.type, [getattr(example, item.name) for example in examples])
        for item in (dataclasses.fields(kind) if kind else ())
    ]
    schema = pa.schema([field for field, _ in columns], metadata={_NOTE: json.dumps(note).encode()})
    partial = path.with_name(f".{path.name}")
    with pa.ipc.new_file(str(partial), schema) as writer:
        if examples:
            writer.write_batch(pa.record_batch([column for _, column in columns], schema=schema))
    sync(partial)
    partial.replace(path)
    sync(path.parent)


def read_note(path: Path) -> dict[str, Any] | None:
    """The note of a shard; None where there is no such shard."""
    import pyarrow as pa

    try:
        with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as reader:
            return json.loads(reader.schema.metadata[_NOTE])
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError):
        return None


class _Lists:
    """Rows of ids or marks: views of the mapped file."""

    def __init__(self, column: pa.Array, marks: bool) -> None:
        self.column = column if column.null_count else None
        self.starts = column.offsets.to_numpy()
        values = column.values.to_numpy()
        self.values = values.view(np.bool_) if marks else values

    def __getitem__(self, row: int) -> list[Any] | None:
        if self.column is not None and not self.column[row].is_valid:
            return None
        return self.values[self.starts[row] : self.starts[row + 1]].tolist()


class _Values:
    """Rows of anything else."""

    def __init__(self, column: pa.Array, as_json: bool) -> None:
        self.column, self.as_json = column, as_json

    def __getitem__(self, row: int) -> Any:
        value = self.column[row].as_py()
        return json.loads(value) if self.as_json else value


class Shard:
    """An open shard; the file may be removed while it is open."""

    def __init__(self, path: Path, kind: type[Example]) -> None:
        import pyarrow as pa

        self.columns: dict[str, _Lists | _Values] = {}
        with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as reader:
            if not reader.num_record_batches:
                return
            batch = reader.get_batch(0)
        for item in dataclasses.fields(kind):
            field, column = batch.schema.field(item.name), batch.column(item.name)
            as_json = bool(field.metadata and _JSON in field.metadata)
            marks = item.type == "list[bool] | None"
            self.columns[item.name] = _Lists(column, marks) if item.type in _LISTS else _Values(column, as_json)

    def row(self, row: int) -> dict[str, Any]:
        """The fields of one example."""
        return {name: column[row] for name, column in self.columns.items()}


class Stored(Sequence[E], Generic[E]):
    """The examples of one source, made when they are asked for: only what is in use is in memory.

    Args:
        kind: Class of the examples.
        shards: Open shards in order.
        spans: First and last but one row of each shard that belong here.
        longest: Tokens of the longest example.
    """

    def __init__(self, kind: type[E], shards: Sequence[Shard], spans: Sequence[tuple[int, int]], longest: int) -> None:
        self.kind, self.longest = kind, longest
        self._shards = shards
        self._first = np.array([first for first, _ in spans], dtype=np.int64)
        self._ends = np.cumsum([end - first for first, end in spans], dtype=np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    @overload
    def __getitem__(self, row: int) -> E: ...
    @overload
    def __getitem__(self, row: slice) -> list[E]: ...
    def __getitem__(self, row: int | slice) -> E | list[E]:
        if isinstance(row, slice):
            return [self[at] for at in range(*row.indices(len(self)))]
        at = row + len(self) if row < 0 else row
        if not 0 <= at < len(self):
            raise IndexError(f"example {row} of {len(self)}")
        shard = int(np.searchsorted(self._ends, at, side="right"))
        before = int(self._ends[shard - 1]) if shard else 0
        return self.kind(**self._shards[shard].row(int(self._first[shard]) + at - before))

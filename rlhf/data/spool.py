"""Rows that come one after the other as a data set: on disk as soon as they are many."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf.data.cache import scratch_folder
from rlhf.errors import UserError

if TYPE_CHECKING:
    import datasets
    import pyarrow as pa

HELD_BYTES = 64 << 20
"""Bytes that are kept in memory before they go to a file."""
CHUNK = 1000


class TypesDiffer(UserError):
    """A column has types in some tables that do not go together with those in others."""


def spooled(rows: Iterable[Any], where: str) -> datasets.Dataset:
    """A data set of dicts; a key that some rows lack is None there.

    Args:
        rows: Read once, in order; a few thousand are in memory at a time.
        where: Their source, for errors.

    Raises:
        UserError: a row is no dict, or a key holds values of types that do not go together.
    """
    return collected(_tables(rows, where), where)


def collected(tables: Iterable[pa.Table], where: str = "") -> datasets.Dataset:
    """A data set of tables that are to stand behind one another.

    Args:
        tables: Read once, in order. A column that one of them lacks is None there.
        where: Their source, for errors.

    Raises:
        TypesDiffer: a column has types that do not go together.
    """
    import datasets
    import pyarrow as pa
    from datasets.table import InMemoryTable

    with scratch_folder() as folder:
        done: list[pa.Table] = []
        held: list[pa.Table] = []
        for table in tables:
            held.append(table)
            if sum(one.nbytes for one in held) > HELD_BYTES:
                done += _on_disk(held, folder, len(done))
                held = []
        done += held
        if not done:
            return datasets.Dataset.from_dict({})
        try:  # a type is changed, and the table copied, only where a later row made it wider
            whole = pa.concat_tables(done, promote_options="permissive")
        except (pa.ArrowException, ValueError) as error:
            prefix = f"{where}: " if where else ""
            raise TypesDiffer(f"{prefix}{_mixed(done)}; give every key values of one type") from error
    # an identity of its own: datasets would make one by copying and hashing the whole table
    return datasets.Dataset(InMemoryTable(whole), fingerprint=uuid.uuid4().hex)


def _tables(rows: Iterable[Any], where: str) -> Iterator[pa.Table]:
    import datasets

    source = iter(rows)
    start = 0
    while chunk := list(itertools.islice(source, CHUNK)):
        for number, row in enumerate(chunk, start + 1):
            if not isinstance(row, dict):
                raise UserError(f"{where}: row {number} is a {type(row).__name__}; yield one dict per row")
        columns = {name: [row.get(name) for row in chunk] for name in dict.fromkeys(n for row in chunk for n in row)}
        try:
            if not all(isinstance(name, str) for name in columns):
                raise TypeError(f"a key is no text: {next(n for n in columns if not isinstance(n, str))!r}")
            yield datasets.Dataset.from_dict(columns).data.table
        except Exception as error:  # datasets and pyarrow raise what their converters do; the column is what helps
            raise UserError(
                f"{where}: rows {start + 1} to {start + len(chunk)}: {_culprit(columns)} ({error}); give every key "
                "values of one type that can be kept in a table"
            ) from error
        start += len(chunk)


def _culprit(columns: dict[str, list[Any]]) -> str:
    """The first column that is no column."""
    import datasets

    for name, values in columns.items():
        try:
            datasets.Dataset.from_dict({str(name): values})
        except Exception:  # the same as in _tables
            kinds = dict.fromkeys(type(value).__name__ for value in values if value is not None)
            return f"{name!r} holds {' and '.join(kinds)}"
    return "the rows do not go together"


def _mixed(tables: list[pa.Table]) -> str:
    """The first key whose type one table has and another has otherwise."""
    import pyarrow as pa

    seen: dict[str, pa.DataType] = {}
    for field in (field for table in tables for field in table.schema):
        known = seen.setdefault(field.name, field.type)
        try:
            merged = pa.unify_schemas(
                [pa.schema([(field.name, known)]), pa.schema([field])], promote_options="permissive"
            )
            seen[field.name] = merged.field(0).type
        except (pa.ArrowException, ValueError):
            return f"{field.name!r} holds {known} in some rows and {field.type} in others"
    return "rows of types that do not go together"


def _on_disk(tables: list[pa.Table], folder: Path, number: int) -> list[pa.Table]:
    """The same tables, mapped from files: one file for those in a row that have one schema."""
    import pyarrow as pa

    mapped = []
    for at, (schema, group) in enumerate(itertools.groupby(tables, key=lambda table: table.schema)):
        path = folder / f"{number}-{at}.arrow"
        with pa.ipc.new_file(str(path), schema) as writer:
            for table in group:
                writer.write_table(table)
        with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as reader:
            mapped.append(reader.read_all())
    return mapped

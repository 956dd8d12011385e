"""JSON files as tables, read a block at a time; what cannot be read is named by line and value.

Every line of a file is one row, or the whole file is one list of rows. Text stays text, whatever it looks like: no date
is made of it. A key has one type in all rows, but a number may be whole in one row and not in another, and any value
may be null or absent.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf.data.spool import TypesDiffer, collected, spooled
from rlhf.errors import UserError

if TYPE_CHECKING:
    import datasets
    import pyarrow as pa

BLOCK_BYTES = 8 << 20
_REMEDY = "correct or remove the line"
_DEPTH = 64
"""Objects and lists inside each other; a reader that recurses would crash on very deep ones."""


def read_json(path: Path) -> datasets.Dataset:
    """The rows of a file.

    Raises:
        UserError: a line is no JSON object, or a key holds several types; says which line and what stands there.
    """
    with path.open("rb") as file:
        start = file.read(64 << 10).removeprefix(codecs.BOM_UTF8).lstrip()
    if start.startswith(b"["):
        return spooled(_listed(path), "its list")
    try:
        return collected(_tables(path))
    except TypesDiffer:  # between blocks
        _check_types(_rows(path))
        raise


def _listed(path: Path) -> list[Any]:
    """The rows of a file that is one list: it is read whole."""
    try:
        rows = json.loads(path.read_text(encoding="utf-8-sig"))
    except json.JSONDecodeError as error:
        raise UserError(f"line {error.lineno}: the list is broken there ({error.msg}); correct it") from error
    except RecursionError as error:
        raise UserError("lists or objects are nested too deeply; flatten them") from error
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise UserError(f"entry {number} of the list is {_kind(row)} ({_shown(row)}), not an object; {_REMEDY}")
        _check_values(row, f"entry {number}")
    _check_types((f"entry {number}", row) for number, row in enumerate(rows, 1))
    return rows


# ------------------------------------------------------------------------------------------------------------ blocks


def _blocks(path: Path) -> Iterator[tuple[int, bytes]]:
    """Whole lines of the file, some megabytes at a time, and the number of the first of them."""
    number = 1
    with path.open("rb") as file:
        if file.read(len(codecs.BOM_UTF8)) != codecs.BOM_UTF8:
            file.seek(0)
        while block := file.read(BLOCK_BYTES):
            block += file.readline()
            yield number, block
            number += block.count(b"\n")


def _tables(path: Path) -> Iterator[pa.Table]:
    """A table per block that holds rows."""
    import pyarrow as pa

    for number, block in _blocks(path):
        lines = [line for line in map(bytes.strip, block.splitlines()) if line]
        if not lines:
            continue
        table = None
        if all(map(_harmless, lines)):
            with contextlib.suppress(pa.ArrowException):
                table = _parsed(block)
        if table is None or table.num_rows != len(lines):
            _check_lines(number, block)
            _check_types(_rows(path))
            table = _by_hand(block, number)
        yield table


def _harmless(line: bytes) -> bool:
    """Whether pyarrow's reader can be shown a line: on what is no object, or very deep, it may crash."""
    if not line.startswith(b"{"):
        return False
    if line.count(b"{") + line.count(b"[") <= _DEPTH:
        return True
    try:
        _check_values(json.loads(line.decode()), "")
    except (ValueError, RecursionError):  # told by _check_lines
        return False
    return True


def _parsed(block: bytes) -> pa.Table:
    """The rows of a block; text that looks like a date is text."""
    import pyarrow as pa
    from pyarrow import json as reader

    def read(schema: pa.Schema | None) -> pa.Table:
        return reader.read_json(
            io.BytesIO(block),
            read_options=reader.ReadOptions(use_threads=False, block_size=len(block) + 1),
            parse_options=reader.ParseOptions(explicit_schema=schema, newlines_in_values=False),
        )

    table = read(None)
    as_text = pa.schema([(field.name, _without_dates(field.type)) for field in table.schema])
    table = table if as_text.types == table.schema.types else read(as_text)
    table.validate()
    return table


def _by_hand(block: bytes, number: int) -> pa.Table:
    """The rows of a block that is in order, though pyarrow's reader fails on it, as on some with empty objects."""
    import pyarrow as pa

    rows = [json.loads(line.decode()) for line in block.splitlines() if line.strip()]
    names = dict.fromkeys(name for row in rows for name in row)
    try:
        return pa.table({name: [row.get(name) for row in rows] for name in names})
    except (pa.ArrowException, ValueError, OverflowError) as error:
        raise UserError(f"lines from {number} on hold what no table can ({error}); {_REMEDY}s there") from error


def _without_dates(kind: pa.DataType) -> pa.DataType:
    """The type with text in place of timestamps, at any depth."""
    import pyarrow as pa

    if pa.types.is_timestamp(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_without_dates(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _without_dates(field.type)) for field in kind.fields])
    return kind


# ------------------------------------------------------------------------------------------------------------ errors


def _rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every row of the file with the name of its line, made by Python's own, slow, reader."""
    for first, block in _blocks(path):
        for number, line in enumerate(block.splitlines(), first):
            if line.strip():
                yield f"line {number}", json.loads(line.decode())


def _check_lines(first: int, block: bytes) -> None:
    """Raises for the first line that is no row."""
    import pyarrow as pa
    from pyarrow import json as pyarrow_json

    for number, line in enumerate(block.splitlines(), first):
        if not line.strip():
            continue
        where, shown = f"line {number}", _shown(line.decode())
        try:
            row = json.loads(line.decode())
        except RecursionError as error:
            raise UserError(f"{where}: nested too deeply; flatten it") from error
        except json.JSONDecodeError as error:
            why = f"{error.msg} at column {error.colno}"
            raise UserError(f"{where}: {shown} is not JSON ({why}); {_REMEDY}") from error
        if not isinstance(row, dict):
            raise UserError(f"{where}: {shown} is {_kind(row)}, not an object; {_REMEDY}")
        _check_values(row, where)
        _check_types([(where, row)])
        try:
            pyarrow_json.read_json(io.BytesIO(line))
        except pa.ArrowException as error:
            raise UserError(f"{where}: {shown} cannot be a row ({error}); {_REMEDY}") from error


def _check_values(value: Any, where: str, path: str = "", depth: int = 0) -> None:
    """Raises for text that no file can hold, and for nesting that no table is made for."""
    if depth > _DEPTH:
        raise UserError(f"{where}: {path[:40]!r} is nested more than {_DEPTH} deep; flatten it")
    if isinstance(value, dict):
        for key, inner in value.items():
            _check_values(key, where, path, depth + 1)
            _check_values(inner, where, f"{path}.{key}" if path else key, depth + 1)
    elif isinstance(value, list):
        for inner in value:
            _check_values(inner, where, path, depth + 1)
    elif isinstance(value, str) and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            half = f"\\u{ord(error.object[error.start]):04x}"
            raise UserError(f"{where}: {path!r} holds {half}, half of a character; {_REMEDY}") from error


def _check_types(rows: Iterable[tuple[str, dict[str, Any]]]) -> None:
    """Raises for the first key that holds another type than before."""
    seen: dict[str, tuple[str, str]] = {}
    for where, row in rows:
        for path, value in _values(row):
            kind, (known, since) = _kind(value), seen.setdefault(path, (_kind(value), where))
            if kind != known:
                raise UserError(
                    f"{where}: {path!r} is {kind} ({_shown(value)}), but {known} in {since}; give it one type"
                )


def _values(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value inside one, with its path, but for null."""
    if path and value is not None:
        yield path, value
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _values(inner, f"{path}.{key}" if path else key or "''")
    elif isinstance(value, list):
        for inner in value:
            yield from _values(inner, f"{path}[]")


def _kind(value: Any) -> str:
    """The JSON name of a type."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true or false"
    names = {str: "text", int: "a number", float: "a number", dict: "an object", list: "a list"}
    return names[type(value)]


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"

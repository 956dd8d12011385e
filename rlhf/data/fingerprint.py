"""Short texts that are equal where contents are: of files, rows, tokenizers, settings and code.

They are 128-bit xxh3 hashes: fast enough to read whole files every time, so that no edit ever goes unseen. They guard
against accidents, not against somebody who makes two contents of one hash.
"""

from __future__ import annotations

import dataclasses
import datetime
import inspect
import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

if TYPE_CHECKING:
    import datasets
    from transformers import PreTrainedTokenizerBase

_LIBRARIES = ("datasets", "pyarrow", "tokenizers", "transformers")


def of(*parts: bytes | str) -> str:
    """Of a sequence of texts; where one ends and the next begins counts."""
    import xxhash

    digest = xxhash.xxh3_128()
    for part in parts:
        content = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        digest.update(len(content).to_bytes(8, "big"))
        digest.update(content)
    return digest.hexdigest()


def of_files(paths: Iterable[Path]) -> str:
    """Of the files' contents in this order, read in pieces."""
    import xxhash

    digest = xxhash.xxh3_128()
    for path in paths:
        size = 0
        with path.open("rb") as file:
            while piece := file.read(1 << 20):
                digest.update(piece)
                size += len(piece)
        digest.update(size.to_bytes(8, "big"))
    return digest.hexdigest()


def of_rows(dataset: datasets.Dataset) -> str:
    """Of the names, types and values of a data set."""
    import pyarrow as pa
    import xxhash

    digest = xxhash.xxh3_128(str(dataset.features).encode())

    class Hashed:
        """A file that keeps nothing of what is written to it."""

        closed = False

        def write(self, content: Any) -> int:
            digest.update(content)
            return len(content)

        def flush(self) -> None: ...
        def close(self) -> None: ...

    table_format = dataset.with_format("arrow")
    for start in range(0, len(dataset), 1000):
        table = cast("pa.Table", table_format[start : start + 1000]).combine_chunks()
        with pa.PythonFile(Hashed(), mode="w") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
    return digest.hexdigest()


def of_tokenizer(tokenizer: PreTrainedTokenizerBase) -> str:
    """Of everything that decides a tokenizer's ids; the folder that it came from does not count."""
    chat = repr(tokenizer.chat_template)
    day = datetime.date.today().isoformat() if "strftime_now" in chat else ""  # some write the date
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        with tempfile.TemporaryDirectory() as folder:
            tokenizer.save_pretrained(folder)
            files = sorted(path for path in Path(folder).rglob("*") if path.is_file())
            return of(type(tokenizer).__qualname__, of_files(files), day)
    vocabulary = json.loads(backend.to_str())
    for name in ("truncation", "padding"):  # left by the latest call, set anew by the next
        vocabulary.pop(name, None)
    special = {name: str(value) for name, value in tokenizer.special_tokens_map.items()}
    return of(
        type(tokenizer).__qualname__,
        json.dumps(vocabulary, sort_keys=True),
        json.dumps(special, sort_keys=True),
        chat,
        day,
    )


@cache
def of_code() -> str:
    """Of the source of this package and the versions of the libraries under it."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    return of(of_files(sources), *(f"{name} {version(name)}" for name in _LIBRARIES))


def _classes(value: Any) -> Iterator[type]:
    """Classes of a component and of all that its settings hold."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield type(value)
        for item in dataclasses.fields(value):
            yield from _classes(getattr(value, item.name))
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _classes(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _classes(inner)


def of_settings(value: Any) -> str:
    """Of a component: its settings, and the source files of its classes where they are not ours."""
    files = set()
    for cls in _classes(value):
        file = None if cls.__module__.startswith("rlhf.") else inspect.getsourcefile(cls)
        if file is not None:
            files.add(Path(file))
    return of(repr(value), of_files(sorted(files)))


def of_texts(texts: Iterable[str], salt: str = "") -> np.ndarray:
    """[N, 2] uint64, a hash of each text: 16 bytes a row, ordered as the bytes of the hash are.

    These decide which rows are held out, so they are BLAKE2b, the same on every machine and in every version.
    """
    import hashlib

    key = salt.encode()
    digests = b"".join(
        hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16, key=key).digest() for text in texts
    )
    return np.frombuffer(digests, dtype=">u8").astype(np.uint64).reshape(-1, 2)

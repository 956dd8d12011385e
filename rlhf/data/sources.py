"""Where rows come from: files, the Hugging Face hub, a function of one's own, the built-in world.

What is read lies in Arrow files that are mapped into memory, so rows may be more than fit into it. Nothing read from a
file is served again by name or date: what decides is its content (``fingerprint``).
"""

from __future__ import annotations

import codecs
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from rlhf.data import fingerprint, world
from rlhf.data.cache import scratch_folder
from rlhf.data.columns import check_columns, map_columns
from rlhf.data.json_lines import read_json
from rlhf.data.spool import spooled
from rlhf.errors import UserError, telling
from rlhf.interfaces import Source
from rlhf.models.hub import hub_or_cache
from rlhf.user_code import import_module, users_code

if TYPE_CHECKING:
    import datasets

Format = Literal["json", "jsonl", "csv", "parquet", "text"]
SUFFIXES: dict[str, Format] = {
    ".json": "json",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".parquet": "parquet",
    ".txt": "text",
}


def _check(columns: str | dict[str, Any], rows: int | None = None) -> None:
    check_columns(columns)
    if rows is not None and rows < 1:
        raise UserError(f"rows: {rows}; must be at least 1")


@contextmanager
def _quiet() -> Iterator[None]:
    """No progress bars from ``datasets`` inside: they would interleave with a run's own output."""
    import datasets

    shown = datasets.is_progress_bar_enabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            datasets.enable_progress_bars()


def _finish(dataset: datasets.Dataset, columns: str | dict[str, Any], rows: int | None, where: str) -> datasets.Dataset:
    if len(dataset) == 0:
        raise UserError(f"{where}: no rows; give a source that is not empty")
    if rows is not None:
        dataset = dataset.select(range(min(rows, len(dataset))))
    return map_columns(dataset, columns, where)


# ------------------------------------------------------------------------------------------------------------ files


def _in_folder(folder: Path, wanted: Format | None) -> list[Path]:
    """The files of a folder in the wanted format, or in the only format there is."""
    found: dict[Format, list[Path]] = {}
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.suffix.lower() in SUFFIXES:
            found.setdefault(SUFFIXES[path.suffix.lower()], []).append(path)
    if wanted is None and len(found) > 1:
        raise UserError(f"{folder}: files of several formats ({', '.join(found)}); choose one with format")
    paths = found.get(wanted, []) if wanted else [path for group in found.values() for path in group]
    if not paths:
        kind = wanted or "/".join(dict.fromkeys(SUFFIXES.values()))
        present = ", ".join(sorted(path.name for path in folder.iterdir())[:10]) or "nothing"
        raise UserError(f"{folder}: a folder without {kind} files (it holds {present}); give a file or another folder")
    return paths


def _of_file(path: Path, wanted: Format | None) -> Format:
    known = wanted or SUFFIXES.get(path.suffix.lower())
    if known is None:
        raise UserError(
            f"{path}: unknown suffix {path.suffix!r}; set format to one of {sorted(set(SUFFIXES.values()))}"
        )
    if path.stat().st_size == 0:
        raise UserError(f"{path}: the file is empty; give one with rows")
    return known


def _check_utf8(path: Path) -> None:
    """The readers let other encodings through, and fail when a value is used."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    line = 1
    with path.open("rb") as file:
        while True:
            block = file.read(1 << 20)
            try:
                decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:
                line += error.object[: error.start].count(b"\n")
                raise UserError(f"line {line} is not UTF-8: {error.reason}; save the file as UTF-8") from None
            if not block:
                return
            line += block.count(b"\n")


def _read(path: Path, form: Format) -> datasets.Dataset:
    import datasets

    if form != "parquet":
        _check_utf8(path)
    if form in ("json", "jsonl"):
        return read_json(path)
    with scratch_folder() as folder, _quiet():
        options: dict[str, Any] = {"cache_dir": str(folder)}
        if form == "csv":  # as text: "NA" stays "NA" and "007" stays "007"
            import csv

            with path.open(newline="", encoding="utf-8-sig") as file:
                header = next(csv.reader(file))
            features = datasets.Features({name: datasets.Value("string") for name in header})
            return datasets.Dataset.from_csv(str(path), features=features, keep_default_na=False, **options)  # pyright: ignore
        reader = {
            "parquet": datasets.Dataset.from_parquet,
            "text": datasets.Dataset.from_text,
        }[form]
        return reader(str(path), **options)  # pyright: ignore


@dataclass(frozen=True, kw_only=True)
class Files(Source):
    r"""Rows of local files, read anew by every run.

    Args:
        path: A file, a folder (all its files of one format, by name) or a list of these.
        format: How to read them; None goes by suffix (.json a list or one object per line, .jsonl, .csv, .parquet,
            .txt one row per line in the column ``text``). Values of a CSV are text exactly as written.
        columns: Our column name -> theirs. A dot reads nested fields (``answer.text``, ``messages.-1.content``); braces
            join columns (``"{instruction}\n{input}"``); a list gathers several (``[answer_0, answer_1]``); and
            ``{label: {1: answer_0, 0: answer_1}}`` chooses by the value of a column. Or the name of a map that is
            known, such as ``rm_static`` (``rlhf.data.column_maps``). Columns not named here travel along unchanged.
        rows: Use the first so many rows only.
    """

    path: str | list[str]
    format: Format | None = None
    columns: str | dict[str, Any] = field(default_factory=dict)
    rows: int | None = None

    def __post_init__(self) -> None:
        if not self.path:
            raise UserError(f"path: {self.path!r}; give a file or a folder")
        _check(self.columns, self.rows)

    def check_inputs(self) -> None:
        for path in self._paths():
            _of_file(path, self.format)

    def load(self) -> datasets.Dataset:
        import datasets

        tables = []
        for path in self._paths():
            form = _of_file(path, self.format)
            try:
                tables.append(_read(path, form))
            except UserError as error:
                raise UserError(f"{path}: cannot be read as {form}: {error}") from error
            except Exception as error:  # readers raise whatever their parsers do; the file's name is what helps
                cause = error.__cause__ or error
                raise UserError(f"{path}: cannot be read as {form} ({cause}); repair it or set format") from error
        where = ", ".join([self.path] if isinstance(self.path, str) else self.path)
        try:
            table = tables[0] if len(tables) == 1 else datasets.concatenate_datasets(tables)
        except Exception as error:  # pyarrow and datasets share no base; the columns are what helps
            names = [table.column_names for table in tables]
            raise UserError(f"{where}: files with different columns ({names}); read them as several sources") from error
        return _finish(table, self.columns, self.rows, where)

    def fingerprint(self) -> str:
        paths = self._paths()
        forms = [_of_file(path, self.format) for path in paths]
        return fingerprint.of(repr((forms, self.columns, self.rows)), fingerprint.of_files(paths))

    def _paths(self) -> list[Path]:
        paths: list[Path] = []
        for given in [self.path] if isinstance(self.path, str) else self.path:
            path = Path(given).expanduser()
            if not path.exists():
                raise UserError(f"{path}: no such file or folder (looked in {Path.cwd()}); correct the path")
            paths += _in_folder(path, self.format) if path.is_dir() else [path]
        return paths


# ------------------------------------------------------------------------------------------------------ other sources


@dataclass(frozen=True, kw_only=True)
class Hub(Source):
    """A data set of the Hugging Face hub, by its name.

    Args:
        name: Such as ``stanfordnlp/imdb``.
        config: Configuration of the data set, where it has several.
        split: Split to read; slices such as ``train[:1%]`` work.
        columns: Our column name -> theirs, as in ``Files``.
        rows: Use the first so many rows only.
        streaming: Download no more than the rows that are used, instead of the whole data set.
    """

    name: str
    config: str | None = None
    split: str = "train"
    columns: str | dict[str, Any] = field(default_factory=dict)
    rows: int | None = None
    streaming: bool = False

    def __post_init__(self) -> None:
        _check(self.columns, self.rows)

    def load(self) -> datasets.Dataset:
        import datasets

        try:
            with _quiet(), hub_or_cache():
                dataset = datasets.load_dataset(self.name, self.config, split=self.split, streaming=self.streaming)
                if isinstance(dataset, datasets.IterableDataset):
                    dataset = spooled(itertools.islice(dataset, self.rows), self.name)
        except UserError:
            raise
        except Exception as error:  # network, name, configuration and split errors have no common base
            raise UserError(
                f"{self.name}: cannot be loaded from the hub with config {self.config!r}, split {self.split!r} "
                f"({type(error).__name__}: {error}); check name, config, split and the network, or use Files"
            ) from error
        assert isinstance(dataset, datasets.Dataset)  # a split was named
        return _finish(dataset, self.columns, self.rows, self.name)


@dataclass(frozen=True, kw_only=True)
class Generator(Source):
    """Rows that a function of your own yields as dicts, read once and kept on disk where they are many.

    The function runs every time, as only its rows tell whether they have been prepared before.

    Args:
        function: Dotted path of the function, such as ``my_data.questions``; importable from where the run starts.
        arguments: Its keyword arguments.
        columns: Our column name -> theirs, as in ``Files``.
        rows: Use the first so many rows only; the function may have more, or no end of them.
    """

    function: str
    arguments: dict[str, Any] = field(default_factory=dict)
    columns: str | dict[str, Any] = field(default_factory=dict)
    rows: int | None = None

    def __post_init__(self) -> None:
        _check(self.columns, self.rows)

    def check_inputs(self) -> None:
        self._resolve()

    def load(self) -> datasets.Dataset:
        rows = itertools.islice(self._yielded(), self.rows)
        return _finish(spooled(rows, self.function), self.columns, None, self.function)

    def _yielded(self) -> Iterator[Any]:
        with users_code(f"function: {self.function}"):
            yield from self._resolve()(**self.arguments)

    def _resolve(self) -> Callable[..., Iterable[Any]]:
        module, _, name = self.function.rpartition(".")
        if not module:
            raise UserError(f"function: {self.function!r}; give module and name, such as my_data.questions")
        try:
            with telling(f"function: {self.function!r}"):
                function = getattr(import_module(module), name)
        except AttributeError as error:
            raise UserError(f"function: {self.function!r} ({error}); give the dotted path of a function") from error
        if not callable(function):
            raise UserError(f"function: {self.function!r} is a {type(function).__name__}; give a function")
        return cast("Callable[..., Iterable[Any]]", function)


@dataclass(frozen=True, kw_only=True)
class World(Source):
    """The built-in world of product reviews, whose true reward is known (``rlhf.data.world``).

    Args:
        form: Which rows: ``prompts``; ``demonstrations`` (prompt, response); ``comparisons`` (prompt, chosen,
            rejected); ``fit_pairs`` (comparisons that only a reader of the prompt gets right); ``scored`` (prompt,
            responses, scores); ``texts`` (running text); ``passages`` (the same as prompt and response, to pretrain
            on).
        rows: How many.
        seed: Another seed, other rows.
        options: Further arguments of the function of that name in ``rlhf.data.world``, such as ``held_out: true``.
    """

    form: Literal["prompts", "demonstrations", "comparisons", "fit_pairs", "scored", "texts", "passages"]
    rows: int = 1000
    seed: int = 0
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check({}, self.rows)
        known = sorted(set(inspect.signature(getattr(world, self.form)).parameters) - {"n", "seed"})
        for name in self.options:
            if name not in known:
                raise UserError(f"options.{name}: unknown for {self.form}; known: {', '.join(known)}")

    def fingerprint(self) -> str:
        return repr(self)

    def remark(self) -> str:
        if self.form != "comparisons":
            return ""
        ceiling = world.noise_ceiling(min(self.rows, 4000), seed=self.seed, **self.options)
        return f"judges who knew the gold reward would agree with {ceiling:.1%} of these comparisons (noise ceiling)"

    def load(self) -> datasets.Dataset:
        rows = getattr(world, self.form)(self.rows, seed=self.seed, **self.options)
        return spooled(rows, f"World({self.form})")

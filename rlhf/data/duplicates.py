"""Rows that say the same: exact duplicates, which may be dropped, and near ones, which are only reported.

Exact duplicates are equal in what an example of the form is made of (prompt and response, say) once Unicode variants
(NFKC), case and white space are evened out. They are looked for among all rows of all sources, those of other phases
and of ``eval_sources`` included. Of equal rows the first stays: ``eval_sources`` count as first, then the sources in
config order, so a stage with the same sources drops the same rows and a test set keeps all of its own.

Near duplicates are found by MinHash with banding over sequences of five words, and every pair that is counted was
verified on its texts. It is done here with arrays because a row then takes 128 bytes; libraries keep Python objects of
some kilobytes.
Source: Broder, "On the resemblance and containment of documents", 1997; Leskovec et al., "Mining of Massive Datasets",
chapter 3.4 (banding).
"""

from __future__ import annotations

import unicodedata
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from rlhf.data import fingerprint, forms
from rlhf.types import Form

if TYPE_CHECKING:
    from rlhf.data.preparation import Part

DuplicatePolicy = Literal["keep", "report", "drop"]
SHINGLE = 5
"""Words of a sequence that is compared."""
BANDS, BAND_ROWS = 16, 4
"""Two rows are compared if all minima of a band agree: at similarity 0.8 that misses 2 pairs of 10,000, at 0.7 125."""
BLOCK = 1000
SHOWN = 3
"""Examples of near duplicates in the log."""


def normalise(text: str) -> str:
    """The text without differences that nobody would call one."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def shingles(text: str) -> np.ndarray:
    """[S] uint64, hashes of the distinct sequences of five words of a text; of a shorter text, of all its words."""
    words = np.array([zlib.crc32(word.encode("utf-8", "surrogatepass")) for word in text.split()], dtype=np.uint64)
    if not len(words):
        return np.zeros(0, dtype=np.uint64)
    length = min(SHINGLE, len(words))
    windows = np.lib.stride_tricks.sliding_window_view(words, length)
    return np.unique((windows * _FACTORS[:length]).sum(1, dtype=np.uint64))


_RANDOM = np.random.default_rng(0)
_FACTORS, _MULTIPLIERS = (_RANDOM.integers(0, 2**64, n, dtype=np.uint64) | 1 for n in (SHINGLE, BANDS * BAND_ROWS))
_SHIFTS = _RANDOM.integers(0, 2**64, BANDS * BAND_ROWS, dtype=np.uint64)


def bands(texts: Sequence[str]) -> np.ndarray:
    """[N, BANDS] uint64, equal in a band where the texts' minima of its hash functions are; 0 where no word is."""
    answer = np.zeros((len(texts), BANDS), dtype=np.uint64)
    for row, text in enumerate(texts):
        hashes = shingles(text)
        if len(hashes):
            # multiply, shift and take the upper half: 2-independent hash functions of 64-bit keys
            minima = ((hashes[:, None] * _MULTIPLIERS + _SHIFTS) >> np.uint64(32)).min(0)
            answer[row] = (minima.reshape(BANDS, BAND_ROWS) * _FACTORS[:BAND_ROWS]).sum(1, dtype=np.uint64) | 1
    return answer


def similarity(one: str, other: str) -> float:
    """Jaccard similarity of two texts' sequences of five words."""
    a, b = shingles(one), shingles(other)
    both = len(np.intersect1d(a, b, assume_unique=True))
    return both / max(len(a) + len(b) - both, 1)


def candidates(signatures: np.ndarray) -> np.ndarray:
    """[C, 2] pairs of rows that agree in a band, the earlier first: each row with the first and the one before it."""
    pairs = []
    for band in signatures.T:
        order = np.argsort(band, kind="stable")
        order = order[band[order] != 0]
        new = np.ones(len(order), dtype=bool)
        new[1:] = band[order[1:]] != band[order[:-1]]
        starts = np.maximum.accumulate(np.where(new, np.arange(len(order)), 0))
        later = np.flatnonzero(~new)
        pairs += [np.stack([order[other], order[later]], 1) for other in (starts[later], later - 1)]
    return np.unique(np.concatenate(pairs), axis=0)


@dataclass
class Found:
    """What was found.

    Attributes:
        dropped: Rows that were taken out of a source, by (group, source).
        lines: What to tell.
    """

    dropped: dict[tuple[str, str], int] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)


def find_duplicates(
    parts: Mapping[tuple[str, str], Part], form: Form, *, exact: DuplicatePolicy, near: float | None
) -> Found:
    """Looks for duplicates among the rows of a stage.

    Args:
        parts: Sources and where their rows belong, by (group, source); dropped rows are taken out of ``places``.
        form: What the rows are to become: its columns are compared.
        exact: What is done with exact duplicates.
        near: Least similarity of near duplicates; None looks for none.
    """
    found = Found()
    if exact == "keep" and near is None:
        return found
    rows = _Rows(parts, form)
    places = rows.places()
    first = rows.first_of_equals()
    again = (first != np.arange(len(first))) & (places != 0)
    if exact != "keep":
        for number, name in enumerate(rows.names):
            span = slice(rows.starts[number], rows.starts[number + 1])
            mine = np.flatnonzero(again[span]) + rows.starts[number]
            if len(mine):
                found.lines.append(_line(rows, name, mine, first[mine], places, exact))
                if exact == "drop":
                    parts[name].places[mine - rows.starts[number]] = 0
                    found.dropped[name] = len(mine)
    if near is not None:
        found.lines += _near(rows, (places != 0) & ~again, places, near)
    return found


class _Rows:
    """All rows of all sources under consecutive numbers, as the texts that are compared."""

    def __init__(self, parts: Mapping[tuple[str, str], Part], form: Form) -> None:
        self.parts = parts
        self.names = sorted(parts, key=lambda name: name[0])  # eval_sources first; the order is kept among equals
        self.starts = np.cumsum([0, *(len(parts[name].places) for name in self.names)])
        self._needed = {
            name: list(forms.made_of(parts[name].dataset.column_names, form, ".".join(name))) for name in self.names
        }

    def places(self) -> np.ndarray:
        """[N] where each row belongs."""
        return np.concatenate([self.parts[name].places for name in self.names])

    def texts(self, wanted: np.ndarray) -> Iterator[tuple[np.ndarray, list[str]]]:
        """Numbers and texts of the wanted rows ([N] bool), a block at a time."""
        for number, name in enumerate(self.names):
            numbers = np.flatnonzero(wanted[self.starts[number] : self.starts[number + 1]])
            dataset = self.parts[name].dataset.select_columns(self._needed[name])
            for start in range(0, len(numbers), BLOCK):
                some = numbers[start : start + BLOCK]
                block: dict[str, list[Any]] = dataset.select(some)[:]
                columns = {column: block[column] for column in self._needed[name]}
                yield some + self.starts[number], _joined(columns, ".".join(name))

    def read(self, rows: np.ndarray) -> dict[int, str]:
        """Texts of a few rows by their numbers."""
        wanted = np.zeros(self.starts[-1], dtype=bool)
        wanted[rows] = True
        return {row: text for some, texts in self.texts(wanted) for row, text in zip(some.tolist(), texts, strict=True)}

    def first_of_equals(self) -> np.ndarray:
        """[N] for each row the first row that equals it; itself where there is none before."""
        everything = self.texts(np.ones(self.starts[-1], dtype=bool))
        hashes = np.concatenate([fingerprint.of_texts(texts) for _, texts in everything])
        order = np.lexsort((hashes[:, 1], hashes[:, 0]))  # stable: equals stay in the order of the rows
        new = np.ones(len(order), dtype=bool)
        new[1:] = (hashes[order[1:]] != hashes[order[:-1]]).any(1)
        first = np.empty(len(order), dtype=np.int64)
        first[order] = order[np.maximum.accumulate(np.where(new, np.arange(len(order)), 0))]
        return first


def _line(
    rows: _Rows, name: tuple[str, str], mine: np.ndarray, first: np.ndarray, places: np.ndarray, exact: DuplicatePolicy
) -> str:
    """How many rows of a source are said before, and where."""
    owners = np.searchsorted(rows.starts, first, side="right") - 1
    by = Counter(rows.names[owner] for owner in owners.tolist())
    said = [f"{by.pop(name)} of its own"] if name in by else []
    said += [f"{count} of {'.'.join(owner)}" for owner, count in by.items()]
    line = f"{'.'.join(name)}: {len(mine)} duplicates of earlier rows ({', '.join(said)})"
    if elsewhere := int((places[first] == 0).sum()):
        line += f", {elsewhere} of them of rows of another phase"
    if across := int(((places[first] != places[mine]) & (places[first] != 0)).sum()):
        line += f", {across} of them across training and held-out rows"
    return f"{line}; {'dropped' if exact == 'drop' else 'kept (duplicates: drop would drop them)'}"


def _near(rows: _Rows, looked_at: np.ndarray, places: np.ndarray, least: float) -> list[str]:
    """How many rows are nearly the same as an earlier one, and the first few of them."""
    numbers = np.flatnonzero(looked_at)
    signatures = [bands(texts) for _, texts in rows.texts(looked_at)]
    pairs = numbers[candidates(np.concatenate([np.zeros((0, BANDS), dtype=np.uint64), *signatures]))]
    near: dict[int, tuple[int, float]] = {}
    for start in range(0, len(pairs), BLOCK):
        block = pairs[start : start + BLOCK]
        texts = rows.read(block.ravel())
        for one, other in block.tolist():
            alike = similarity(texts[one], texts[other])
            if alike >= least and alike > near.get(other, (0, 0.0))[1]:
                near[other] = (one, alike)
    across = sum(places[one] != places[other] for other, (one, _) in near.items())
    lines = [
        f"near duplicates: {len(near)} of {len(numbers)} rows are at least {least:g} alike an earlier one "
        f"({across} across training and held-out rows); kept"
    ]
    for other, (one, alike) in sorted(near.items())[:SHOWN]:
        texts = rows.read(np.array([one, other]))
        lines.append(f"  {alike:.2f} alike: {_shown(texts[one])} | {_shown(texts[other])}")
    return lines


def _joined(columns: Mapping[str, Sequence[Any]], where: str) -> list[str]:
    """Each row's values as one normalised text; a separator keeps "a", "bc" from equalling "ab", "c"."""
    return [
        "\x1f".join(normalise(forms.said(value, name, where)) for name, value in zip(columns, row, strict=True))
        for row in zip(*columns.values(), strict=True)
    ]


def _shown(text: str) -> str:
    text = text.replace("\x1f", " → ")
    return repr(text if len(text) <= 80 else text[:77] + "…")

"""Rated texts, such as reviews with human ratings, as rows of every stage."""

from __future__ import annotations

import bisect
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from rlhf.data.sources import Files, Format
from rlhf.errors import UserError
from rlhf.interfaces import Source

if TYPE_CHECKING:
    import datasets


class _Rated(NamedTuple):
    """A text and its rating; both None where the row lacks one of them."""

    text: str | None
    rating: float | None


def opening(text: str, words: int) -> tuple[str, str] | None:
    """Cuts a text behind its first words: ``("The first", " of many")``; None where nothing would be left.

    The second part keeps the white space it begins with, so that a byte-level BPE, which glues a space to the word
    behind it, gives both parts the ids that it gives the whole.
    """
    match = re.match(rf"\s*\S+(?:\s+\S+){{{words - 1}}}(?=\s+\S)", text)
    return (match.group(), text[match.end() :]) if match else None


def pair_up(ratings: Sequence[float], pairs: int, *, min_gap: float, seed: int) -> list[tuple[int, int]]:
    """Random pairs whose ratings differ, using all items as evenly as ``min_gap`` lets them.

    Round after round the items come by in random order, those used least first; each is paired with the first of the
    waiting items that is ``min_gap`` away, or waits too. Whoever waits is closer to all others who do, so the lowest
    and the highest of them tell whether there is one.

    Args:
        ratings: Of N items.
        pairs: How many pairs; the same one may come again in another round.
        min_gap: Least difference of the ratings; equal ratings are never paired.
        seed: Another seed, other pairs.

    Returns:
        (higher, lower) indices.

    Raises:
        UserError: no two ratings are that far apart.
    """

    def apart(a: float, b: float) -> bool:
        return abs(a - b) >= min_gap and a != b

    if not ratings or not apart(max(ratings), min(ratings)):
        raise UserError(f"min_gap: {min_gap}, but no two of {len(ratings)} ratings are that far apart; lower it")
    random = np.random.default_rng(seed)
    uses = np.zeros(len(ratings), dtype=np.int64)
    found: list[tuple[int, int]] = []
    while len(found) < pairs:
        waiting: list[tuple[float, int, int]] = []  # rating, arrival, item
        for arrival, item in enumerate(np.lexsort((random.random(len(ratings)), uses)).tolist()):
            rating = ratings[item]
            if not waiting or not (apart(rating, waiting[0][0]) or apart(rating, waiting[-1][0])):
                bisect.insort(waiting, (rating, arrival, item))
                continue
            first = min((other for other in waiting if apart(rating, other[0])), key=lambda other: other[1])
            waiting.remove(first)
            found.append((item, first[2]) if rating > first[0] else (first[2], item))
            uses[[item, first[2]]] += 1
    return found[:pairs]


@dataclass(frozen=True, kw_only=True)
class RatedTexts(Source):
    """Texts with a number that says how good people found them, in the form that a stage needs.

    * ``demonstrations``: the first words are the prompt, the rest is the response.
    * ``prompts``: the first words; the rating travels along as the column ``rating``.
    * ``comparisons``: two texts, the better rated one is chosen, the gap of their ratings is the margin. They begin
      differently, so the prompt is empty and each response a whole text: the very tokens that a prompt of
      ``prompts`` and its continuation make together. Pairs share texts: evaluate with ``eval_sources``.
    * ``texts``: the texts as they are.

    A row without text or rating, or too short for a prompt and a word behind it, has no value and is counted as
    ``missing_value``.

    Args:
        path: A file, a folder or a list of these, as ``Files`` reads them.
        form: Which rows to make.
        text: Column of the text.
        rating: Column of the rating: a number, higher is better.
        format: How to read the files; None goes by suffix.
        prompt_words: Words of a prompt.
        min_rating: Use only texts rated at least so; None uses all.
        min_gap: Least gap of the ratings of a pair; equal ratings are never paired.
        rows: How many: the first so many texts, or so many pairs. None makes a row, or a pair, per text.
        seed: Another seed, other pairs.
    """

    path: str | list[str]
    form: Literal["demonstrations", "prompts", "comparisons", "texts"]
    text: str = "text"
    rating: str = "rating"
    format: Format | None = None
    prompt_words: int = 4
    min_rating: float | None = None
    min_gap: float = 0.0
    rows: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.path:
            raise UserError(f"path: {self.path!r}; give a file or a folder")
        for name in ("prompt_words", "rows"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"{name}: {value}; must be at least 1")
        if not 0 <= self.min_gap < math.inf:
            raise UserError(f"min_gap: {self.min_gap}; must not be negative")

    def check_inputs(self) -> None:
        Files(path=self.path, format=self.format).check_inputs()

    def load(self) -> datasets.Dataset:
        import datasets

        rated = [r for r in self._rated() if self.min_rating is None or r.rating is None or r.rating >= self.min_rating]
        if all(r.rating is None for r in rated):
            least = "" if self.min_rating is None else f" of at least {self.min_rating}"
            raise UserError(
                f"{self.path}: no row has a text and a rating{least}; lower min_rating, or name other columns"
            )
        rows = self._pairs(rated) if self.form == "comparisons" else [self._row(r) for r in rated[: self.rows]]
        return datasets.Dataset.from_dict({name: [row[name] for row in rows] for name in rows[0]})

    def _rated(self) -> list[_Rated]:
        table = Files(path=self.path, format=self.format, columns={"text": self.text, "rating": self.rating}).load()
        where = self.path if isinstance(self.path, str) else ", ".join(self.path)
        return [
            _Rated(None, None) if text is None or rating is None else self._checked(text, rating, f"{where}, row {row}")
            for row, (text, rating) in enumerate(zip(table["text"][:], table["rating"][:], strict=True), 1)
        ]

    def _checked(self, text: Any, rating: Any, where: str) -> _Rated:
        if not isinstance(text, str):
            raise UserError(f"{where}: {self.text} is a {type(text).__name__}, not text; name another column as text")
        if rating == "":  # a CSV has no other way to leave a cell out
            return _Rated(None, None)
        try:
            number = float(rating)
        except (TypeError, ValueError):
            raise UserError(
                f"{where}: {self.rating} is {rating!r}; give numbers, or name another column as rating"
            ) from None
        if math.isinf(number):
            raise UserError(f"{where}: {self.rating} is {rating!r}; give finite numbers")
        return _Rated(None, None) if math.isnan(number) else _Rated(text, number)

    def _row(self, rated: _Rated) -> dict[str, Any]:
        if self.form == "texts":
            return {"text": rated.text}
        halves = None if rated.text is None else opening(rated.text, self.prompt_words)
        prompt, response = halves or (None, None)
        if self.form == "prompts":
            return {"prompt": prompt, "rating": rated.rating}
        return {"prompt": prompt, "response": response}

    def _pairs(self, rated: Sequence[_Rated]) -> list[dict[str, Any]]:
        whole = [(r.text, r.rating) for r in rated if r.text is not None and r.rating is not None]
        ratings = [rating for _, rating in whole]
        found = pair_up(ratings, self.rows or len(whole), min_gap=self.min_gap, seed=self.seed)
        rows: list[dict[str, Any]] = [
            {"prompt": "", "chosen": whole[a][0], "rejected": whole[b][0], "margin": ratings[a] - ratings[b]}
            for a, b in found
        ]
        # what cannot be paired stands behind them without values, so that it is counted where all drops are
        return rows + [dict.fromkeys(rows[0])] * (len(rated) - len(whole))

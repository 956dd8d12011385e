"""What can be counted in an answer without understanding it."""

from __future__ import annotations

import functools
import itertools
import re
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from rlhf.report.samples import repetition, said_before, words

SIGN = re.compile(r"[^\w\s]")

Kind = Literal["repetition", "commonest", "word", "writing", "length"]
"""``commonest`` is about an answer's own commonest word, ``word`` about one word in all of them."""


class Text(NamedTuple):
    """An answer, its words, and how often each of them, and each sign that is no word, comes in it."""

    text: str
    words: list[str]
    counts: Counter[str]

    @classmethod
    def of(cls, text: str) -> Text:
        """Reads an answer."""
        own = words(text)
        return cls(text, own, Counter([*own, *SIGN.findall(text)]))

    @property
    def commonest(self) -> str:
        """The word that it says most, the first of several; "" where it has none."""
        return max(dict.fromkeys(self.words), key=lambda word: self.counts[word], default="")


class Measure(NamedTuple):
    """Something to count in an answer.

    Attributes:
        kind: What it is about.
        name: For people, after "answers with more".
        share: Whether it is a share, rather than a number.
        of: The value in an answer.
        word: The one word it is about, else "".
    """

    kind: Kind
    name: str
    share: bool
    of: Callable[[Text], float]
    word: str = ""


def word_in(text: str, kind: Kind, word: str) -> str:
    """The word that a measure of this kind counts in a text; "" for none, and where no word comes twice."""
    if kind != "commonest":
        return word
    own = Text.of(text)
    return own.commonest if own.counts[own.commonest] > 1 else ""


def _capitals(one: Text) -> float:
    letters = sum(map(str.isalpha, one.text))
    return sum(map(str.isupper, one.text)) / letters if letters else 0.0


def _times(one: Text, word: str) -> float:
    return float(one.counts[word])


def _share(one: Text, word: str) -> float:
    return one.counts[word] / max(len(one.words), 1)


MEASURES = (
    Measure("repetition", "repeated words", True, lambda one: said_before(one.text)),
    Measure("repetition", "repeated word pairs", True, lambda one: repetition([one.text])),
    Measure("commonest", "uses of its commonest word", False, lambda one: _times(one, one.commonest)),
    Measure("commonest", "its commonest word among the words", True, lambda one: _share(one, one.commonest)),
    Measure("length", "words", False, lambda one: float(len(one.words))),
    Measure("length", "characters", False, lambda one: float(len(one.text))),
    Measure("writing", "line breaks", False, lambda one: float(one.text.count("\n"))),
    Measure("writing", "digits", False, lambda one: float(sum(map(str.isdigit, one.text)))),
    Measure("writing", "capitals among the letters", True, _capitals),
)


def of_word(word: str) -> list[Measure]:
    """How often a word, or a sign, comes, and how large a share of the words that is."""
    return [
        Measure("word", f"uses of “{word}”", False, functools.partial(_times, word=word), word),
        Measure("word", f"“{word}” among the words", True, functools.partial(_share, word=word), word),
    ]


def risen(before: Sequence[Text], after: Sequence[Text], most: int) -> list[str]:
    """Words and signs that answers say more often than before, from the largest rise: by number, and by share.

    Args:
        before: Answers.
        after: Later answers.
        most: How many by each of the two.
    """
    counts = [sum((one.counts for one in texts), Counter[str]()) for texts in (before, after)]
    found: list[str] = []
    for whole in ([count.total() for count in counts], [len(before), len(after)]):
        rises = {word: n / whole[1] - counts[0][word] / (whole[0] or 1) for word, n in counts[1].items()}
        found += sorted((word for word, rise in rises.items() if rise > 0), key=lambda word: -rises[word])[:most]
    return list(dict.fromkeys(found))


def ranks(values: Sequence[float]) -> list[float]:
    """The place of each value in their order; equal values share the mean of their places."""
    order = sorted(range(len(values)), key=lambda at: values[at])
    places = [0.0] * len(values)
    for _, group in itertools.groupby(enumerate(order), key=lambda entry: values[entry[1]]):
        members = list(group)
        for _, at in members:
            places[at] = (members[0][0] + members[-1][0]) / 2
    return places


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Spearman's correlation; None where either is constant."""
    try:
        return statistics.correlation(ranks(one), ranks(other))
    except statistics.StatisticsError:
        return None

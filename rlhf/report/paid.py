"""What a score goes with: whether answers that repeat themselves, or are long, or say a certain word, are paid more.

Everything is measured within one evaluation, among answers of the same policy, and then averaged over the evaluations:
what merely changes during training, as the score does, correlates with nothing here.
"""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rlhf.report.runs import StageRecord
from rlhf.report.samples import evaluations, judged, repetition, said_before, words

LEAST_ANSWERS = 8
"""Fewer in an evaluation correlate by chance."""


class Trait(NamedTuple):
    """Something about answers, and how it goes with what they are paid.

    Attributes:
        kind: ``repetition``, ``word`` or ``length``.
        name: What is measured.
        share: Whether it is a share, rather than a number.
        first: Its mean in the first evaluation.
        last: Its mean in the last one.
        correlations: By judge, ``score`` being the reward: rank correlation within an evaluation, mean over the
            evaluations. A judge for whom no evaluation has one is missing.
    """

    kind: str
    name: str
    share: bool
    first: float
    last: float
    correlations: dict[str, float]


def traits(stage: StageRecord) -> list[Trait]:
    """The traits of a stage's answers; none where fewer than two evaluations were kept."""
    found = [rows for rows in evaluations(stage).values() if len(rows) >= LEAST_ANSWERS]
    if len(found) < 2:
        return []
    texts = [[str(row["response"]) for row in rows] for rows in found]
    scores = [_columns(rows) for rows in found]
    word = risen(texts[0], texts[-1])
    measured = [
        ("repetition", "repeated words", True, said_before),
        ("repetition", "repeated word pairs", True, lambda text: repetition([text])),
        ("length", "words", False, lambda text: float(len(words(text)))),
    ]
    if word:
        measured.insert(2, ("word", f"“{word}” among the words", True, lambda text: _share(word, text)))
    return [Trait(kind, name, share, *_measured(of, texts, scores)) for kind, name, share, of in measured]


def _measured(
    of: Callable[[str], float], texts: Sequence[Sequence[str]], scores: Sequence[dict[str, list[float]]]
) -> tuple[float, float, dict[str, float]]:
    values = [[of(text) for text in some] for some in texts]
    correlations = {}
    for judge in dict.fromkeys(name for columns in scores for name in columns):
        each = [rank_correlation(v, c[judge]) for v, c in zip(values, scores, strict=True) if judge in c]
        known = [one for one in each if one is not None]
        if known:
            correlations[judge] = statistics.fmean(known)
    return statistics.fmean(values[0]), statistics.fmean(values[-1]), correlations


def _columns(rows: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
    """Scores by judge, of the judges that every row has."""
    each = [judged(row) for row in rows]
    return {name: [one[name] for one in each] for name in each[0] if all(name in one for one in each)}


def risen(before: Sequence[str], after: Sequence[str]) -> str:
    """The word whose share of all words has risen most; "" where none has."""
    shares = []
    for texts in (before, after):
        counts = Counter(itertools.chain.from_iterable(map(words, texts)))
        shares.append({word: count / counts.total() for word, count in counts.items()})
    rises = {word: share - shares[0].get(word, 0.0) for word, share in shares[1].items()}
    word = max(rises, key=lambda word: rises[word], default="")
    return word if word and rises[word] > 0 else ""


def _share(word: str, text: str) -> float:
    own = words(text)
    return own.count(word) / len(own) if own else 0.0


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

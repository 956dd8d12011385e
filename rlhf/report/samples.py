"""How answers change: the evaluation's fixed prompts over training, and words that return too often."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from rlhf.report.runs import StageRecord

WORD = re.compile(r"\w+")
MOST_PROMPTS = 8


class Answer(NamedTuple):
    """One answer to a prompt.

    Attributes:
        iteration: Rollout-and-update rounds made before it.
        text: The response.
        scores: By judge; ``score`` is the reward's.
        parts: What the score is made of, where the reward says so.
        ended: Whether it ended by itself.
    """

    iteration: int
    text: str
    scores: dict[str, float]
    parts: dict[str, float]
    ended: bool


class Story(NamedTuple):
    """The answers to one held-out prompt, in the order of training."""

    prompt: str
    answers: list[Answer]

    @property
    def gain(self) -> float:
        """Score of the last answer minus that of the first."""
        return self.answers[-1].scores.get("score", 0.0) - self.answers[0].scores.get("score", 0.0)


def evaluations(stage: StageRecord) -> dict[int, list[dict[str, Any]]]:
    """Rows of each evaluation on the fixed prompts, by iteration."""
    return {number: stage.rows(path) for number, path in stage.rollout_files("evaluation").items()}


def stories(stage: StageRecord, most: int = MOST_PROMPTS) -> list[Story]:
    """Prompts with their answers, from the largest gain in score to the smallest; ``most`` of them, evenly chosen."""
    found = evaluations(stage)
    if not found:
        return []
    shortest = min(len(rows) for rows in found.values())
    told = [
        Story(str(next(iter(found.values()))[row]["prompt"]), [_answer(n, rows[row]) for n, rows in found.items()])
        for row in range(shortest)
    ]
    told.sort(key=lambda story: -story.gain)
    return evenly(told, most)


def _answer(iteration: int, row: dict[str, Any]) -> Answer:
    parts = {name.removeprefix("score/"): value for name, value in row.items() if name.startswith("score/")}
    return Answer(iteration, str(row["response"]), judged(row), parts, bool(row.get("ended", True)))


def judged(row: dict[str, Any]) -> dict[str, float]:
    """The scores of an evaluation's row by judge; ``score`` is the reward's."""
    return {
        name.removesuffix("_score") or name: float(value)
        for name, value in row.items()
        if (name == "score" or name.endswith("_score")) and isinstance(value, (int, float))
    }


def evenly(rows: Sequence[Any], most: int) -> list[Any]:
    """At most ``most`` of the rows, the first and the last among them, at equal distances."""
    if len(rows) <= most:
        return list(rows)
    return [rows[round(index * (len(rows) - 1) / (most - 1))] for index in range(most)]


def words(text: str) -> list[str]:
    """The words of a text in small letters."""
    return [word.casefold() for word in WORD.findall(text)]


def repetition(texts: Iterable[str]) -> float:
    """Mean share of a text's word pairs that it has had before; 0 where no text has two words."""
    shares = []
    for text in texts:
        own = words(text)
        pairs = list(itertools.pairwise(own))
        if pairs:
            shares.append(1 - len(set(pairs)) / len(pairs))
    return sum(shares) / len(shares) if shares else 0.0


def commonest(texts: Iterable[str]) -> tuple[str, float]:
    """The word that is written most, and its share of all words."""
    counts = Counter(word for text in texts for word in words(text))
    if not counts:
        return "", 0.0
    word, count = counts.most_common(1)[0]
    return word, count / counts.total()


def share_of(word: str, texts: Iterable[str]) -> float:
    """Share of a word among all words of the texts."""
    counts = Counter(word for text in texts for word in words(text))
    return counts[word] / counts.total() if counts else 0.0


def said_before(text: str) -> float:
    """Share of a text's words that stood in it before."""
    own = words(text)
    return 1 - len(set(own)) / len(own) if own else 0.0


def marked(text: str, word: str = "") -> list[tuple[str, str]]:
    """The text in pieces, each with ``"paid"`` for the given word, ``"again"`` for what repeats itself, else ``""``.

    That is a word said twice in a row, one of four letters or more that comes three times, two words in a row that come
    three times, and three that come twice.
    """
    paid = places(text, word)
    pieces: list[tuple[str, str]] = []
    for start, end, kind in _repeats(text):
        cuts = [start, *(edge for one in paid for edge in one if start < edge < end), end]
        for left, right in itertools.pairwise(cuts):
            inside = any(first <= left < last for first, last in paid)
            pieces.append((text[left:right], "paid" if inside else kind))
    return pieces


def places(text: str, word: str) -> list[tuple[int, int]]:
    """Where a word, in any letters, or a sign stands in a text: starts and ends."""
    if not word:
        return []
    found = re.finditer(rf"\w+|{re.escape(word)}", text)
    return [match.span() for match in found if match[0].casefold() == word]


def _repeats(text: str) -> list[tuple[int, int, str]]:
    """The text cut where it begins or ends to repeat itself: starts and ends, with ``"again"`` or ``""``."""
    found = list(WORD.finditer(text))
    own = [match[0].casefold() for match in found]
    again = {at for at in range(1, len(own)) if own[at] == own[at - 1]}
    again |= {at - 1 for at in again}
    for length, times in ((1, 3), (2, 3), (3, 2)):
        runs = [tuple(own[at : at + length]) for at in range(len(own) - length + 1)]
        counts = Counter(runs)
        for at, run in enumerate(runs):
            if counts[run] >= times and (length > 1 or len(run[0]) >= 4):
                again |= set(range(at, at + length))
    spans: list[tuple[int, int, str]] = []
    end = 0
    for repeated, members in itertools.groupby(range(len(own)), again.__contains__):
        if repeated:
            span = list(members)
            first, last = found[span[0]].start(), found[span[-1]].end()
            spans += [(end, first, ""), (first, last, "again")]
            end = last
    return [span for span in [*spans, (end, len(text), "")] if span[0] < span[1]]

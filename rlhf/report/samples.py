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
        ended: Whether it ended by itself.
    """

    iteration: int
    text: str
    scores: dict[str, float]
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
    scores = {
        name.removesuffix("_score") or name: float(value)
        for name, value in row.items()
        if (name == "score" or name.endswith("_score")) and isinstance(value, (int, float))
    }
    return Answer(iteration, str(row["response"]), scores, bool(row.get("ended", True)))


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


def marked(text: str) -> list[tuple[str, bool]]:
    """The text in pieces, True for words of four letters or more that come three times or more."""
    often = {word for word, count in Counter(words(text)).items() if count >= 3 and len(word) >= 4}
    pieces: list[tuple[str, bool]] = []
    end = 0
    for match in WORD.finditer(text):
        if match[0].casefold() in often:
            pieces += [(text[end : match.start()], False), (match[0], True)]
            end = match.end()
    return [piece for piece in [*pieces, (text[end:], False)] if piece[0]]

"""Small tasks that a model learns in minutes and whose right answers are known: to try an algorithm on.

Each source gives rows with a prompt and a demonstration, so it serves supervised fine-tuning and PPO alike, and beside
them, as columns, what its reward needs. Rewards are functions for ``FunctionReward``; arithmetic is verified by
``ArithmeticReward``. Rows are a pure function of the settings; training and held-out prompts are parted by the split
of ``data:`` as those of any source.
"""

from __future__ import annotations

import random
import re
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

from rlhf.data.spool import spooled
from rlhf.errors import UserError, require
from rlhf.interfaces import Source

if TYPE_CHECKING:
    import datasets

Operator = Literal["+", "-", "*"]
_NUMBER = re.compile(r"-?[0-9]+")


@dataclass(frozen=True, kw_only=True)
class Task(Source):
    """Rows of a small task.

    Args:
        rows: How many. Prompts may come again.
        seed: Another seed, other rows.
        mistakes: Share of the demonstrations that are wrong in a way of the task's own, so that supervised fine-tuning
            teaches the form and leaves something to be learned from rewards.
    """

    rows: int = 1000
    seed: int = 0
    mistakes: float = 0.0

    def __post_init__(self) -> None:
        require(at_least=1, rows=self.rows)
        require(at_least=0, at_most=1, mistakes=self.mistakes)

    def fingerprint(self) -> str:
        return repr(self)

    def load(self) -> datasets.Dataset:
        return spooled(self._rows(), type(self).__name__)

    def _rows(self) -> Iterator[dict[str, Any]]:
        rng = random.Random(f"{type(self).__name__} {self.seed}")
        for _ in range(self.rows):
            wrong = rng.random() < self.mistakes
            yield self.row(rng, wrong)

    @abstractmethod
    def row(self, rng: random.Random, wrong: bool) -> dict[str, Any]:
        """One row: prompt, response and the columns of its reward; a mistaken response where ``wrong``."""


# ------------------------------------------------------------------------------------------------------ reversed text


@dataclass(frozen=True, kw_only=True)
class ReverseText(Task):
    """Random letters to be written backwards: ``abcd=`` is answered ``dcba``.

    The column ``answer`` is for ``reversed_share``, ``reversed_exactly`` and ``ExactMatchReward``. A mistaken
    demonstration has the letters in any order.

    Args:
        length: Most letters of a text.
        shortest: Fewest letters; null for ``length``: all texts are equally long.
        letters: What the texts are made of.
    """

    length: int = 6
    shortest: int | None = None
    letters: str = "abcdefghij"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(at_least=1, length=self.length)
        require(at_least=1, at_most=self.length, shortest=self.shortest)
        if not self.letters or not self.letters.isalnum():
            raise UserError(f"letters is {self.letters!r}; give letters or digits, at least one")

    def row(self, rng: random.Random, wrong: bool) -> dict[str, Any]:
        text = rng.choices(self.letters, k=rng.randint(self.shortest or self.length, self.length))
        answer = "".join(reversed(text))
        response = "".join(rng.sample(text, len(text))) if wrong else answer
        return {"prompt": f"{''.join(text)}=", "response": response, "answer": answer}


def reversed_share(prompts: Sequence[str], responses: Sequence[str], answer: Sequence[str]) -> list[float]:
    """How much of a text is right before the first mistake: the dense reward of ``ReverseText``.

    reward = (letters at the start that are the answer's) / max(length of the answer, length of the response),
    so that what is written behind a right answer costs. White space around a response does not count.

    Args:
        prompts: B prompts.
        responses: B responses.
        answer: B right answers.

    Returns:
        One number in [0, 1] for each response, 1 for exactly the answer.
    """
    scores = []
    for response, right in zip((text.strip() for text in responses), answer, strict=True):
        matching = zip(response, right, strict=False)
        prefix = next((at for at, (a, b) in enumerate(matching) if a != b), min(len(response), len(right)))
        scores.append(prefix / max(len(response), len(right), 1))
    return scores


def reversed_exactly(prompts: Sequence[str], responses: Sequence[str], answer: Sequence[str]) -> list[float]:
    """1 for exactly the answer, but for white space around it, else 0: the sparse reward of ``ReverseText``."""
    return [float(response.strip() == right) for response, right in zip(responses, answer, strict=True)]


# ------------------------------------------------------------------------------------------------- increasing numbers


@dataclass(frozen=True, kw_only=True)
class IncreasingNumbers(Task):
    """Some numbers from a given one upwards: ``3 from 12:`` may be answered ``15 40 77``.

    The columns ``start`` and ``numbers`` (how many) are for ``increasing_share``. A mistaken demonstration has any
    numbers in any order.

    Args:
        numbers: Most numbers that are asked for.
        fewest: Fewest; null for ``numbers``.
        largest: Largest number of a demonstration.
    """

    numbers: int = 5
    fewest: int | None = None
    largest: int = 999

    def __post_init__(self) -> None:
        super().__post_init__()
        require(at_least=1, numbers=self.numbers)
        require(at_least=1, at_most=self.numbers, fewest=self.fewest)
        if self.largest < 2 * self.numbers:
            raise UserError(
                f"largest is {self.largest}; must be at least {2 * self.numbers}, twice numbers, so that prompts differ"
            )

    def row(self, rng: random.Random, wrong: bool) -> dict[str, Any]:
        count = rng.randint(self.fewest or self.numbers, self.numbers)
        start = rng.randint(0, self.largest - count)
        found = (
            [rng.randint(0, self.largest) for _ in range(count)]
            if wrong
            else sorted(rng.sample(range(start + 1, self.largest + 1), count))
        )
        response = " ".join(map(str, found))
        return {"prompt": f"{count} from {start}:", "response": response, "start": start, "numbers": count}


def increasing_share(
    prompts: Sequence[str],
    responses: Sequence[str],
    start: Sequence[int] | None = None,
    numbers: Sequence[int] | None = None,
) -> list[float]:
    """The share of neighbouring numbers that increase: the dense reward of ``IncreasingNumbers``.

    reward = (pairs of neighbours with the second larger) / max(pairs, pairs asked for), pairs those of the start, where
    one is given, and the whole numbers in the response. Numbers that are missing count as pairs that do not increase,
    so that a short answer is worth no more than it says; all else in a response is passed over.

    Args:
        prompts: B prompts.
        responses: B responses.
        start: B numbers that stand before the response's; None compares these with each other only.
        numbers: How many numbers each response should have; None for any number.

    Returns:
        One number in [0, 1] for each response; 0 where there is no pair.
    """
    scores = []
    for row, response in enumerate(responses):
        # As floats: what a model writes in a loop may have more digits than int() reads, and is inf here.
        found = [float(text) for text in _NUMBER.findall(response)]
        if start is not None:
            found.insert(0, float(start[row]))
        asked = 0 if numbers is None else numbers[row] - (start is None)
        rising = sum(b > a for a, b in pairwise(found))
        scores.append(rising / max(len(found) - 1, asked, 1))
    return scores


# --------------------------------------------------------------------------------------------------------- arithmetic


@dataclass(frozen=True, kw_only=True)
class Arithmetic(Task):
    """Sums, differences and products of whole numbers: ``12+7=`` is answered ``19``.

    The column ``answer`` is for ``ArithmeticReward``, or for ``ExactMatchReward``. Products are worked out before sums.
    A mistaken demonstration has another number of as many digits.

    Args:
        digits: Most digits of a number; each number has between one and so many, equally likely.
        operators: Any of ``+``, ``-``, ``*``.
        terms: How many numbers.
    """

    digits: int = 2
    operators: tuple[Operator, ...] = ("+",)
    terms: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        require(at_least=1, at_most=15, digits=self.digits)
        require(at_least=2, terms=self.terms)
        if not self.operators:
            raise UserError("operators: none; give at least one of + - *")

    def row(self, rng: random.Random, wrong: bool) -> dict[str, Any]:
        numbers = [rng.randrange(10 ** rng.randint(1, self.digits)) for _ in range(self.terms)]
        operators: list[Operator] = [rng.choice(self.operators) for _ in numbers[1:]]
        answer = _worked_out(numbers, operators)
        text = "".join(f"{operator}{number}" for operator, number in zip(["", *operators], numbers, strict=True))
        response = _another(rng, answer) if wrong else answer
        return {"prompt": f"{text}=", "response": str(response), "answer": str(answer)}


def _worked_out(numbers: Sequence[int], operators: Sequence[Operator]) -> int:
    """The value of numbers with operators between them, products first."""
    summands = [numbers[0]]
    for operator, number in zip(operators, numbers[1:], strict=True):
        if operator == "*":
            summands[-1] *= number
        else:
            summands.append(number if operator == "+" else -number)
    return sum(summands)


def _another(rng: random.Random, number: int) -> int:
    """Another number with as many digits and the same sign."""
    digits = len(str(abs(number)))
    other = abs(number)
    while other == abs(number):
        other = rng.randrange(0 if digits == 1 else 10 ** (digits - 1), 10**digits)
    return -other if number < 0 else other

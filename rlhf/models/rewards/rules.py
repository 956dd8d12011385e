"""Rewards that can be checked: a pattern, an exact answer, a number."""

from __future__ import annotations

import re
import unicodedata
from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import torch

from rlhf.errors import UserError, require
from rlhf.interfaces import Engine, RewardModel, Scorer
from rlhf.models.rewards.arithmetic import answer_of, gold_number
from rlhf.types import Prompts, Rollout, Scores

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def column(prompts: Prompts, name: str, setting: str = "column") -> Sequence[Any]:
    """A further column of the data.

    Raises:
        UserError: there is none of that name.
    """
    if name not in prompts.columns:
        there = ", ".join(sorted(prompts.columns)) or "none"
        raise UserError(f"{setting}: the data has no column {name}; columns there: {there}")
    return prompts.columns[name]


def check_column(columns: Mapping[str, Collection[str]], name: str, setting: str = "column") -> None:
    """Refuses data of which a source has no column of that name: every row is judged by it.

    Args:
        columns: Names by source.
        name: The column.
        setting: What names it.
    """
    for source, there in columns.items():
        if name not in there:
            raise UserError(
                f"{setting}: the source {source} has no column {name}; columns there: "
                f"{', '.join(sorted(there)) or 'none'}. Map one with the source's columns, or name another"
            )


def compiled(pattern: str, setting: str) -> re.Pattern[str]:
    """A regular expression.

    Raises:
        UserError: it is none.
    """
    try:
        return re.compile(pattern)
    except re.error as error:
        raise UserError(f"{setting}: {pattern!r} is no regular expression ({error}); correct it") from None


@dataclass(frozen=True, kw_only=True)
class Rule(RewardModel):
    """A yes or no about each response.

    Args:
        score: Of a response that passes.
        otherwise: Of one that does not.
    """

    score: float = 1.0
    otherwise: float = 0.0

    @abstractmethod
    def passes(self, rollout: Rollout) -> list[bool]:
        """Whether each response passes."""

    def build(self, engine: Engine, tokenizer: PreTrainedTokenizerBase) -> Scorer:
        """Nothing is needed."""
        return RuleScorer(self)


class RuleScorer(Scorer):
    """A rule with its two scores."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule

    def __call__(self, rollout: Rollout) -> Scores:
        passed = torch.tensor(self.rule.passes(rollout), device=rollout.sequences.ids.device)
        return Scores(torch.where(passed, self.rule.score, self.rule.otherwise).to(torch.float32))


@dataclass(frozen=True, kw_only=True)
class RegexReward(Rule):
    r"""Whether a regular expression is found in the response (Python's ``re``; ``(?s)\A…\Z`` matches it whole).

    Args:
        pattern: What is looked for.
    """

    pattern: str

    def __post_init__(self) -> None:
        compiled(self.pattern, "pattern")

    def passes(self, rollout: Rollout) -> list[bool]:
        return [re.search(self.pattern, text) is not None for text in rollout.text]


def normalised(text: str) -> str:
    """Text as answers are compared: Unicode NFKC, lower case, single spaces, no punctuation at the ends."""
    folded = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    return folded.strip(" .,;:!?\"'`“”‘’")


@dataclass(frozen=True, kw_only=True)
class ExactMatchReward(Rule):
    r"""Whether the response is the answer that the row gives, but for case, white space and punctuation at the ends.

    Args:
        column: Column of the data with the answer, or with a list of answers that are all right.
        extract: Regular expression whose last match is taken for the response, its first group where it has one, such
            as ``answer is (.*)``; a response without a match does not pass. Null takes the whole response.
    """

    column: str = "answer"
    extract: str | None = None

    def __post_init__(self) -> None:
        if self.extract is not None:
            compiled(self.extract, "extract")

    def check_columns(self, columns: Mapping[str, Collection[str]]) -> None:
        check_column(columns, self.column)

    def passes(self, rollout: Rollout) -> list[bool]:
        golds = column(rollout.prompts, self.column)
        return [self._right(text, gold) for text, gold in zip(rollout.text, golds, strict=True)]

    def _right(self, text: str, gold: Any) -> bool:
        given = gold if isinstance(gold, list | tuple) else [gold]
        answers = {normalised(str(one)) for one in given if one is not None} - {""}
        if not answers:
            raise UserError(f"column: {self.column} of a row is {gold!r}, no answer to compare with; drop such rows")
        if self.extract is not None:
            found = list(re.finditer(self.extract, text))
            if not found:
                return False
            text = found[-1][1 if found[-1].re.groups else 0] or ""
        return normalised(text) in answers


@dataclass(frozen=True, kw_only=True)
class ArithmeticReward(Rule):
    r"""Whether the response's number is the row's: of its last ``\boxed{…}``, else the last number in it.

    Numbers are read as exact fractions by patterns (``rlhf.models.rewards.arithmetic`` lists what is understood) and
    never evaluated: 1,234 = 1234, 3/4 = 0.75, -2.50 = -5/2. Units are passed over, a percent sign is one.

    Args:
        column: Column of the data with the right number, or with text that is read in the same way.
        tolerance: Largest difference that passes, as a share of the right number; 0 wants exactly that.
    """

    column: str = "answer"
    tolerance: float = 0.0

    def __post_init__(self) -> None:
        require(at_least=0, below=1, tolerance=self.tolerance)

    def check_columns(self, columns: Mapping[str, Collection[str]]) -> None:
        check_column(columns, self.column)

    def passes(self, rollout: Rollout) -> list[bool]:
        golds = column(rollout.prompts, self.column)
        return [self._right(text, gold) for text, gold in zip(rollout.text, golds, strict=True)]

    def _right(self, text: str, gold: Any) -> bool:
        right = gold_number(gold)
        if right is None:
            raise UserError(
                f"column: {self.column} of a row is {gold!r:.200}, no number; drop such rows, or correct them"
            )
        found = answer_of(text)
        return found is not None and abs(found - right) <= Fraction(repr(self.tolerance)) * abs(right)

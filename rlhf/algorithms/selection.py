"""Which of an on-policy stage's weights become its ``model/``."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar

from rlhf.errors import UserError
from rlhf.interfaces import Selection, SelectionByEvaluation, Worth

EMA = "ema/"


@dataclass(frozen=True, kw_only=True)
class Last(Selection):
    """The policy's weights after the last step."""

    def check(self, *, every: int, averaged: bool, figures: Collection[str], prefixes: Collection[str]) -> list[str]:
        return []


@dataclass(frozen=True, kw_only=True)
class Averaged(Selection):
    """The average's weights after the last step: ``model/`` is then what ``ema/`` is."""

    averaged: ClassVar[bool] = True

    def check(self, *, every: int, averaged: bool, figures: Collection[str], prefixes: Collection[str]) -> list[str]:
        if averaged:
            return []
        return ["class_path: is Averaged, but averaging is null; set averaging: EMA, or select: Last"]


@dataclass(frozen=True, kw_only=True)
class Best(SelectionByEvaluation):
    """The weights at the evaluation whose figure was best; of equal ones the first.

    argmax_i m_i over the evaluations i of the run, or argmin. The largest of many noisy figures flatters what it is the
    figure of: compare the chosen model on other prompts.

    Args:
        metric: Figure that decides, without ``eval/``: ``score``, ``gold_score`` of a judge ``gold``, ``kl``, one of a
            metric's. With ``ema/`` before it, it is the average's, and its weights are taken.
        higher_is_better: Whether the largest is the best.
    """

    metric: str = "score"
    higher_is_better: bool = True

    def check(self, *, every: int, averaged: bool, figures: Collection[str], prefixes: Collection[str]) -> list[str]:
        if not every:
            return [
                f"metric: is {self.metric!r}, but evaluation.every is 0, so no evaluation is the best; set "
                "evaluation.every, or select: Last"
            ]
        if self._of_average and not averaged:
            return [
                f"metric: is {self.metric!r}, but averaging is null, so there is no average to evaluate; set "
                f"averaging: EMA, or metric: {self._figure}"
            ]
        if self._figure in figures or any(self._figure.startswith(prefix) for prefix in prefixes):
            return []
        return [f"metric: no evaluation has the figure {self.metric!r}; {_known(self._figure, figures)}"]

    @property
    def _of_average(self) -> bool:
        return self.metric.startswith(EMA)

    @property
    def _figure(self) -> str:
        return self.metric.removeprefix(EMA)

    def worth(self, figures: Mapping[str, float]) -> Worth:
        name, of_average = f"eval/{self.metric}", f"eval/{EMA}"
        if self._of_average and not any(known.startswith(of_average) for known in figures):
            return Worth(float("nan"), True, f"{name} is not there yet")  # at the start there is no average
        if name not in figures:
            there = [known.removeprefix("eval/") for known in figures if known.startswith("eval/")]
            raise UserError(f"select.metric: an evaluation has no figure {self.metric!r}; {_known(self.metric, there)}")
        value = figures[name]
        return Worth(value if self.higher_is_better else -value, self._of_average, f"{name} {value:.4g}")


def _known(name: str, figures: Collection[str]) -> str:
    near = difflib.get_close_matches(name, figures, 1, 0.5)
    return (f"did you mean {near[0]}? " if near else "") + f"Known: {', '.join(sorted(figures))}"

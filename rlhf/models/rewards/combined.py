"""Several reward models as one: a weighted sum, and an ensemble that knows how much its members disagree."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from rlhf.algorithms.functional.rewards import add_at_end, per_response
from rlhf.errors import UserError, require, telling
from rlhf.interfaces import Engine, RewardModel, Scorer
from rlhf.types import Rollout, Scores

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Combination = Literal["mean", "min", "mean_minus_std", "mean_minus_variance"]


def _named_parts(answers: Mapping[str, Scores], mask: Tensor) -> dict[str, Tensor]:
    """Each model's score per response under its name, its own parts under ``name/part``."""
    parts: dict[str, Tensor] = {}
    for name, scores in answers.items():
        parts[name] = per_response(scores.total, mask)
        parts |= {f"{name}/{inner}": part for inner, part in scores.parts.items()}
    return parts


def _check_columns(models: Mapping[str, RewardModel], columns: Mapping[str, Collection[str]]) -> None:
    for name, model in models.items():
        with telling(f"models.{name}"):
            model.check_columns(columns)


@dataclass(frozen=True, kw_only=True)
class Weighted(RewardModel):
    """A weighted sum of reward models: total = Σ weight · score. Each score is reported under its name.

    Where some give scores per token, those of the others are added on the last token.

    Args:
        models: The reward models, by name.
        weights: A weight for each of them, negative for what is to be avoided.
    """

    models: dict[str, RewardModel]
    weights: dict[str, float]

    def __post_init__(self) -> None:
        if not self.models:
            raise UserError("models: there is none; name at least one reward model")
        if odd := sorted(set(self.models) ^ set(self.weights)):
            where = "models but not in weights" if odd[0] in self.models else "weights but not in models"
            raise UserError(f"weights: {odd[0]} is in {where}; give each model exactly one weight")

    def check_columns(self, columns: Mapping[str, Collection[str]]) -> None:
        _check_columns(self.models, columns)

    def build(self, engine: Engine, tokenizer: PreTrainedTokenizerBase) -> Scorer:
        """Builds each model."""
        scorers = {name: model.build(engine, tokenizer) for name, model in self.models.items()}
        return WeightedScorer(scorers, self.weights)


class WeightedScorer(Scorer):
    """Scorers with weights. The total is per token as soon as one of theirs is; a part is always per response."""

    def __init__(self, scorers: Mapping[str, Scorer], weights: Mapping[str, float]) -> None:
        self.scorers = scorers
        self.weights = weights

    def __call__(self, rollout: Rollout) -> Scores:
        answers = {name: scorer(rollout) for name, scorer in self.scorers.items()}
        weighted = [self.weights[name] * scores.total for name, scores in answers.items()]
        whole = [scores for scores in weighted if scores.ndim == 1]
        total = torch.stack([scores for scores in weighted if scores.ndim == 2] or whole).sum(0)
        if total.ndim == 2 and whole:
            total = add_at_end(total, torch.stack(whole).sum(0), rollout.mask)
        return Scores(total, _named_parts(answers, rollout.mask))


@dataclass(frozen=True, kw_only=True)
class Ensemble(RewardModel):
    """Several models of the same reward, whose disagreement says where they cannot be trusted.

    mean: m = 1/K Σ s_i (no guard), min: worst-case optimisation, mean_minus_std: m − coef · σ,
    mean_minus_variance: uncertainty-weighted optimisation as published, m − coef · σ²; σ² = 1/K Σ (s_i − m)².
    Source: arXiv:2310.02743 (mean, WCO and UWO).

    The members must score in the same units, as trained reward models do: each stores the mean and deviation of its own
    held-out scores. Members that score per token are combined token by token. Reported are each member's score, and
    ``disagreement``: σ of their scores of a response.

    Args:
        models: The members, by name: at least two.
        combine: How their scores become one.
        coef: Weight of the disagreement in the last two.
    """

    models: dict[str, RewardModel]
    combine: Combination = "mean"
    coef: float = 0.1

    def __post_init__(self) -> None:
        if len(self.models) < 2:
            raise UserError(f"models: {len(self.models)}; an ensemble needs at least 2 members")
        if "disagreement" in self.models:
            raise UserError("models: disagreement is the name of what the members' spread is reported under; rename it")
        require(at_least=0, coef=self.coef)

    def check_columns(self, columns: Mapping[str, Collection[str]]) -> None:
        _check_columns(self.models, columns)

    def build(self, engine: Engine, tokenizer: PreTrainedTokenizerBase) -> Scorer:
        """Builds each member."""
        scorers = {name: model.build(engine, tokenizer) for name, model in self.models.items()}
        return EnsembleScorer(scorers, self.combine, self.coef)


class EnsembleScorer(Scorer):
    """The members' scorers; all of them score per response, or all per token."""

    def __init__(self, scorers: Mapping[str, Scorer], combine: Combination, coef: float) -> None:
        self.scorers = scorers
        self.combine = combine
        self.coef = coef

    def __call__(self, rollout: Rollout) -> Scores:
        answers = {name: scorer(rollout) for name, scorer in self.scorers.items()}
        shapes = {name: list(scores.total.shape) for name, scores in answers.items()}
        if len({tuple(shape) for shape in shapes.values()}) > 1:
            raise UserError(
                f"models: some members score responses and some score tokens (shapes {shapes}), so they are no models "
                "of the same reward; take members of one kind"
            )
        members = torch.stack([scores.total for scores in answers.values()])
        parts = _named_parts(answers, rollout.mask)
        spread = torch.stack([parts[name] for name in answers]).std(0, correction=0)
        return Scores(self._combined(members), {**parts, "disagreement": spread})

    def _combined(self, members: Tensor) -> Tensor:
        """[K, …] scores to […]."""
        if self.combine == "min":
            return members.amin(0)
        mean = members.mean(0)
        if self.combine == "mean_minus_std":
            return mean - self.coef * members.std(0, correction=0)
        if self.combine == "mean_minus_variance":
            return mean - self.coef * members.var(0, correction=0)
        return mean

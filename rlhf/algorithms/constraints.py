"""Constraints on what a policy may cost: a cost model, a limit, and a Lagrange multiplier that learns."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlhf.algorithms.functional.constraints import lagrangian, multiplier_update
from rlhf.algorithms.functional.rewards import add_at_end, per_response
from rlhf.errors import NonFiniteError, UserError, require
from rlhf.interfaces import Engine, RewardModel, Scorer
from rlhf.types import Rollout

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class LiveConstraint:
    """A cost with its multiplier, the same on every rank; kept in checkpoints."""

    def __init__(self, settings: Constraint, scorer: Scorer) -> None:
        self.settings, self.scorer = settings, scorer
        self.multiplier = settings.multiplier
        self.window: deque[float] = deque(maxlen=settings.window)
        """Mean costs of the latest iterations."""

    def cost(self, rollout: Rollout) -> Tensor:
        """[B] cost of each response, which must be finite."""
        found = per_response(self.scorer(rollout).total, rollout.mask)
        if not found.isfinite().all():
            raise NonFiniteError(
                f"constraints: a cost is {float(found[~found.isfinite()][0])}; no weight was changed. "
                "Mend the cost model",
                {"rollout": rollout, "costs": found},
            )
        return found

    def observe(self, mean: float) -> None:
        """Moves the multiplier after an iteration whose responses cost ``mean``."""
        rule = self.settings
        self.window.append(mean)
        excess = sum(self.window) / len(self.window) - rule.limit
        self.multiplier = multiplier_update(self.multiplier, excess, lr=rule.lr, maximum=rule.maximum)

    def state_dict(self) -> dict[str, Any]:
        return {"multiplier": self.multiplier, "window": list(self.window)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.multiplier = state["multiplier"]
        self.window.clear()
        self.window.extend(state["window"])


@dataclass(frozen=True, kw_only=True)
class Constraint:
    """Mean cost ≤ limit, by a Lagrange multiplier λ that grows while it is broken.

    ln λ ← ln λ + lr · λ · (mean cost of the latest iterations − limit).   Source: arXiv:2310.12773, eq. 31.

    Args:
        cost: What a response costs, as a reward model's score.
        limit: The mean cost that is allowed, in the units of ``cost``.
        multiplier: λ at the start.
        lr: α: how fast the multiplier follows.
        maximum: Upper bound of λ.
        window: Iterations whose mean cost is compared with the limit.
    """

    cost: RewardModel
    limit: float = 0.0
    multiplier: float = 1.0
    lr: float = 0.1
    maximum: float = 10.0
    window: int = 8

    def __post_init__(self) -> None:
        require(above=0, multiplier=self.multiplier, lr=self.lr, maximum=self.maximum)
        require(at_least=1, window=self.window)
        if not math.isfinite(self.limit):
            raise UserError(f"limit is {self.limit}; give a number, or leave the constraint out")
        if self.multiplier > self.maximum:
            raise UserError(
                f"multiplier is {self.multiplier}, above maximum {self.maximum}; raise maximum, or lower it"
            )

    def build(self, engine: Engine, tokenizer: PreTrainedTokenizerBase) -> LiveConstraint:
        """Builds the cost model."""
        return LiveConstraint(self, self.cost.build(engine, tokenizer))


def charged(
    scores: Tensor, costs: Mapping[str, Tensor], constraints: Mapping[str, LiveConstraint], mask: Tensor
) -> Tensor:
    """Scores [B] or [B, T] under constraints: see :func:`lagrangian`. The shape stays; costs stand at the end.

    Args:
        scores: Of the responses.
        costs: [B] of each constraint, by name.
        constraints: The same names.
        mask: [B, T] bool.
    """
    multipliers = [constraints[name].multiplier for name in costs]
    excesses = [cost - constraints[name].settings.limit for name, cost in costs.items()]
    charge = lagrangian(torch.zeros_like(next(iter(costs.values()))), excesses, multipliers)
    return add_at_end(scores / (1.0 + sum(multipliers)), charge.to(scores.dtype), mask)

"""PPO under constraints on costs."""

from __future__ import annotations

from dataclasses import dataclass, field

from rlhf.algorithms.constraints import Constraint
from rlhf.algorithms.ppo import PPO


@dataclass(frozen=True, kw_only=True)
class PPOLagrangian(PPO):
    """PPO that maximises the reward while mean costs stay under their limits.

    max_π min_{λ ≥ 0}  E[R − Σ_i λ_i (C_i − limit_i)] / (1 + Σ_i λ_i): each response's score is charged with its costs,
    and each multiplier follows the mean cost of the latest iterations.   Source: arXiv:2310.12773, eq. 31
    (there with a critic for the reward and one for the cost; here one critic learns the charged score).

    Any other algorithm takes ``constraints`` too.

    Args:
        constraints: At least one.
    """

    constraints: dict[str, Constraint] = field()  # no default, where PPO has one

    def check(self) -> list[str]:
        none = [] if self.constraints else ["constraints: there is none; name one, or use PPO"]
        return none + super().check()

"""REINFORCE with the greedy response as baseline."""

from __future__ import annotations

from dataclasses import dataclass

from rlhf.algorithms.advantages import GreedyBaseline
from rlhf.algorithms.policy_losses import PolicyGradient
from rlhf.algorithms.ppo import PPO
from rlhf.interfaces import AdvantageEstimator, Critic, PolicyLoss


@dataclass(frozen=True, kw_only=True)
class ReMax(PPO):
    """REINFORCE whose baseline is the score of the greedy response to the same prompt; no critic, no group.

    maximise  1/B Σ_i A_i log π(y_i | x),   A_i = R_i − s(x, greedy response).   Source: arXiv:2310.10505.

    Costs a second, greedy response to each prompt in every iteration.
    """

    critic: Critic | None = None
    advantage: AdvantageEstimator = GreedyBaseline()
    policy_loss: PolicyLoss = PolicyGradient(aggregation="constant")
    score_clip: float | None = None

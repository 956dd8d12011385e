"""REINFORCE with a leave-one-out baseline."""

from __future__ import annotations

from dataclasses import dataclass

from rlhf.algorithms.advantages import LeaveOneOut
from rlhf.algorithms.policy_losses import PolicyGradient
from rlhf.algorithms.ppo import PPO
from rlhf.interfaces import AdvantageEstimator, Critic, PolicyLoss


@dataclass(frozen=True, kw_only=True)
class RLOO(PPO):
    """REINFORCE, leave one out: the mean of a prompt's other responses is the baseline; no critic, no clip.

    maximise  1/B Σ_i A_i log π(y_i | x),   A_i = R_i − mean_{j ≠ i} R_j,   R_i = score − β Σ_t KL_t.
    Source: arXiv:2402.14740, the RLOO estimator.

    The response as a whole is the action: log-probabilities are summed over its tokens (and divided by the longest
    length allowed, a constant).

    Args:
        samples_per_prompt: Responses drawn for each prompt: k.
    """

    samples_per_prompt: int = 4
    critic: Critic | None = None
    advantage: AdvantageEstimator = LeaveOneOut()
    policy_loss: PolicyLoss = PolicyGradient(aggregation="constant")
    score_clip: float | None = None

"""Group-relative policy optimisation, and the two that mend its biases."""

from __future__ import annotations

from dataclasses import dataclass

from rlhf.algorithms.advantages import GroupNorm
from rlhf.algorithms.filters import InformativeGroups
from rlhf.algorithms.kl import KL, Fixed
from rlhf.algorithms.policy_losses import Clip
from rlhf.algorithms.ppo import PPO
from rlhf.interfaces import AdvantageEstimator, Critic, PolicyLoss, RolloutFilter


@dataclass(frozen=True, kw_only=True)
class GRPO(PPO):
    """Group-relative policy optimisation: no critic, a prompt's responses are each other's baseline.

    maximise  1/G Σ_i 1/|y_i| Σ_t (min(r_t A_i, clip(r_t, 1 − ε, 1 + ε) A_i) − β KL_t),
    A_i = (s_i − mean of the group) / std of the group.
    Source: arXiv:2402.03300, eq. 3; the KL as a loss with the k3 estimator, as published.

    Args:
        samples_per_prompt: Responses drawn for each prompt: the group.
    """

    samples_per_prompt: int = 8
    critic: Critic | None = None
    advantage: AdvantageEstimator = GroupNorm()
    policy_loss: PolicyLoss = Clip(aggregation="sequence")
    kl: KL | None = KL(estimator="k3", where="loss", controller=Fixed(coef=0.04))
    score_clip: float | None = None


@dataclass(frozen=True, kw_only=True)
class DrGRPO(GRPO):
    """GRPO done right: neither the length of a response nor the spread of its group weighs its gradient.

    maximise  1/(G · L) Σ_i Σ_t min(r_t A_i, clip(r_t, 1 − ε, 1 + ε) A_i),   A_i = s_i − mean of the group,
    L the longest response allowed; no KL.   Source: arXiv:2503.20783, section 3.2.
    """

    advantage: AdvantageEstimator = GroupNorm(scale="none")
    policy_loss: PolicyLoss = Clip(aggregation="constant")
    kl: KL | None = None


@dataclass(frozen=True, kw_only=True)
class DAPO(GRPO):
    """Decoupled clip and dynamic sampling: a wider clip upwards, no group that teaches nothing, all tokens alike.

    maximise  1/Σ|y_i| Σ_i Σ_t min(r_t A_i, clip(r_t, 1 − ε_low, 1 + ε_high) A_i),
    over groups whose scores are not all the same; no KL.   Source: arXiv:2503.14476, eq. 8 to 11.

    Its fourth part, the penalty that grows over the last tokens before the length limit (eq. 13), is the reward's:
    ``reward: {class_path: OverlongPenalty, …}`` around the reward model.
    """

    policy_loss: PolicyLoss = Clip(low=0.2, high=0.28)
    filter: RolloutFilter | None = InformativeGroups()
    kl: KL | None = None

"""Value-based augmented PPO."""

from __future__ import annotations

from dataclasses import dataclass

from rlhf.algorithms.advantages import GAE
from rlhf.algorithms.critics import OwnTrunk
from rlhf.algorithms.kl import KL
from rlhf.algorithms.objectives import Imitation
from rlhf.algorithms.policy_losses import Clip
from rlhf.algorithms.ppo import PPO
from rlhf.interfaces import AdvantageEstimator, Critic, PolicyLoss


@dataclass(frozen=True, kw_only=True)
class VAPO(PPO):
    """PPO with a critic for long responses: pretrained, with a λ of its own, and for the policy one by length.

    Critic: λ = 1 in its targets, and it learns alone at first. Policy: λ = 1 − 1/(α |y|), a wider clip upwards, all
    tokens alike, several responses to a prompt, and coef · likelihood of those that are right; no KL.
    Source: arXiv:2504.05118, section 4.

    Args:
        samples_per_prompt: Responses drawn for each prompt.
    """

    samples_per_prompt: int = 8
    critic: Critic | None = OwnTrunk(warmup_iterations=2)
    advantage: AdvantageEstimator = GAE(length_alpha=0.05, critic_lam=1.0)
    policy_loss: PolicyLoss = Clip(low=0.2, high=0.28)
    imitation: Imitation | None = Imitation(coef=0.1)
    kl: KL | None = None

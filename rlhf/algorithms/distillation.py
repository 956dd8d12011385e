"""Learning from a teacher on the student's own samples."""

from __future__ import annotations

from dataclasses import dataclass, field

from rlhf.algorithms.advantages import Returns
from rlhf.algorithms.kl import KL, Fixed
from rlhf.algorithms.policy_losses import PolicyGradient
from rlhf.algorithms.ppo import PPO
from rlhf.interfaces import AdvantageEstimator, Critic, Policy, PolicyLoss, RewardModel
from rlhf.models.rewards.nothing import NoReward


@dataclass(frozen=True, kw_only=True)
class OnPolicyDistillation(PPO):
    """Reverse KL to a teacher, on what the student says: each token is judged by how likely the teacher finds it.

    minimise  E_{y ~ π}[Σ_t KL(π(· | x, y_<t) ‖ teacher(· | x, y_<t))]:  A_t = log teacher(y_t) − log π_old(y_t), no
    return beyond the token.   Source: arXiv:2306.13649 (GKD) with samples of the student only;
    with ``kl: {estimator: exact, where: loss}`` of the whole distributions, as there.

    Args:
        reference: The teacher, with the student's vocabulary.
        reward: What counts besides: nothing by default.
    """

    reference: Policy = field()  # no default, where PPO has one
    reward: RewardModel = NoReward()
    critic: Critic | None = None
    advantage: AdvantageEstimator = Returns(gamma=0.0, whiten=False)
    policy_loss: PolicyLoss = PolicyGradient()
    kl: KL | None = KL(estimator="k1", where="reward", controller=Fixed(coef=1.0))
    score_clip: float | None = None

    def check(self) -> list[str]:
        if self.kl is None:
            return ["kl: is null, but the KL to the teacher is what is learnt from; give it"]
        return super().check()

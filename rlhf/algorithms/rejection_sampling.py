"""Best-of-n sampling and supervised learning from what was kept."""

from __future__ import annotations

from dataclasses import dataclass

from rlhf.algorithms.advantages import Ones
from rlhf.algorithms.filters import BestOfGroup
from rlhf.algorithms.kl import KL
from rlhf.algorithms.policy_losses import PolicyGradient
from rlhf.algorithms.ppo import PPO
from rlhf.interfaces import AdvantageEstimator, Critic, PolicyLoss, RolloutFilter


@dataclass(frozen=True, kw_only=True)
class RejectionSampling(PPO):
    """Rejection-sampling fine-tuning: several responses to a prompt, the likelihood of the best is raised.

    minimise  −1/N Σ_t log π(y_t | x, y_<t)  over the N tokens of the responses that the filter keeps.
    Source: arXiv:2304.06767, algorithm 1 (RAFT); arXiv:2307.09288, section 3.2.3 (Llama 2).

    Each iteration samples from the policy as it is by then. Several rounds from a policy that stands still are several
    stages, each from ``@round_1`` and so on, with one iteration and many prompts (docs/algorithms.md).

    Args:
        samples_per_prompt: Responses drawn for each prompt: n of best-of-n.
    """

    samples_per_prompt: int = 8
    filter: RolloutFilter | None = BestOfGroup(keep=1)
    critic: Critic | None = None
    advantage: AdvantageEstimator = Ones()
    policy_loss: PolicyLoss = PolicyGradient()
    kl: KL | None = None

    def check(self) -> list[str]:
        none = ["filter: is null, so that every response is imitated; set one, such as BestOfGroup"]
        return (none if self.filter is None else []) + super().check()

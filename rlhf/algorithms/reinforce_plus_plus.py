"""REINFORCE with what was learnt from PPO, with and without a baseline of the group."""

from __future__ import annotations

from dataclasses import dataclass

from rlhf.algorithms.advantages import GroupNorm, Returns
from rlhf.algorithms.kl import KL, Fixed
from rlhf.algorithms.ppo import PPO
from rlhf.interfaces import AdvantageEstimator, Critic


@dataclass(frozen=True, kw_only=True)
class ReinforcePlusPlus(PPO):
    """REINFORCE++: returns whitened over the whole batch in the place of a critic, with PPO's clip.

    maximise  E_t[min(r_t A_t, clip(r_t, 1 − ε, 1 + ε) A_t)],
    A_t = (G_t − mean) / std over all tokens of the iteration,   G_t = score − β Σ_{k ≥ t} KL_k.
    Source: arXiv:2501.03262.
    """

    critic: Critic | None = None
    advantage: AdvantageEstimator = Returns(gamma=1.0, whiten=True)
    kl: KL | None = KL(estimator="k1", where="reward", controller=Fixed(coef=0.01))


@dataclass(frozen=True, kw_only=True)
class ReinforcePlusPlusBaseline(PPO):
    """REINFORCE++ with a baseline: scores less the mean of their group, whitened over the whole batch.

    maximise  E_t[min(r_t A_t, clip(r_t, 1 − ε, 1 + ε) A_t)] − β KL,
    A_t = (s − mean of the group) / std of these over the iteration.
    Source: arXiv:2501.03262, its variant with a baseline: the KL is a loss with the k2 estimator.

    Args:
        samples_per_prompt: Responses drawn for each prompt: the group.
    """

    samples_per_prompt: int = 4
    critic: Critic | None = None
    advantage: AdvantageEstimator = GroupNorm(scale="none", whiten=True)
    kl: KL | None = KL(estimator="k2", where="loss", controller=Fixed(coef=0.01))

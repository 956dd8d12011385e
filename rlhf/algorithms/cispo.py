"""Clipped importance-sampling policy optimisation."""

from __future__ import annotations

from dataclasses import dataclass

from rlhf.algorithms.grpo import GRPO
from rlhf.algorithms.kl import KL
from rlhf.algorithms.policy_losses import DetachedClip
from rlhf.interfaces import PolicyLoss


@dataclass(frozen=True, kw_only=True)
class CISPO(GRPO):
    """GRPO that clips the importance weight and never the gradient: every token goes on learning.

    maximise  1/Σ|y_i| Σ_i Σ_t sg(clip(r_t, 1 − ε_low, 1 + ε_high)) A_i log π(y_t | x, y_<t); no KL.
    Source: arXiv:2506.13585, eq. 4 and 5.
    """

    policy_loss: PolicyLoss = DetachedClip()
    kl: KL | None = None

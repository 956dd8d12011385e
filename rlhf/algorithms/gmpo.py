"""Geometric-mean policy optimisation."""

from __future__ import annotations

from dataclasses import dataclass

from rlhf.algorithms.grpo import GRPO
from rlhf.algorithms.kl import KL
from rlhf.algorithms.policy_losses import GeometricMean
from rlhf.interfaces import PolicyLoss


@dataclass(frozen=True, kw_only=True)
class GMPO(GRPO):
    """GRPO with the geometric mean of the tokens' clipped ratios, which one odd token hardly moves.

    maximise  1/G Σ_i (Π_t min(r_t^{sgn A}, clip(r_t, e^−ε, e^ε)^{sgn A}))^{sgn A / |y_i|} A_i; no KL.
    Source: arXiv:2507.20673, section 3.
    """

    policy_loss: PolicyLoss = GeometricMean()
    kl: KL | None = None

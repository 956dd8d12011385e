"""Group sequence policy optimisation."""

from __future__ import annotations

from dataclasses import dataclass

from rlhf.algorithms.grpo import GRPO
from rlhf.algorithms.kl import KL
from rlhf.algorithms.policy_losses import SequenceClip
from rlhf.interfaces import PolicyLoss


@dataclass(frozen=True, kw_only=True)
class GSPO(GRPO):
    """GRPO whose importance ratio is that of the whole response, to the power of one over its length.

    maximise  1/G Σ_i min(s_i A_i, clip(s_i, 1 − ε_low, 1 + ε_high) A_i),
    s_i = (π(y_i | x) / π_old(y_i | x))^(1/|y_i|); no KL.
    Source: arXiv:2507.18071, eq. 5 to 7; the clip of its section 5.1.
    """

    policy_loss: PolicyLoss = SequenceClip()
    kl: KL | None = None

"""Advantage estimators: adapters over ``functional.advantages``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from rlhf.algorithms.functional import advantages, masking
from rlhf.errors import UserError, require
from rlhf.interfaces import AdvantageEstimator
from rlhf.types import Advantages, Scored


def _per_token(per_sequence: Tensor, mask: Tensor) -> Tensor:
    """[B] to [B, T]: every token of a response gets the response's advantage."""
    return per_sequence[:, None].expand(mask.shape).masked_fill(~mask, 0.0)


@dataclass(frozen=True, kw_only=True)
class GAE(AdvantageEstimator):
    """Generalised advantage estimation with a critic.

    δ_t = r_t + γ V_{t+1} − V_t,   A_t = δ_t + γ λ A_{t+1}.   Source: arXiv:1506.02438, eq. 16.

    Args:
        gamma: Discount γ per token.
        lam: λ: 1 gives Monte-Carlo returns minus values, 0 the one-step TD error.
        whiten: Shift and scale the advantages of the iteration to mean 0 and variance 1 over all tokens of all ranks.
    """

    needs_critic: ClassVar[bool] = True

    gamma: float = 1.0
    lam: float = 0.95
    whiten: bool = True

    def __post_init__(self) -> None:
        require(at_least=0, at_most=1, gamma=self.gamma, lam=self.lam)

    def __call__(self, scored: Scored) -> Advantages:
        if scored.values is None:
            raise UserError("GAE needs a critic's values; set `critic`, or an estimator that needs none")
        estimates, returns = advantages.gae(
            scored.rewards, scored.values, scored.mask, gamma=self.gamma, lam=self.lam, bootstrap=scored.bootstrap
        )
        if self.whiten:
            estimates = masking.masked_whiten(estimates, scored.mask)
        return Advantages(estimates, returns)


@dataclass(frozen=True, kw_only=True)
class Returns(AdvantageEstimator):
    """Discounted rewards to go, without a baseline (REINFORCE).

    A_t = Σ_{k ≥ t} γ^{k−t} r_k.   Source: Williams 1992.

    Args:
        gamma: Discount γ per token.
        whiten: Shift and scale to mean 0 and variance 1 over all tokens of the iteration: a constant baseline.
    """

    gamma: float = 1.0
    whiten: bool = True

    def __post_init__(self) -> None:
        require(at_least=0, at_most=1, gamma=self.gamma)

    def __call__(self, scored: Scored) -> Advantages:
        estimates = advantages.returns(scored.rewards, scored.mask, gamma=self.gamma)
        return Advantages(masking.masked_whiten(estimates, scored.mask) if self.whiten else estimates, None)


@dataclass(frozen=True, kw_only=True)
class GroupNorm(AdvantageEstimator):
    """Group-relative advantages: the other responses to a prompt are the baseline.

    A_i = (R_i − mean_group) / (std + ε), the same for every token.   Source: arXiv:2402.03300, section 4.1.2.
    R_i is the sum of the response's rewards, so that a KL penalty in the reward counts.

    Args:
        scale: Divide by the standard deviation of the "group", of the "batch", or by nothing ("none", as Dr. GRPO).
        eps: ε, added to the standard deviation.
    """

    needs_groups: ClassVar[bool] = True

    scale: Literal["group", "batch", "none"] = "group"
    eps: float = 1e-4

    def __post_init__(self) -> None:
        require(above=0, eps=self.eps)

    def __call__(self, scored: Scored) -> Advantages:
        totals = scored.rewards.masked_fill(~scored.mask, 0.0).sum(1)
        estimates = advantages.group_norm(totals, scored.groups, scale=self.scale, eps=self.eps)
        return Advantages(_per_token(estimates, scored.mask), None)


@dataclass(frozen=True, kw_only=True)
class LeaveOneOut(AdvantageEstimator):
    """The mean of a prompt's other responses is the baseline (RLOO).

    A_i = R_i − mean_{j ≠ i} R_j, the same for every token.   Source: arXiv:2402.14740, section 3.2.
    """

    needs_groups: ClassVar[bool] = True

    def __call__(self, scored: Scored) -> Advantages:
        totals = scored.rewards.masked_fill(~scored.mask, 0.0).sum(1)
        return Advantages(_per_token(advantages.leave_one_out(totals, scored.groups), scored.mask), None)

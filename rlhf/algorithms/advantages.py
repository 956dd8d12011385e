"""Advantage estimators: adapters over ``functional.advantages`` and ``functional.baselines``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from rlhf.algorithms.functional import advantages, baselines, masking
from rlhf.errors import UserError, require
from rlhf.interfaces import AdvantageEstimator
from rlhf.types import Advantages, Scored


def _per_token(per_sequence: Tensor, mask: Tensor) -> Tensor:
    """[B] to [B, T]: every token of a response gets the response's advantage."""
    return per_sequence[:, None].expand(mask.shape).masked_fill(~mask, 0.0)


@dataclass(frozen=True, kw_only=True)
class GAE(AdvantageEstimator):
    """Generalised advantage estimation with a critic.

    δ_t = r_t + γ V_{t+1} − V_t,   A_t = δ_t + γ λ A_{t+1};   the critic's targets are A_t + V_t.
    Source: arXiv:1506.02438, eq. 16; a λ of the critic's own: arXiv:2503.01491; λ by length: arXiv:2504.05118, §4.2.

    Args:
        gamma: Discount γ per token.
        lam: λ: 1 gives Monte-Carlo returns minus values, 0 the one-step TD error.
        critic_lam: λ of the critic's targets, such as 1 for values without bias over long responses; null for the same
            as the policy's.
        length_alpha: α of λ = 1 − 1 / (α · length), in the place of ``lam``, at least 0: a fixed share α of each
            response bears an error, whatever its length; null for one λ.
        whiten: Shift and scale the advantages of the iteration to mean 0 and variance 1 over all tokens of all ranks.
    """

    needs_critic: ClassVar[bool] = True

    gamma: float = 1.0
    lam: float = 0.95
    critic_lam: float | None = None
    length_alpha: float | None = None
    whiten: bool = True

    def __post_init__(self) -> None:
        require(at_least=0, at_most=1, gamma=self.gamma, lam=self.lam, critic_lam=self.critic_lam)
        require(above=0, length_alpha=self.length_alpha)

    def __call__(self, scored: Scored) -> Advantages:
        if scored.values is None:
            raise UserError("GAE needs a critic's values; set `critic`, or an estimator that needs none")
        lam = self.lam
        if self.length_alpha is not None:
            lam = baselines.length_adaptive_lambda(scored.mask, alpha=self.length_alpha)
        estimates, returns = self._estimate(scored, scored.values, lam)
        if self.critic_lam is not None:
            _, returns = self._estimate(scored, scored.values, self.critic_lam)
        if self.whiten:
            estimates = masking.masked_whiten(estimates, scored.mask)
        return Advantages(estimates, returns)

    def _estimate(self, scored: Scored, values: Tensor, lam: float | Tensor) -> tuple[Tensor, Tensor]:
        return advantages.gae(
            scored.rewards, values, scored.mask, gamma=self.gamma, lam=lam, bootstrap=scored.bootstrap
        )


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
        whiten: Then shift and scale to mean 0 and variance 1 over all tokens of the iteration; with ``scale: none`` the
            advantages of REINFORCE++-baseline (arXiv:2501.03262, the group mean first, then the batch's moments).
    """

    needs_groups: ClassVar[bool] = True

    scale: Literal["group", "batch", "none"] = "group"
    eps: float = 1e-4
    whiten: bool = False

    def __post_init__(self) -> None:
        require(above=0, eps=self.eps)

    def __call__(self, scored: Scored) -> Advantages:
        totals = scored.rewards.masked_fill(~scored.mask, 0.0).sum(1)
        of_response = advantages.group_norm(totals, scored.groups, scale=self.scale, eps=self.eps)
        estimates = _per_token(of_response, scored.mask)
        return Advantages(masking.masked_whiten(estimates, scored.mask) if self.whiten else estimates, None)


@dataclass(frozen=True, kw_only=True)
class Ones(AdvantageEstimator):
    """1 for every token: the loss is the likelihood of what was kept, as in rejection sampling."""

    def __call__(self, scored: Scored) -> Advantages:
        return Advantages(scored.mask.to(scored.rewards.dtype), None)


@dataclass(frozen=True, kw_only=True)
class LeaveOneOut(AdvantageEstimator):
    """The mean of a prompt's other responses is the baseline (RLOO).

    A_i = R_i − mean_{j ≠ i} R_j, the same for every token.   Source: arXiv:2402.14740, section 3.2.
    """

    needs_groups: ClassVar[bool] = True

    def __call__(self, scored: Scored) -> Advantages:
        totals = scored.rewards.masked_fill(~scored.mask, 0.0).sum(1)
        return Advantages(_per_token(advantages.leave_one_out(totals, scored.groups), scored.mask), None)


@dataclass(frozen=True, kw_only=True)
class GreedyBaseline(AdvantageEstimator):
    """The score of the prompt's greedy response is the baseline (ReMax).

    A_t = Σ_{k ≥ t} r_k − s_greedy.   Source: arXiv:2310.10505.
    """

    needs_greedy: ClassVar[bool] = True

    def __call__(self, scored: Scored) -> Advantages:
        if scored.greedy is None:
            raise UserError("GreedyBaseline needs the score of each prompt's greedy response; nobody has sampled it")
        return Advantages(baselines.greedy_baseline(scored.rewards, scored.greedy, scored.mask), None)


@dataclass(frozen=True, kw_only=True)
class OptimalTokenBaseline(AdvantageEstimator):
    """For each position the baseline that leaves the policy gradient the least variance.

    A_it = Σ_{k ≥ t} r_ik − B_t,   B_t the mean of the rewards to go of the prompt's responses, weighted by the squared
    norm of the gradient up to t, Σ_{k ≤ t} (1 − 2 π(a_ik) + Σ_v π(v)²).   Source: arXiv:2602.07078.
    Where no other response of the prompt reaches, A is 0.
    """

    needs_groups: ClassVar[bool] = True
    needs_collision: ClassVar[bool] = True

    def __call__(self, scored: Scored) -> Advantages:
        if scored.old_logprobs is None or scored.collision is None:
            raise UserError("OptimalTokenBaseline needs old_logprobs and collision; nobody has computed them")
        estimates = baselines.optimal_token_baseline(
            scored.rewards, scored.old_logprobs, scored.collision, scored.mask, scored.groups
        )
        return Advantages(estimates, None)

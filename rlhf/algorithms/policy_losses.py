"""Policy losses: adapters over ``functional.losses`` and ``functional.policy_losses``."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from rlhf.algorithms.functional import losses, policy_losses
from rlhf.errors import require
from rlhf.interfaces import PolicyLoss
from rlhf.types import Aggregation, Batch


@dataclass(frozen=True, kw_only=True)
class Clip(PolicyLoss):
    """PPO's clipped surrogate.

    L_t = −min(r_t A_t, clip(r_t, 1 − low, 1 + high) A_t),   r_t = exp(logprobs − old_logprobs).
    Source: arXiv:1707.06347, eq. 7; asymmetric range: arXiv:2503.14476, eq. 10; dual clip: arXiv:1912.09729, eq. 5.

    Args:
        low: How far below 1 the ratio may go before its gradient is cut.
        high: How far above 1.
        dual: Upper bound c > 1 of the loss's ratio for negative advantages; null leaves it unbounded.
        aggregation: "token": mean over all tokens of the step; "sequence": mean of each response's mean; "constant":
            sum over the tokens / (responses · longest allowed response), so that no length is favoured (Dr. GRPO,
            arXiv:2503.20783).
    """

    low: float = 0.2
    high: float = 0.2
    dual: float | None = None
    aggregation: Aggregation = "token"

    def __post_init__(self) -> None:
        require(at_least=0, below=1, low=self.low)
        require(at_least=0, high=self.high)
        require(above=1, dual=self.dual)

    def __call__(self, logprobs: Tensor, batch: Batch) -> Tensor:
        return losses.clipped_surrogate(
            logprobs,
            batch.old_logprobs,
            batch.advantages,
            batch.mask,
            clip_low=self.low,
            clip_high=self.high,
            dual_clip=self.dual,
        )


@dataclass(frozen=True, kw_only=True)
class DualClip(Clip):
    """PPO's clipped surrogate, bounded for negative advantages too.

    L_t = min(Clip's L_t, c |A_t|) where A_t < 0: a bad token that has become far likelier does not outweigh all others.
    Source: arXiv:1912.09729, eq. 5.

    Args:
        dual: Bound c > 1 on the ratio of tokens with a negative advantage; beyond it their gradient is cut.
    """

    dual: float = 3.0


@dataclass(frozen=True, kw_only=True)
class SequenceClip(PolicyLoss):
    """The clipped surrogate with one ratio per response, the geometric mean of its tokens' (GSPO).

    L = −min(s A, clip(s, 1 − low, 1 + high) A),   s = exp(mean over the response of logprobs − old_logprobs).
    Source: arXiv:2507.18071, eq. 5 and 7; where tokens have advantages of their own: eq. 13 and 14.

    Args:
        low: How far below 1 the ratio may go before the gradient of the response is cut. It moves far less than a
            token's.
        high: How far above 1.
        aggregation: "sequence": as published, each response counts the same; "token", "constant": by its length, as in
            ``Clip``.
    """

    low: float = 3e-4
    high: float = 4e-4
    aggregation: Aggregation = "sequence"

    def __post_init__(self) -> None:
        require(at_least=0, below=1, low=self.low)
        require(at_least=0, high=self.high)

    def __call__(self, logprobs: Tensor, batch: Batch) -> Tensor:
        return policy_losses.sequence_surrogate(
            logprobs, batch.old_logprobs, batch.advantages, batch.mask, clip_low=self.low, clip_high=self.high
        )


@dataclass(frozen=True, kw_only=True)
class GeometricMean(PolicyLoss):
    """The geometric mean of the clipped ratios of a response's tokens (GMPO).

    L = −A exp(mean over the response of c_t),   c_t = logprobs − old_logprobs, at most ``high`` where A_t > 0, at least
    −``low`` where A_t < 0.   Source: arXiv:2507.20673, §3.

    Args:
        low: How far below 0 a token's log-ratio may go before its gradient is cut, in nats.
        high: How far above 0.
        aggregation: "sequence": as published, each response counts the same; "token", "constant": by its length, as in
            ``Clip``.
    """

    low: float = 0.4
    high: float = 0.4
    aggregation: Aggregation = "sequence"

    def __post_init__(self) -> None:
        require(at_least=0, low=self.low, high=self.high)

    def __call__(self, logprobs: Tensor, batch: Batch) -> Tensor:
        return policy_losses.geometric_surrogate(
            logprobs, batch.old_logprobs, batch.advantages, batch.mask, clip_low=self.low, clip_high=self.high
        )


@dataclass(frozen=True, kw_only=True)
class DetachedClip(PolicyLoss):
    """The policy gradient with a clipped ratio as its weight: no token loses its gradient (CISPO).

    L_t = −sg(clip(r_t, 1 − low, 1 + high)) A_t logprobs_t,   r_t = exp(logprobs − old_logprobs),   sg: no gradient.
    Source: arXiv:2506.13585, eq. 4 and 5; a ratio of at most 5: arXiv:2510.13786.

    Args:
        low: How far below 1 the weight may go; null without a bound, as published.
        high: How far above 1; null without a bound: with ``low: null``, the importance-weighted policy gradient.
        aggregation: As in ``Clip``.
    """

    low: float | None = None
    high: float | None = 4.0
    aggregation: Aggregation = "token"

    def __post_init__(self) -> None:
        require(at_least=0, at_most=1, low=self.low)
        require(at_least=0, high=self.high)

    def __call__(self, logprobs: Tensor, batch: Batch) -> Tensor:
        return policy_losses.detached_surrogate(
            logprobs, batch.old_logprobs, batch.advantages, batch.mask, clip_low=self.low, clip_high=self.high
        )


@dataclass(frozen=True, kw_only=True)
class KLPenalty(PolicyLoss):
    """PPO with a penalty on the divergence from the policy before the update, in the place of a clip.

    L_t = −r_t A_t + coef · (r_t − 1 − log r_t),   r_t = exp(logprobs − old_logprobs).
    Source: arXiv:1707.06347, eq. 8, with a fixed β; KL(old ‖ new) by its k3 estimate.

    Args:
        coef: β, per nat.
        aggregation: As in ``Clip``.
    """

    coef: float = 1.0
    aggregation: Aggregation = "token"

    def __post_init__(self) -> None:
        require(at_least=0, coef=self.coef)

    def __call__(self, logprobs: Tensor, batch: Batch) -> Tensor:
        return policy_losses.penalised_surrogate(
            logprobs, batch.old_logprobs, batch.advantages, batch.mask, coef=self.coef
        )


@dataclass(frozen=True, kw_only=True)
class PolicyGradient(PolicyLoss):
    """The plain policy gradient; with advantages of 0 and 1, the likelihood of the responses that are kept.

    L_t = −A_t logprobs_t.   Source: Williams 1992, doi:10.1007/BF00992696.
    It is right for one optimiser step on each iteration's responses; where more are made, ``Clip`` bounds what the
    later ones do, and ``DetachedClip`` without bounds weighs them by their ratio.

    Args:
        aggregation: As in ``Clip``; "constant" is the gradient of the mean return but for a factor.
    """

    aggregation: Aggregation = "token"

    def __call__(self, logprobs: Tensor, batch: Batch) -> Tensor:
        return policy_losses.policy_gradient(logprobs, batch.advantages, batch.mask)

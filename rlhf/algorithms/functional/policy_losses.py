"""Surrogates of the policy other than PPO's clip, per token, to minimise; `masking.aggregate` makes them one number.

At the policy that sampled (`logprobs` = `old_logprobs`), with one advantage per response, the gradient of each is the
policy gradient −A_t ∇ log π(a_t): they differ in what they do when the policy has moved away.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rlhf.algorithms.functional._shared import check_mask, check_not_negative, keep, masked, moved


def _mean_of_rows(x: Tensor, mask: Tensor) -> Tensor:
    """[B, T] with 0 in masked slots to [B, 1]: the mean over the real tokens of each row, 0 without one."""
    return x.sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)


def policy_gradient(logprobs: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """The plain policy gradient, and the negative log-likelihood weighted by advantages.

    L_t = −A_t log π(a_t). Its gradient is unbiased on samples of the policy that is trained, as in the first optimiser
    step after sampling; no ratio corrects later ones (`detached_surrogate` without clips does: its gradient is that of
    −r_t A_t). With advantages of 0 and 1 it is the likelihood of the responses that are kept.
    Source: Williams 1992, doi:10.1007/BF00992696.

    Args:
        logprobs: [B, T] of the sampled tokens under the policy that is trained, in nats.
        advantages: [B, T], no unit; a constant.
        mask: [B, T] bool, True where the policy chose the token.

    Returns:
        [B, T] to minimise, 0 in masked slots.

    Raises:
        ValueError: shapes differ or the mask is not bool.
    """
    logprobs, advantages = masked(mask, logprobs=logprobs, advantages=advantages)
    return -advantages * logprobs


def sequence_surrogate(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_low: float = 3e-4,
    clip_high: float = 4e-4,
) -> Tensor:
    """The clipped surrogate with one ratio per response (GSPO).

    L_t = −min(s_t A_t, clip(s_t, 1 − clip_low, 1 + clip_high) A_t),   s_t = sg(s) · π(a_t) / sg(π(a_t)),
    s = exp(mean over the response of log π(a_t) − log π_old(a_t)),   sg: no gradient.
    The value of s_t is s. Where a response has one advantage, L has one value and the gradient of its mean over the
    tokens is that of −min(s A, clip(s) A): "sequence" in `masking.aggregate` gives the objective of the paper. Where
    tokens have advantages of their own it is the paper's token variant.
    Source: arXiv:2507.18071, eq. 5 and 7; the token variant: eq. 13 and 14.

    Args:
        logprobs: [B, T] of the sampled tokens under the policy that is trained, in nats.
        old_logprobs: [B, T] under the policy before the update; a constant.
        advantages: [B, T], no unit; a constant.
        mask: [B, T] bool, True where the policy chose the token.
        clip_low: How far below 1 the ratio may go before the gradient of the whole response stops.
        clip_high: How far above 1.

    Returns:
        [B, T] to minimise, 0 in masked slots.

    Raises:
        ValueError: shapes differ, the mask is not bool or a clip is negative.
    """
    check_not_negative(clip_low=clip_low, clip_high=clip_high)
    logprobs, log_ratio, advantages = moved(logprobs, old_logprobs, advantages, mask)
    ratio = (_mean_of_rows(log_ratio, mask).detach() + logprobs - logprobs.detach()).exp()
    objective = torch.minimum(ratio * advantages, ratio.clamp(1 - clip_low, 1 + clip_high) * advantages)
    return keep(-objective, mask)


def geometric_surrogate(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_low: float = 0.4,
    clip_high: float = 0.4,
) -> Tensor:
    """The geometric mean of clipped token ratios (GMPO).

    L_t = −A_t exp(mean over the response of c_u),   c_u = min(d_u, clip_high) where A_u > 0, max(d_u, −clip_low) where
    A_u < 0 (as PPO's min, in logarithms),   d_u = log π(a_u) − log π_old(a_u).
    Where a response has one advantage, L has one value: "sequence" in `masking.aggregate` gives the paper's objective.
    Unlike in `sequence_surrogate`, a token that has gone too far stops alone, and the others of its response learn on.
    Source: arXiv:2507.20673, §3, with its clip from e^−0.4 to e^0.4.

    Args:
        logprobs: [B, T] of the sampled tokens under the policy that is trained, in nats.
        old_logprobs: [B, T] under the policy before the update; a constant.
        advantages: [B, T], no unit; a constant.
        mask: [B, T] bool, True where the policy chose the token.
        clip_low: How far below 0 the log-ratio of a token may go before its gradient stops, in nats.
        clip_high: How far above 0.

    Returns:
        [B, T] to minimise, 0 in masked slots.

    Raises:
        ValueError: shapes differ, the mask is not bool or a clip is negative.
    """
    check_not_negative(clip_low=clip_low, clip_high=clip_high)
    _, log_ratio, advantages = moved(logprobs, old_logprobs, advantages, mask)
    clipped = torch.where(advantages > 0, log_ratio.clamp(max=clip_high), log_ratio.clamp(min=-clip_low))
    return keep(-advantages * _mean_of_rows(clipped, mask).exp(), mask)


def detached_surrogate(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_low: float | None = None,
    clip_high: float | None = 4.0,
) -> Tensor:
    """The policy gradient weighted by a clipped ratio that has no gradient itself (CISPO).

    L_t = −sg(clip(r_t, 1 − clip_low, 1 + clip_high)) A_t log π(a_t),   r_t = exp(log π(a_t) − log π_old(a_t)).
    Every token keeps a gradient, of bounded weight. Without clips the gradient is that of −r_t A_t.
    Source: arXiv:2506.13585, eq. 4 and 5, which bounds from above alone; arXiv:2510.13786 cuts the ratio at 5.

    Args:
        logprobs: [B, T] of the sampled tokens under the policy that is trained, in nats.
        old_logprobs: [B, T] under the policy before the update; a constant.
        advantages: [B, T], no unit; a constant.
        mask: [B, T] bool, True where the policy chose the token.
        clip_low: How far below 1 the weight may go; None without a bound.
        clip_high: How far above 1; None without a bound.

    Returns:
        [B, T] to minimise, 0 in masked slots.

    Raises:
        ValueError: shapes differ, the mask is not bool or a clip is negative.
    """
    check_not_negative(clip_low=clip_low, clip_high=clip_high)
    logprobs, log_ratio, advantages = moved(logprobs, old_logprobs, advantages, mask)
    low = 0.0 if clip_low is None else 1 - clip_low
    weight = log_ratio.detach().exp().clamp(low, None if clip_high is None else 1 + clip_high)
    return -weight * advantages * logprobs


def penalised_surrogate(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, mask: Tensor, *, coef: float
) -> Tensor:
    """PPO with a penalty on the divergence from the old policy in the place of a clip.

    L_t = −r_t A_t + coef · (r_t − 1 − log r_t),   r_t = exp(log π(a_t) − log π_old(a_t)).
    The second part estimates KL(π_old ‖ π) from samples of π_old without bias, is never negative, and its expected
    gradient is the divergence's.
    Source: arXiv:1707.06347, eq. 8, with a fixed β; the estimator: J. Schulman, "Approximating KL divergence",
    http://joschu.net/blog/kl-approx.html, k3.

    Args:
        logprobs: [B, T] of the sampled tokens under the policy that is trained, in nats.
        old_logprobs: [B, T] under the policy before the update; a constant.
        advantages: [B, T], no unit; a constant.
        mask: [B, T] bool, True where the policy chose the token.
        coef: β ≥ 0, per nat.

    Returns:
        [B, T] to minimise, 0 in masked slots.

    Raises:
        ValueError: shapes differ, the mask is not bool or the coefficient is negative.
    """
    if not coef >= 0:
        raise ValueError(f"A negative coef would reward drift, it is {coef}.")
    _, log_ratio, advantages = moved(logprobs, old_logprobs, advantages, mask)
    return keep(-log_ratio.exp() * advantages + coef * (torch.expm1(log_ratio) - log_ratio), mask)


def selectively_penalised_surrogate(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, mask: Tensor, selected: Tensor, *, coef: float
) -> Tensor:
    """Policy gradient with ratios, and a penalty on how far the chosen tokens go (KL-Cov).

    L_t = −r_t A_t + coef · |log r_t| · [t is selected],   r_t = exp(log π(a_t) − log π_old(a_t)); no clip.
    Source: arXiv:2505.22617, §4.2 (KL-Cov), whose code takes |log r_t| for the divergence.

    Args:
        logprobs: [B, T] of the sampled tokens under the policy that is trained, in nats.
        old_logprobs: [B, T] under the policy before the update; a constant.
        advantages: [B, T], no unit; a constant.
        mask: [B, T] bool, True where the policy chose the token.
        selected: [B, T] bool, the tokens that are penalised, such as those of `selection.top_tokens`.
        coef: Weight of the penalty ≥ 0, per nat.

    Returns:
        [B, T] to minimise, 0 in masked slots.

    Raises:
        ValueError: shapes differ, a mask is not bool or the coefficient is negative.
    """
    if not coef >= 0:
        raise ValueError(f"A negative coef would reward drift, it is {coef}.")
    check_mask(selected, logprobs=logprobs)
    _, log_ratio, advantages = moved(logprobs, old_logprobs, advantages, mask)
    return keep(-log_ratio.exp() * advantages + keep(coef * log_ratio.abs(), selected), mask)

"""Losses per token or per pair, to minimise; `masking.aggregate` makes them one number."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from rlhf.algorithms.functional._shared import (
    check_dims,
    check_not_negative,
    check_same_shape,
    keep,
    masked,
    moved,
    to_float,
)


def clipped_surrogate(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
) -> Tensor:
    """The policy loss of PPO.

    L_t = −min(r_t A_t, clip(r_t, 1 − clip_low, 1 + clip_high) A_t),   r_t = exp(log π(a_t) − log π_old(a_t)).
    With `dual_clip` c, tokens of *negative* advantage use −max(min(…), c A_t): their loss is at most c |A_t|.
    The log-ratio is cut at 80 nats, beyond which the gradient is 0.
    Source: arXiv:1707.06347, eq. 7; clip_high ≠ clip_low: arXiv:2503.14476, eq. 10; dual clip:
    arXiv:1912.09729, eq. 5.

    Args:
        logprobs: [B, T] of the sampled tokens under the policy that is trained, in nats.
        old_logprobs: [B, T] under the policy before the update; a constant.
        advantages: [B, T], no unit; a constant.
        mask: [B, T] bool, True where the policy chose the token.
        clip_low: How far below 1 the ratio may go before its gradient stops.
        clip_high: How far above 1.
        dual_clip: Bound on the ratio of tokens with negative advantage, > 1; None for none.

    Returns:
        [B, T] to minimise, 0 in masked slots.

    Raises:
        ValueError: shapes differ, the mask is not bool, a clip is negative or `dual_clip` not above 1.
    """
    check_not_negative(clip_low=clip_low, clip_high=clip_high)
    if dual_clip is not None and not dual_clip > 1:
        raise ValueError(f"dual_clip must be above 1, it is {dual_clip}.")
    _, log_ratio, advantages = moved(logprobs, old_logprobs, advantages, mask)
    ratio = log_ratio.exp()
    objective = torch.minimum(ratio * advantages, ratio.clamp(1 - clip_low, 1 + clip_high) * advantages)
    if dual_clip is not None:
        bounded = torch.maximum(objective, dual_clip * advantages)
        objective = torch.where(advantages < 0, bounded, objective)
    return keep(-objective, mask)


def clipped_value(
    values: Tensor, old_values: Tensor, returns: Tensor, mask: Tensor, *, clip: float | None = 0.2
) -> Tensor:
    """The critic's loss of PPO.

    L_t = ½ max((V − R)², (V_old + clip(V − V_old, ±clip) − R)²): the *larger* of the two, so that leaving the range
    never pays; inside it this is half the squared error.
    Source: OpenAI's baselines, ppo2; arXiv:2005.12729 lists it as a code-level optimisation, but prints min for max.

    Args:
        values: [B, T] of the critic that is trained, in reward units.
        old_values: [B, T] before the update; a constant.
        returns: [B, T] targets; a constant.
        mask: [B, T] bool.
        clip: How far a value may move from the old one, in reward units; None for half the plain squared error.

    Returns:
        [B, T] to minimise, in squared reward units, 0 in masked slots.

    Raises:
        ValueError: shapes differ, the mask is not bool or the clip is negative.
    """
    check_not_negative(clip=clip)
    values, old_values, returns = masked(mask, values=values, old_values=old_values, returns=returns)
    error = (values - returns).square()
    if clip is not None:
        error = torch.maximum(error, (old_values + (values - old_values).clamp(-clip, clip) - returns).square())
    return 0.5 * error


def bradley_terry(
    chosen: Tensor, rejected: Tensor, *, margin: Tensor | None = None, label_smoothing: float = 0.0
) -> Tensor:
    """The reward model's loss on a preference.

    L = −(1 − ε) log σ(z) − ε log σ(−z),   z = s_chosen − s_rejected − margin.
    Equal scores cost log 2. ε is the share of preferences taken to be the wrong way round.
    Source: arXiv:2203.02155, eq. 1; margin: arXiv:2307.09288, eq. 2.

    Args:
        chosen: [B] scores of the preferred responses.
        rejected: [B] scores of the others.
        margin: [B] by how much the first should win, in units of the score; None for 0.
        label_smoothing: ε in [0, 0.5].

    Returns:
        [B] to minimise, in nats.

    Raises:
        ValueError: shapes differ or ε is out of range.
    """
    check_dims("B", chosen=chosen)
    check_same_shape(chosen=chosen, rejected=rejected)
    if margin is None:
        margin = torch.zeros_like(chosen)
    check_same_shape(chosen=chosen, margin=margin)
    chosen, rejected, margin = to_float(chosen, rejected, margin)
    return _logistic(chosen - rejected - margin, label_smoothing)


def dpo(
    policy_chosen: Tensor,
    policy_rejected: Tensor,
    ref_chosen: Tensor,
    ref_rejected: Tensor,
    *,
    beta: float,
    label_smoothing: float = 0.0,
) -> Tensor:
    """Direct preference optimisation.

    L = −(1 − ε) log σ(z) − ε log σ(−z),   z = β [(log π − log π_ref)(chosen) − (log π − log π_ref)(rejected)].
    A policy equal to its reference costs log 2.
    Source: arXiv:2305.18290, eq. 7; ε: E. Mitchell, "A note on DPO with noisy preferences" (conservative DPO).

    Args:
        policy_chosen: [B] log-probability of the whole preferred response under the policy, in nats.
        policy_rejected: [B] of the other response.
        ref_chosen: [B] of the preferred response under the reference; a constant.
        ref_rejected: [B] of the other.
        beta: Strength of the tie to the reference, > 0.
        label_smoothing: ε in [0, 0.5].

    Returns:
        [B] to minimise, in nats.

    Raises:
        ValueError: shapes differ, β is not positive or ε is out of range.
    """
    check_dims("B", policy_chosen=policy_chosen)
    check_same_shape(
        policy_chosen=policy_chosen, policy_rejected=policy_rejected, ref_chosen=ref_chosen, ref_rejected=ref_rejected
    )
    if not beta > 0:
        raise ValueError(f"beta must be positive, it is {beta}.")
    policy_chosen, policy_rejected, ref_chosen, ref_rejected = to_float(
        policy_chosen, policy_rejected, ref_chosen, ref_rejected
    )
    return _logistic(beta * ((policy_chosen - ref_chosen) - (policy_rejected - ref_rejected)), label_smoothing)


def _logistic(difference: Tensor, label_smoothing: float) -> Tensor:
    if not 0 <= label_smoothing <= 0.5:
        raise ValueError(f"label_smoothing must be in [0, 0.5], it is {label_smoothing}.")
    loss = -(1 - label_smoothing) * F.logsigmoid(difference)
    return loss - label_smoothing * F.logsigmoid(-difference) if label_smoothing else loss

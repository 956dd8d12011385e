"""Weights for tokens that were drawn by a sampler whose probabilities are not the trainer's."""

from __future__ import annotations

import torch
from torch import Tensor

from rlhf.algorithms.functional._shared import MAX_LOG_RATIO, keep, masked

LEVELS = ("token", "sequence")


def truncated_weights(
    old_logprobs: Tensor, rollout_logprobs: Tensor, mask: Tensor, *, cap: float, level: str = "token"
) -> Tensor:
    """Truncated importance weights.

    w_t = min(ρ_t, cap),   ρ_t = exp(log π_old(a_t) − log π_rollout(a_t)) of the token, or

    * "token": of the token itself: little variance, biased, as what came before it is not weighed;
    * "sequence": the product of ρ over the response, the same for all its tokens: unbiased but for the cap.

    Source: Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL training",
    https://fengyao.notion.site/off-policy-rl (token); Li et al. 2025, "When speed kills stability",
    https://richardli.xyz/rl-collapse (sequence).

    Args:
        old_logprobs: [B, T] of the sampled tokens by the trainer, before the update, in nats.
        rollout_logprobs: [B, T] by the sampler.
        mask: [B, T] bool, True where the policy chose the token.
        cap: Largest weight, > 0.
        level: "token" or "sequence".

    Returns:
        [B, T], no unit, 0 in masked slots; a constant.

    Raises:
        ValueError: shapes differ, the mask is not bool, the cap is not positive or the level unknown.
    """
    if not cap > 0:
        raise ValueError(f"cap must be positive, it is {cap}.")
    return keep(_ratios(old_logprobs, rollout_logprobs, mask, level).clamp(max=cap), mask)


def masked_weights(
    old_logprobs: Tensor, rollout_logprobs: Tensor, mask: Tensor, *, low: float, high: float, level: str = "token"
) -> Tensor:
    """Importance weights, and none for what the two disagree on too much.

    w_t = ρ_t where low ≤ ρ_t ≤ high, else 0, with ρ_t of the token or the whole response as in `truncated_weights`.
    Source: arXiv:2510.18855, the double-sided masking of IcePop ("token"); Li et al. 2025, "When speed kills
    stability", https://richardli.xyz/rl-collapse ("sequence").

    Args:
        old_logprobs: [B, T] of the sampled tokens by the trainer, before the update, in nats.
        rollout_logprobs: [B, T] by the sampler.
        mask: [B, T] bool, True where the policy chose the token.
        low: Smallest ratio that counts, ≥ 0.
        high: Largest.
        level: "token" or "sequence".

    Returns:
        [B, T], no unit, 0 in masked slots; a constant.

    Raises:
        ValueError: shapes differ, the mask is not bool, the bounds are out of order or the level unknown.
    """
    if not 0 <= low <= high:
        raise ValueError(f"Need 0 <= low <= high: {low=}, {high=}.")
    ratios = _ratios(old_logprobs, rollout_logprobs, mask, level)
    return keep(ratios, mask & (ratios >= low) & (ratios <= high))


def _ratios(old_logprobs: Tensor, rollout_logprobs: Tensor, mask: Tensor, level: str) -> Tensor:
    if level not in LEVELS:
        raise ValueError(f"No level is called {level!r}. Known: {', '.join(LEVELS)}.")
    old_logprobs, rollout_logprobs = masked(mask, old_logprobs=old_logprobs, rollout_logprobs=rollout_logprobs)
    log_ratio = (old_logprobs - rollout_logprobs).detach()
    if level == "sequence":
        log_ratio = log_ratio.sum(1, keepdim=True).expand(mask.shape)
    return torch.exp(log_ratio.clamp(max=MAX_LOG_RATIO))

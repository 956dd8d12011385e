"""Rewards per token from a score and a KL penalty; scores may be given per response or per token."""

from __future__ import annotations

import torch
from torch import Tensor

from rlhf.algorithms.functional import kl as _kl
from rlhf.algorithms.functional._shared import check_dims, check_mask, check_same_shape, keep, to_float
from rlhf.algorithms.functional.masking import last_index


def _check_scores(scores: Tensor, mask: Tensor) -> None:
    if scores.ndim == 1:
        check_same_shape(scores=scores, rows_of_mask=mask.any(dim=1))
    else:
        check_mask(mask, scores=scores)


def shape_rewards(
    scores: Tensor,
    old_logprobs: Tensor,
    ref_logprobs: Tensor,
    mask: Tensor,
    *,
    kl_coef: float,
    kl: str = "k1",
    score_clip: float | None = None,
    divergence: Tensor | None = None,
) -> Tensor:
    """Put the score on the last real token and charge every token for its divergence from the reference.

    r_t = clip(s, ±score_clip) · [t is the last True of the mask] − kl_coef · KL_t.
    Scores per token are added where they stand. The clip never touches the KL part. The penalty is a number: no
    gradient flows to the log-probabilities. With `kl_coef=0` they are not looked at.
    Source: arXiv:2203.02155, eq. 2 (its KL term, spread over the tokens); arXiv:2009.01325, §3.4.

    Args:
        scores: [B] score of each sequence or [B, T] of each token, in reward units.
        old_logprobs: [B, T] of the sampled tokens under the policy before the update, in nats.
        ref_logprobs: [B, T] under the reference.
        mask: [B, T] bool, True where the policy chose the token; may have holes.
        kl_coef: Reward units per nat, ≥ 0.
        kl: Estimator: "k1", "k2" or "k3".
        score_clip: Largest absolute score that counts (of each token, for scores per token); None for no limit.
        divergence: [B, T] KL_t that is known already, in the place of an estimate, in nats.

    Returns:
        [B, T] in reward units; 0 in masked slots, so a row without a real token is all 0.

    Raises:
        ValueError: shapes differ, the mask is not bool, the estimator is unknown, the coefficient negative or the
            clip not positive.
    """
    check_dims("B T", old_logprobs=old_logprobs)
    check_mask(mask, old_logprobs=old_logprobs, ref_logprobs=ref_logprobs)
    _check_scores(scores, mask)
    if not kl_coef >= 0:
        raise ValueError(f"A negative kl_coef would reward drift, it is {kl_coef}.")
    if score_clip is not None and not score_clip > 0:
        raise ValueError(f"score_clip must be positive, it is {score_clip}.")
    scores, old_logprobs, ref_logprobs = to_float(scores, old_logprobs, ref_logprobs)

    if scores.ndim == 1:
        position = torch.arange(mask.shape[1], device=mask.device)
        is_last = position[None, :] == last_index(mask)[:, None]
        rewards = keep(scores[:, None].expand(mask.shape), is_last)
    else:
        rewards = keep(scores, mask)
    if score_clip is not None:
        rewards = rewards.clamp(-score_clip, score_clip)
    if divergence is None:
        penalty = _kl.estimate(kl, old_logprobs.detach(), ref_logprobs.detach(), mask=mask)
    else:
        check_mask(mask, divergence=divergence)
        penalty = keep(divergence.detach().to(rewards.dtype), mask)
    return rewards if kl_coef == 0 else rewards - kl_coef * penalty


def per_response(scores: Tensor, mask: Tensor) -> Tensor:
    """Score of each response: scores per token are added up.

    Args:
        scores: [B], or [B, T] whose masked slots may hold anything.
        mask: [B, T] bool.

    Returns:
        [B].

    Raises:
        ValueError: shapes differ or the mask is not bool.
    """
    _check_scores(scores, mask)
    return scores if scores.ndim == 1 else keep(scores, mask).sum(1)


def add_at_end(scores: Tensor, amount: Tensor, mask: Tensor) -> Tensor:
    """Add an amount to each response's score; where scores are per token, to that of the last real token.

    The sum over a response grows by the amount in both cases, and `shape_rewards` puts it on the same token. A row
    without a real token stays as it is where scores are per token.

    Args:
        scores: [B] or [B, T].
        amount: [B], in units of the scores.
        mask: [B, T] bool.

    Returns:
        Shape of `scores`.

    Raises:
        ValueError: shapes differ or the mask is not bool.
    """
    _check_scores(scores, mask)
    check_same_shape(amount=amount, rows_of_mask=mask.any(dim=1))
    if scores.ndim == 1:
        return scores + amount
    position = torch.arange(mask.shape[1], device=mask.device)
    is_last = position[None, :] == last_index(mask)[:, None]
    return torch.where(is_last, scores + amount[:, None].to(scores.dtype), scores)

"""Which tokens of a batch make the policy surer of itself: those whose probability and advantage go together."""

from __future__ import annotations

import torch
from torch import Tensor

from rlhf.algorithms.functional._shared import check_mask, moments, to_float


def token_covariance(logprobs: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """Each token's part of the covariance of log-probability and advantage over all tokens.

    C_t = (log π(a_t) − mean of log π) (A_t − mean of A). Large where a likely token is rewarded: learning it takes
    entropy away.
    Source: arXiv:2505.22617, §4.2, the token-wise centred cross-product.

    Args:
        logprobs: [B, T] in nats.
        advantages: [B, T], no unit.
        mask: [B, T] bool; the means are over its True slots.

    Returns:
        [B, T] in nats, 0 in masked slots; a constant.

    Raises:
        ValueError: shapes differ or the mask is not bool.
    """
    check_mask(mask, logprobs=logprobs, advantages=advantages)
    logprobs, advantages = to_float(logprobs, advantages)
    # In double precision, so that the order of the rows does not decide which of two near tokens is larger.
    parts = [moments(x.detach().double(), mask).centred for x in (logprobs, advantages)]
    return (parts[0] * parts[1]).to(logprobs.dtype)


def top_tokens(covariance: Tensor, order: Tensor, mask: Tensor, *, fraction: float) -> Tensor:
    """The tokens of largest covariance.

    Of N tokens ⌊fraction · N⌋, and at least one where there is any.
    Source: arXiv:2505.22617, §4.2 (KL-Cov).

    Args:
        covariance: [B, T], such as `token_covariance`.
        order: [B, T] numbers that put tokens of equal covariance in an order of their own: smallest first.
        mask: [B, T] bool, the tokens to choose from.
        fraction: Share to choose, in (0, 1].

    Returns:
        [B, T] bool.

    Raises:
        ValueError: shapes differ, the mask is not bool or the fraction is out of range.
    """
    check_mask(mask, covariance=covariance, order=order)
    slots = mask.flatten().nonzero().squeeze(1)
    slots = slots[order.flatten()[slots].argsort(stable=True)]
    slots = slots[covariance.flatten()[slots].argsort(stable=True, descending=True)]
    return _marked(slots[: _share(mask, fraction)], mask)


def tokens_between(
    covariance: Tensor, order: Tensor, mask: Tensor, *, fraction: float, low: float, high: float
) -> Tensor:
    """Some of the tokens whose covariance lies between two bounds.

    Of N tokens ⌊fraction · N⌋, at least one, as far as so many have a covariance in (low, high): those that come first
    in a random order.
    Source: arXiv:2505.22617, §4.2 (Clip-Cov).

    Args:
        covariance: [B, T], such as `token_covariance`.
        order: [B, T] random numbers; the smallest are chosen.
        mask: [B, T] bool, the tokens to choose from.
        fraction: Share of all tokens to choose, in (0, 1].
        low: Bound below, in the units of the covariance, itself not allowed.
        high: Bound above, itself not allowed.

    Returns:
        [B, T] bool.

    Raises:
        ValueError: shapes differ, the mask is not bool or the fraction is out of range.
    """
    check_mask(mask, covariance=covariance, order=order)
    eligible = mask & (covariance > low) & (covariance < high)
    slots = eligible.flatten().nonzero().squeeze(1)
    slots = slots[order.flatten()[slots].argsort(stable=True)]
    return _marked(slots[: _share(mask, fraction)], mask)


def _share(mask: Tensor, fraction: float) -> int:
    if not 0 < fraction <= 1:
        raise ValueError(f"fraction must be in (0, 1], it is {fraction}.")
    return max(int(fraction * int(mask.sum())), 1)


def _marked(slots: Tensor, mask: Tensor) -> Tensor:
    marked = torch.zeros_like(mask).flatten()
    marked[slots] = True
    return marked.view(mask.shape)

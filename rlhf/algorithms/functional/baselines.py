"""Advantages of single tokens without a critic, and the λ of a response by its length."""

from __future__ import annotations

import torch
from torch import Tensor

from rlhf.algorithms.functional._shared import (
    bound_mean,
    check_dims,
    check_integer,
    check_mask,
    check_same_shape,
    keep,
    masked,
    to_float,
)
from rlhf.algorithms.functional.advantages import returns


def length_adaptive_lambda(mask: Tensor, *, alpha: float) -> Tensor:
    """λ of generalised advantage estimation that grows with the response.

    λ = 1 − 1 / (α l), l tokens: the λ^k of all k add up to α l, a fixed share of the response. Where α l < 1, λ = 0.
    Source: arXiv:2504.05118, §4.2 (length-adaptive GAE; α = 0.05 there).

    Args:
        mask: [B, T] bool, True where the policy chose the token.
        alpha: α > 0: the share of a response over which an error is spread.

    Returns:
        [B] in [0, 1), 0 for a row without a token.

    Raises:
        ValueError: the mask is not bool or not [B, T], or α is not positive.
    """
    check_mask(mask)
    check_dims("B T", mask=mask)
    if not alpha > 0:
        raise ValueError(f"alpha must be positive, it is {alpha}.")
    lengths = mask.sum(1).to(torch.float32)
    return (1 - 1 / (alpha * lengths).clamp(min=1.0)).clamp(min=0.0)


def greedy_baseline(rewards: Tensor, greedy: Tensor, mask: Tensor) -> Tensor:
    """The rewards to go against the score of the greedy response to the same prompt.

    A_t = Σ_{k ≥ t} r_k − s_greedy. The baseline knows nothing of the sampled response, so it adds no bias.
    Source: arXiv:2310.10505 (ReMax), there with the one reward of the whole response.

    Args:
        rewards: [B, T] reward of token t, in reward units.
        greedy: [B] score of the greedy response, in reward units.
        mask: [B, T] bool, True where the policy chose the token.

    Returns:
        [B, T] in reward units, 0 in masked slots.

    Raises:
        ValueError: shapes differ or the mask is not bool.
    """
    check_mask(mask, rewards=rewards)
    check_dims("B T", rewards=rewards)
    check_same_shape(greedy=greedy, rows_of_mask=mask.any(1))
    rewards, greedy = to_float(rewards, greedy)
    return keep(returns(rewards, mask, gamma=1.0) - greedy[:, None], mask)


def optimal_token_baseline(
    rewards: Tensor, logprobs: Tensor, collision: Tensor, mask: Tensor, groups: Tensor
) -> Tensor:
    """The rewards to go against the baseline of least variance for each position of a prompt's responses.

    A_it = G_it − B_t,   B_t = Σ_i W_it G_it / Σ_i W_it over the responses i of the prompt that have a token t,
    G_it = Σ_{k ≥ t} r_ik,   W_it = Σ_{k ≤ t} (1 − 2 π(a_ik) + Σ_v π(v)²).
    W is the squared norm of the gradient of log π(a_i1 … a_it) by the logits. Where no other response reaches (a single
    response, and the end of the longest) B_t is G_it itself, so that A is exactly 0, as it is where all G are equal.
    Where W is 0, no token there can be learned; B_t is then the plain mean.
    Source: arXiv:2602.07078; as in verl's `optimal_token_baseline`, with its `handle_zero_tail` off.

    Args:
        rewards: [B, T] reward of token t, in reward units.
        logprobs: [B, T] of the tokens under the policy before the update, in nats.
        collision: [B, T] Σ_v π(v)² of the distribution each token was drawn from, as `logprobs.collision` gives it.
        mask: [B, T] bool, True where the policy chose the token.
        groups: [B] int id of the prompt of each; any order, any ids.

    Returns:
        [B, T] in reward units, 0 in masked slots; a constant.

    Raises:
        ValueError: shapes differ, the mask is not bool or ids are not integers.
    """
    given = masked(mask, rewards=rewards, logprobs=logprobs, collision=collision)
    check_dims("B T", rewards=rewards)
    check_same_shape(groups=groups, rows_of_mask=mask.any(1))
    check_integer(groups=groups)
    rewards, logprobs, collision = (x.detach() for x in given)
    to_go = returns(rewards, mask, gamma=1.0)
    # Never negative, as Σ_v π(v)² ≥ π(a)²; but by rounding.
    energy = keep((1 - 2 * logprobs.exp() + collision).clamp(min=0.0), mask).cumsum(1)
    advantages = torch.zeros_like(to_go)
    for group in groups.unique():
        rows = (groups == group).nonzero().squeeze(1)
        advantages[rows] = _centred_by(to_go[rows], energy[rows], mask[rows])
    return advantages


def _centred_by(x: Tensor, weight: Tensor, mask: Tensor) -> Tensor:
    """[N, T] minus the weighted mean of each column over its real slots."""
    weight = keep(weight, mask)
    total = weight.sum(0)
    weight = torch.where(total > 0, weight, mask.to(x.dtype))
    infinity = torch.full_like(x, float("inf"))
    low, high = torch.where(mask, x, infinity).amin(0), torch.where(mask, x, -infinity).amax(0)
    mean = (weight * x).sum(0) / torch.where(total > 0, total, mask.sum(0).clamp(min=1).to(x.dtype))
    return keep(x - bound_mean(mean, low, high), mask)

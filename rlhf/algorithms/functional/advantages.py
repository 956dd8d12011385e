"""How much better a token or a response was than expected: with a critic, against a group, against the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from rlhf.algorithms.functional._shared import (
    bound_mean,
    check_dims,
    check_integer,
    check_mask,
    check_not_negative,
    check_same_shape,
    keep,
    moments,
    safe_sqrt,
    to_float,
)

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

SCALES = ("group", "batch", "none")


def gae(
    rewards: Tensor,
    values: Tensor,
    mask: Tensor,
    *,
    gamma: float,
    lam: float | Tensor,
    bootstrap: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation.

    δ_t = r_t + γ V_{t+1} − V_t,   A_t = δ_t + γ λ A_{t+1},   returns = A + V.
    λ = 1 gives Monte-Carlo returns minus values, λ = 0 the one-step TD error. "t + 1" is the next *real* token: masked
    slots within a row are stepped over, padding after it is not seen.
    Source: arXiv:1506.02438, eq. 16.

    Args:
        rewards: [B, T] reward of token t, in reward units.
        values: [B, T] value of the state before token t, in reward units.
        mask: [B, T] bool, True where the policy chose the token.
        gamma: Discount per token.
        lam: λ, one number or [B], one for each row.
        bootstrap: [B] value of the state after the last real token where a response was cut, 0 where it ended; None
            is 0 everywhere.

    Returns:
        advantages and returns, both [B, T] in reward units, 0 in masked slots.

    Raises:
        ValueError: shapes differ or the mask is not bool.
    """
    check_dims("B T", rewards=rewards)
    check_mask(mask, rewards=rewards, values=values)
    rows = mask.any(dim=1)
    if bootstrap is None:
        bootstrap = rewards.new_zeros(rewards.shape[0])
    check_same_shape(bootstrap=bootstrap, rows_of_mask=rows)
    rewards, values, bootstrap = to_float(rewards, values, bootstrap)
    if isinstance(lam, Tensor):
        check_same_shape(lam=lam, rows_of_mask=rows)
        lam = lam.to(rewards.dtype)
    rewards, values = keep(rewards, mask), keep(values, mask)

    next_value = bootstrap
    next_advantage = torch.zeros_like(next_value)
    columns: list[Tensor] = []
    for t in reversed(range(rewards.shape[1])):
        real = mask[:, t]
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        next_advantage = torch.where(real, delta + gamma * lam * next_advantage, next_advantage)
        next_value = torch.where(real, values[:, t], next_value)
        columns.append(next_advantage)
    advantages = keep(torch.stack(columns[::-1], dim=1), mask) if columns else torch.zeros_like(rewards)
    return advantages, keep(advantages + values, mask)


def returns(rewards: Tensor, mask: Tensor, *, gamma: float) -> Tensor:
    """Discounted rewards from each token on.

    G_t = r_t + γ G_{t+1}, where "t + 1" is the next real token, as in `gae`.
    Source: Sutton and Barto, Reinforcement Learning (2nd edition), eq. 3.9.

    Args:
        rewards: [B, T] reward of token t, in reward units.
        mask: [B, T] bool, True where the policy chose the token.
        gamma: Discount per token.

    Returns:
        [B, T] in reward units, 0 in masked slots.

    Raises:
        ValueError: shapes differ or the mask is not bool.
    """
    check_mask(mask, rewards=rewards)
    return gae(rewards, torch.zeros_like(rewards), mask, gamma=gamma, lam=1.0)[1]


def group_norm(
    scores: Tensor,
    groups: Tensor,
    *,
    scale: str = "group",
    eps: float = 1e-4,
    group: ProcessGroup | None = None,
) -> Tensor:
    """A response's score against the others drawn for the same prompt.

    A_i = (s_i − mean of its group) / (std + eps) with the sample standard deviation (n − 1)

    * "group": of its group (arXiv:2402.03300, §4.1.2);
    * "batch": of all scores, over all ranks of the process group;
    * "none": no division (arXiv:2503.20783, Dr. GRPO).

    Equal scores in a group, a single one included, give exactly 0. All responses of a prompt must be on one rank.

    Args:
        scores: [B] score of each response.
        groups: [B] int id of the prompt of each; any order, any ids.
        scale: "group", "batch" or "none".
        eps: Added to the standard deviation, in units of the score.
        group: Process group for the "batch" deviation, which then counts as a constant in the gradient; None for this
            tensor alone.

    Returns:
        [B], no unit (in units of the score for "none").

    Raises:
        ValueError: shapes differ, ids are not integers, the scale is unknown or `eps` is negative.
    """
    if scale not in SCALES:
        raise ValueError(f"No scale is called {scale!r}. Known: {', '.join(SCALES)}.")
    check_not_negative(eps=eps)
    centred, same_group = _centre(scores, groups)
    if scale == "none":
        return centred
    if scale == "group":
        variance = same_group.total(centred.square()) / (same_group.size - 1).clamp(min=1)
    else:
        (scores,) = to_float(scores)
        batch = moments(scores, torch.ones_like(scores, dtype=torch.bool), group)
        variance = batch.square_sum / (batch.number - 1).clamp(min=1)
    divisor = safe_sqrt(variance) + eps
    return centred / torch.where(divisor == 0, torch.ones_like(divisor), divisor)


def leave_one_out(scores: Tensor, groups: Tensor) -> Tensor:
    """A response's score against the mean of the *other* responses to the same prompt.

    A_i = s_i − Σ_{j ≠ i} s_j / (n − 1) = n / (n − 1) · (s_i − mean of its group).
    Equal scores in a group give exactly 0. A response alone in its group has no baseline and gets 0; count those
    where the batch is made, for they teach nothing.
    Source: arXiv:2402.14740, the RLOO estimator.

    Args:
        scores: [B] score of each response.
        groups: [B] int id of the prompt of each; any order, any ids.

    Returns:
        [B] in units of the score.

    Raises:
        ValueError: shapes differ or ids are not integers.
    """
    centred, same_group = _centre(scores, groups)
    return centred * (same_group.size / (same_group.size - 1).clamp(min=1))


class _SameGroup(NamedTuple):
    """Who is in a group with whom."""

    member: Tensor  # [G, B] bool
    row: Tensor  # [B] row of `member` that each response is in
    size: Tensor  # [B] float, of each one's group

    def total(self, x: Tensor) -> Tensor:
        """[B] -> [B]: each slot gets the sum over its group; a NaN stays in its own group."""
        return keep(x[None, :].expand(self.member.shape), self.member).sum(dim=1)[self.row]


def _centre(scores: Tensor, groups: Tensor) -> tuple[Tensor, _SameGroup]:
    """[B] scores minus the mean of each one's group."""
    check_dims("B", scores=scores)
    check_same_shape(scores=scores, groups=groups)
    check_integer(groups=groups)
    (scores,) = to_float(scores)
    ids, row = torch.unique(groups, return_inverse=True)
    # A [G, B] table rather than a scatter: its sums do not depend on the order in which a GPU's threads arrive.
    member = ids[:, None] == groups[None, :]
    same_group = _SameGroup(member, row, member.sum(dim=1)[row].to(scores.dtype))
    if scores.numel() == 0:
        return scores.clone(), same_group
    infinity = torch.full_like(scores, float("inf"))
    low = torch.where(member, scores.detach(), infinity).amin(dim=1)[row]
    high = torch.where(member, scores.detach(), -infinity).amax(dim=1)[row]
    return scores - bound_mean(same_group.total(scores) / same_group.size, low, high), same_group

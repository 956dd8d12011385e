"""Which responses of a group stand out: tensors in, tensors out."""

from __future__ import annotations

import torch
from torch import Tensor

from rlhf.algorithms.functional._shared import check_dims, check_integer, check_same_shape


def _members(scores: Tensor, groups: Tensor) -> tuple[Tensor, Tensor]:
    """[G, B] who is in which group, and [B] the row of each."""
    check_dims("B", scores=scores)
    check_same_shape(scores=scores, groups=groups)
    check_integer(groups=groups)
    ids, row = torch.unique(groups, return_inverse=True)
    return ids[:, None] == groups[None, :], row


def spread_of_group(scores: Tensor, groups: Tensor) -> Tensor:
    """Largest minus smallest score of each one's group.

    Args:
        scores: [B].
        groups: [B] int id of the prompt of each; any order, any ids.

    Returns:
        [B] in units of the score, exactly 0 where all of a group are equal.

    Raises:
        ValueError: shapes differ or ids are not integers.
    """
    member, row = _members(scores, groups)
    if not len(scores):
        return scores.clone()
    infinity = torch.full_like(scores, float("inf"))
    high = torch.where(member, scores, -infinity).amax(1)
    low = torch.where(member, scores, infinity).amin(1)
    return (high - low)[row]


def best_of_group(scores: Tensor, groups: Tensor, *, keep: int) -> Tensor:
    """The responses of highest score in each group; of equal ones those that come first.

    Args:
        scores: [B].
        groups: [B] int id of the prompt of each; any order, any ids.
        keep: How many of each group; all of a smaller one.

    Returns:
        [B] bool.

    Raises:
        ValueError: shapes differ, ids are not integers or `keep` is not positive.
    """
    if keep < 1:
        raise ValueError(f"keep must be at least 1, it is {keep}.")
    member, row = _members(scores, groups)
    order = torch.argsort(scores, descending=True, stable=True)
    place = torch.empty_like(order)
    place[order] = torch.arange(len(scores), device=scores.device)
    better = member[row] & (place[None, :] < place[:, None])  # [B, B]: who of its group stands before each
    return better.sum(1) < keep

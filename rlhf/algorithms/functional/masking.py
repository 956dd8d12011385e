"""Means, whitening and sums over the tokens that count, and the masks that say which do."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rlhf.algorithms.functional._shared import (
    check_dims,
    check_integer,
    check_mask,
    check_not_negative,
    keep,
    masked,
    moments,
    safe_sqrt,
    to_float,
)

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

AGGREGATION_MODES = ("token", "sequence", "constant")


def masked_mean(x: Tensor, mask: Tensor, *, dim: int | None = None) -> Tensor:
    """Mean over the True slots of a mask.

    mean = Σ m x / Σ m. Where nothing is True the mean is 0, with gradient 0: an empty row adds nothing to a sum.

    Args:
        x: Any shape; masked slots may hold anything.
        mask: Same shape, bool.
        dim: Dimension to reduce; None reduces all to a scalar.

    Returns:
        A scalar, or `x` without dimension `dim`; in the units of `x`.

    Raises:
        ValueError: shapes differ or the mask is not bool.
    """
    (x,) = masked(mask, x=x)
    if dim is None:
        return x.sum() / mask.sum().clamp(min=1)
    return x.sum(dim) / mask.sum(dim).clamp(min=1)


def masked_whiten(
    x: Tensor, mask: Tensor, *, shift_mean: bool = True, eps: float = 1e-8, group: ProcessGroup | None = None
) -> Tensor:
    """Give the True slots mean 0 and variance 1.

    y = (x − mean) / √(var + eps), with the population variance Σ m (x − mean)² / Σ m; `shift_mean=False` adds the
    mean back, so that only the scale changes. Equal values, a single one included, give exactly 0 (their own mean
    with `shift_mean=False`).
    Source: arXiv:2403.17031, the details on whitening rewards and advantages.

    Args:
        x: Any shape, e.g. [B, T] advantages; masked slots may hold anything.
        mask: Same shape, bool.
        shift_mean: Whether the result has mean 0; otherwise it keeps the mean of `x`.
        eps: Added to the variance, in squared units of `x`.
        group: Process group over whose ranks mean and variance are taken; None takes them from this tensor alone.
            Each rank of it must call. The shared statistics then count as constants in the gradient.

    Returns:
        Shape of `x`, no unit (with `shift_mean=False` the mean is still in units of `x`), 0 in masked slots.

    Raises:
        ValueError: shapes differ, the mask is not bool or `eps` is negative.
    """
    check_mask(mask, x=x)
    check_not_negative(eps=eps)
    (x,) = to_float(x)
    centred, mean, square_sum, number = moments(x, mask, group)
    scale = safe_sqrt(square_sum / number.clamp(min=1) + eps)
    whitened = centred / torch.where(scale == 0, torch.ones_like(scale), scale)
    if not shift_mean:
        whitened = whitened + mean
    return keep(whitened, mask)


def aggregate(loss: Tensor, mask: Tensor, *, mode: str, denominator: float | Tensor) -> Tensor:
    """Sum a loss over what counts and divide by a denominator that the caller gives.

    The denominator belongs to the whole optimiser step, all ranks and all micro-batches: then the sum of this
    function over the pieces of a batch does not depend on how the batch was cut.

    * "token": Σ loss / denominator, which is the number of tokens of the step (arXiv:2503.14476, eq. 12);
    * "sequence": Σ of each row's mean over its tokens / denominator, which is the number of rows of the step
      (arXiv:2402.03300, eq. 3); a row without tokens adds 0;
    * "constant": Σ loss / denominator, which is a fixed number such as rows × longest allowed response
      (arXiv:2503.20783, Dr. GRPO).

    Args:
        loss: [B, T] loss per token (any shape for "token" and "constant"); masked slots may hold anything.
        mask: Same shape, bool.
        mode: "token", "sequence" or "constant".
        denominator: Positive number or 0-d tensor. A tensor's value is not looked at, which would make a GPU wait.

    Returns:
        A scalar to minimise.

    Raises:
        ValueError: shapes differ, the mask is not bool, the mode is unknown or the denominator impossible.
    """
    check_mask(mask, loss=loss)
    if mode not in AGGREGATION_MODES:
        raise ValueError(f"No aggregation mode is called {mode!r}. Known: {', '.join(AGGREGATION_MODES)}.")
    if isinstance(denominator, Tensor):
        check_dims("", denominator=denominator)
    elif not (denominator > 0 and math.isfinite(denominator)):
        raise ValueError(f"denominator must be positive and finite, it is {denominator}.")
    (loss,) = to_float(loss)
    if mode == "sequence":
        check_dims("B T", loss=loss)
        return masked_mean(loss, mask, dim=-1).sum() / denominator
    return keep(loss, mask).sum() / denominator


def last_index(mask: Tensor) -> Tensor:
    """Index of the last True of each row; −1 where there is none.

    Args:
        mask: [B, T] bool, holes allowed.

    Returns:
        [B] int64.

    Raises:
        ValueError: the mask is not bool or not [B, T].
    """
    check_mask(mask)
    check_dims("B T", mask=mask)
    position = torch.arange(1, mask.shape[1] + 1, device=mask.device)
    marked = torch.where(mask, position, torch.zeros_like(position))
    return torch.cat([marked, marked.new_zeros(mask.shape[0], 1)], dim=1).amax(dim=1) - 1


def response_mask(tokens: Tensor, stop_ids: Iterable[int], *, pad_id: int | None = None) -> tuple[Tensor, Tensor]:
    """Which slots of sampled responses the policy chose: up to and with the first stop token.

    A row without a stop token is real to its end. What fills it up can then only be told by its id, so with `pad_id`
    the *trailing* run of that id is taken off such rows, and only there: in the middle the id may be a legitimate
    token. Where the padding id is itself a stop id, nothing is taken off and the first pad counts as the stop
    token; a sampler that knows its lengths should then mark them itself.

    Args:
        tokens: [B, T] int ids of responses, right-padded.
        stop_ids: Ids that end a response, all of them: a model may have several.
        pad_id: Id that pads rows; None takes nothing off.

    Returns:
        mask [B, T] bool, True = chosen by the policy, the stop token included; ended [B] bool, False = no stop token.

    Raises:
        ValueError: `tokens` is not [B, T] or not integer.
    """
    check_dims("B T", tokens=tokens)
    check_integer(tokens=tokens)
    stops = sorted(set(stop_ids))
    is_stop = torch.isin(tokens, torch.tensor(stops, dtype=tokens.dtype, device=tokens.device))
    ended = is_stop.any(dim=1)
    mask = is_stop.long().cumsum(dim=1) - is_stop.long() == 0  # no stop token before this slot
    if pad_id is not None and pad_id not in stops:
        last_real = last_index(tokens != pad_id)
        position = torch.arange(tokens.shape[1], device=tokens.device)
        mask = mask & (position[None, :] <= last_real[:, None])
    return mask, ended

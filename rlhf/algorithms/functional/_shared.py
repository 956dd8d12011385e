"""What the modules of this package share: argument checks, precision, masking, statistics over ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

MAX_LOG_RATIO = 80.0  # exp of it is finite in fp32: an inf ratio would make the gradient of a clipped token NaN


def check_same_shape(**tensors: Tensor) -> None:
    """Refuse tensors whose shapes differ: broadcasting hides more mistakes than it saves lines."""
    if len({tuple(t.shape) for t in tensors.values()}) > 1:
        shapes = ", ".join(f"{name} {list(t.shape)}" for name, t in tensors.items())
        raise ValueError(f"These must have the same shape: {shapes}.")


def check_dims(letters: str, **tensors: Tensor) -> None:
    """Refuse tensors that do not have one dimension per letter of `letters`, e.g. "B T"."""
    for name, tensor in tensors.items():
        if tensor.ndim != len(letters.split()):
            raise ValueError(f"{name} must be [{', '.join(letters.split())}], it is {list(tensor.shape)}.")


def check_mask(mask: Tensor, **tensors: Tensor) -> None:
    """Refuse a mask that is not bool or not of the shape of what it masks."""
    if mask.dtype != torch.bool:
        raise ValueError(f"mask must be bool, it is {mask.dtype} (shape {list(mask.shape)}).")
    check_same_shape(**tensors, mask=mask)


def check_integer(**tensors: Tensor) -> None:
    """Refuse ids that are not integers."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
            raise ValueError(f"{name} must hold integer ids, it is {tensor.dtype} (shape {list(tensor.shape)}).")


def check_not_negative(**numbers: float | None) -> None:
    """Refuse settings below 0, and NaN; None is no bound."""
    for name, number in numbers.items():
        if number is not None and not number >= 0:
            raise ValueError(f"{name} must not be negative, it is {number}.")


def to_float(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Bring all to one precision: float64 if one of them is float64, else float32."""
    dtype = torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32
    return tuple(t.to(dtype) for t in tensors)


def keep(x: Tensor, mask: Tensor | None) -> Tensor:
    """Replace masked slots by 0: before a non-linear operation this also keeps NaN out of its gradient."""
    return x if mask is None else torch.where(mask, x, torch.zeros((), dtype=x.dtype, device=x.device))


def masked(mask: Tensor, **tensors: Tensor) -> tuple[Tensor, ...]:
    """Refuse what does not fit the mask, and bring the rest to one precision, with 0 in masked slots."""
    check_mask(mask, **tensors)
    return tuple(keep(x, mask) for x in to_float(*tensors.values()))


def moved(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities, log-ratio to the old ones (at most `MAX_LOG_RATIO`) and advantages, 0 in masked slots."""
    logprobs, old_logprobs, advantages = masked(
        mask, logprobs=logprobs, old_logprobs=old_logprobs, advantages=advantages
    )
    return logprobs, (logprobs - old_logprobs).clamp(max=MAX_LOG_RATIO), advantages


def bound_mean(mean: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Put a mean that rounding pushed out of [low, high] back in; its gradient stays the mean's.

    So the mean of equal numbers is that number, and what is centred by it is exactly 0.
    """
    low, high = low.detach(), high.detach()
    return mean + (torch.maximum(torch.minimum(mean, high), low) - mean).detach()


class Moments(NamedTuple):
    """Masked statistics: `centred` has the shape of the data and 0 in masked slots, the rest are scalars."""

    centred: Tensor
    mean: Tensor
    square_sum: Tensor
    number: Tensor


def moments(x: Tensor, mask: Tensor, group: ProcessGroup | None = None) -> Moments:
    """Mean, then deviations from it (two-pass); over all ranks where a process group is given.

    Without a group everything is differentiable; with one the reduced numbers are constants. A rank whose mask is
    empty takes part. Without any valid slot, `mean` means nothing and `centred` and `square_sum` are 0.
    """
    x = keep(x, mask)
    infinity = torch.full((1,), float("inf"), dtype=x.dtype, device=x.device)
    edges = torch.stack(
        [
            torch.cat([torch.where(mask, x.detach(), infinity).flatten(), infinity]).amin(),
            torch.cat([torch.where(mask, -x.detach(), infinity).flatten(), infinity]).amin(),
        ]
    )
    sums = torch.stack([x.sum(), mask.sum().to(x.dtype)])
    if group is not None:
        dist.all_reduce(edges, op=dist.ReduceOp.MIN, group=group)
        sums = _all_sum(sums, group)
    total, number = sums.unbind()
    mean = bound_mean(total / number.clamp(min=1), edges[0], -edges[1])
    centred = keep(x - mean, mask)
    square_sum = centred.square().sum()
    if group is not None:
        square_sum = _all_sum(square_sum, group)
    return Moments(centred, mean, square_sum, number)


def _all_sum(x: Tensor, group: ProcessGroup) -> Tensor:
    x = x.detach().clone()
    dist.all_reduce(x, op=dist.ReduceOp.SUM, group=group)
    return x


def safe_sqrt(x: Tensor) -> Tensor:
    """Square root with gradient 0, not inf, at 0."""
    positive = x != 0
    return keep(torch.where(positive, x, torch.ones_like(x)).sqrt(), positive)

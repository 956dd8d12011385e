"""Gradient checkpointing: of a block only the input is kept, and the backward pass runs it again. Memory for time."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from rlhf.errors import UserError


def blocks(model: nn.Module) -> list[nn.Module]:
    """The blocks of a Hugging Face model that can be run again.

    Raises:
        UserError: it has none, or says that it cannot.
    """
    from transformers import PreTrainedModel
    from transformers.modeling_layers import GradientCheckpointingLayer

    unable = [type(m).__name__ for m in model.modules() if getattr(m, "supports_gradient_checkpointing", True) is False]
    found: list[nn.Module] = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if unable or not found:
        inner = [type(module).__name__ for module in model.modules() if isinstance(module, PreTrainedModel)]
        raise UserError(
            f"gradient_checkpointing: {[*unable, *inner, type(model).__name__][0]} has no blocks that can be run again "
            "in the backward pass; set it to false"
        )
    return found


@contextmanager
def recomputed(found: Sequence[nn.Module]) -> Iterator[None]:
    """Blocks called inside the context are run again in the backward pass, with the same random numbers.

    The library's own switch works in training mode only, and so not where dropout is off, as in updates of PPO. To set
    that mode for blocks alone will not do: some families read it there for their dropout.

    Args:
        found: From :func:`blocks`; none, and nothing changes.
    """
    own = [vars(block).get("forward") for block in found]
    for block in found:
        block.forward = functools.partial(_again, block.forward)
    try:
        yield
    finally:
        for block, forward in zip(found, own, strict=True):
            if forward is None:
                del block.forward
            else:
                block.forward = forward


def _again(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A block's forward pass; without a gradient there is no backward pass to run it again in."""
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    return checkpoint(forward, *args, use_reentrant=False, **kwargs)

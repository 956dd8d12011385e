"""Matrices laid out for products with few rows, as oneDNN wants them: the usual layout is read at half the speed."""

from __future__ import annotations

import torch
from torch import Tensor

ROWS = 16
"""Rows of the products that the layout is chosen for; it serves any number."""


def pack(weight: Tensor) -> Tensor | None:
    """A packed copy of a matrix [outputs, inputs]; None where this processor or device has no use for one."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return None
    try:
        return torch.ops.mkldnn._reorder_linear_weight(weight, ROWS)
    except RuntimeError:  # bf16 needs instructions that not every processor has
        return None


def packed_linear(
    x: Tensor, packed: Tensor, bias: Tensor | None, *, activation: str = "none", plus: Tensor | None = None
) -> Tensor:
    """X · weightᵀ + bias of the weight that was packed, and what is done to it in the same pass over the memory.

    Args:
        x: [N, inputs].
        packed: By :func:`pack`.
        bias: [outputs].
        activation: "none" or "relu" of the sum; not together with ``plus``.
        plus: [N, outputs], added to it.
    """
    if plus is not None:
        return torch.ops.mkldnn._linear_pointwise.binary(x, plus, packed, bias, "add")
    return torch.ops.mkldnn._linear_pointwise(x, packed, bias, activation, [], "")

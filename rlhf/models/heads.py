"""Value heads: a scalar read from hidden states, computed in fp32 whatever the trunk's precision."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rlhf.errors import UserError
from rlhf.interfaces import ValueHead

Activation = Literal["relu", "gelu", "silu", "tanh"]
ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "gelu": F.gelu,
    "silu": F.silu,
    "tanh": torch.tanh,
}


@dataclass(frozen=True, kw_only=True)
class Linear(ValueHead):
    """One linear layer.

    Weights are drawn from N(0, 1 / (width + 1)) and the bias is 0, as in arXiv:2009.01325, appendix B.1, so that a
    new head answers numbers of about unit size on normalised hidden states.

    Args:
        init: "normal" draws the weights, "zero" starts from the constant 0: a new critic that expects nothing.
        init_std: Standard deviation of the weights; null is 1 / sqrt(width + 1).
        bias: Whether a constant is learned too.
    """

    init: Literal["normal", "zero"] = "normal"
    init_std: float | None = None
    bias: bool = True

    def __post_init__(self) -> None:
        if self.init_std is not None and not 0 < self.init_std < math.inf:
            raise UserError(
                f"init_std: {self.init_std} is not positive and finite; for a head that starts at 0 say init: zero"
            )
        if self.init_std is not None and self.init == "zero":
            raise UserError(f"init_std: {self.init_std} has no effect with init: zero; leave one of the two out")

    def build(self, width: int) -> nn.Module:
        std = 0.0 if self.init == "zero" else self.init_std
        return Scalar([_linear(width, 1, bias=self.bias, std=std)], "relu")


@dataclass(frozen=True, kw_only=True)
class MLP(ValueHead):
    """Hidden layers with a nonlinearity, then one linear layer.

    The last layer starts as `Linear` does, hidden layers are drawn from N(0, 1 / (inputs + 1)) too.

    Args:
        hidden: Width of the hidden layers; null is the trunk's width.
        layers: Number of hidden layers.
        activation: Nonlinearity after each hidden layer.
    """

    hidden: int | None = None
    layers: int = 1
    activation: Activation = "gelu"

    def __post_init__(self) -> None:
        if self.hidden is not None and self.hidden < 1:
            raise UserError(f"hidden: {self.hidden}; give 1 or more, or null for the trunk's width")
        if self.layers < 1:
            raise UserError(f"layers: {self.layers}; give 1 or more, or use the head Linear")

    def build(self, width: int) -> nn.Module:
        widths = [width] + [self.hidden or width] * self.layers + [1]
        return Scalar([_linear(a, b) for a, b in pairwise(widths)], self.activation)


class Fp32Linear(nn.Linear):
    """A linear layer that multiplies in its input's precision, even where an engine keeps the weights in bf16."""

    def forward(self, input: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.to(input.dtype)
        return F.linear(input, self.weight.to(input.dtype), bias)


class Scalar(nn.Module):
    """[..., width] hidden states of any dtype -> [...] fp32 (float64 from float64)."""

    def __init__(self, layers: list[Fp32Linear], activation: Activation) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.activation: Activation = activation

    def forward(self, hidden: Tensor) -> Tensor:
        with torch.autocast(hidden.device.type, enabled=False):
            hidden = hidden if hidden.dtype == torch.float64 else hidden.float()
            for number, layer in enumerate(self.layers):
                hidden = layer(ACTIVATIONS[self.activation](hidden) if number else hidden)
            return hidden.squeeze(-1)


def _linear(inputs: int, outputs: int, *, bias: bool = True, std: float | None = None) -> Fp32Linear:
    layer = Fp32Linear(inputs, outputs, bias=bias, dtype=torch.float32)
    nn.init.normal_(layer.weight, std=(inputs + 1) ** -0.5 if std is None else std)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer

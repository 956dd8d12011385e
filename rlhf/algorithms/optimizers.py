"""Optimisers: torch's, with the usual parameter groups."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn

from rlhf.errors import require
from rlhf.interfaces import Optimizer


@dataclass(frozen=True, kw_only=True)
class AdamW(Optimizer):
    """Adam with decoupled weight decay; biases and norms (one-dimensional weights) are not decayed.

    Source: arXiv:1711.05101.

    Args:
        lr: Peak learning rate.
        beta1: Decay of the gradient's mean.
        beta2: Decay of the squared gradient's mean.
        eps: Added to the denominator.
        weight_decay: Decay per step, times the learning rate.
    """

    lr: float = 1e-5
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        require(at_least=0, lr=self.lr, weight_decay=self.weight_decay)
        require(at_least=0, below=1, beta1=self.beta1, beta2=self.beta2)
        require(above=0, eps=self.eps)

    def build(self, parameters: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
        trained = [parameter for _, parameter in parameters]
        groups = [
            {"params": [p for p in trained if p.ndim > 1], "weight_decay": self.weight_decay},
            {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0},
        ]
        groups = [group for group in groups if group["params"]]
        return torch.optim.AdamW(groups, lr=self.lr, betas=(self.beta1, self.beta2), eps=self.eps)


@dataclass(frozen=True, kw_only=True)
class SGD(Optimizer):
    """Stochastic gradient descent.

    Args:
        lr: Peak learning rate.
        momentum: Decay of the accumulated gradient.
        weight_decay: L2 penalty.
    """

    lr: float = 1e-2
    momentum: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        require(at_least=0, lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)

    def build(self, parameters: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
        trained = [parameter for _, parameter in parameters]
        return torch.optim.SGD(trained, lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)

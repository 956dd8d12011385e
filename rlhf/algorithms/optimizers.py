"""Optimisers: torch's, with the usual parameter groups and those that the settings name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from rlhf.errors import UserError, require
from rlhf.interfaces import Optimizer


@dataclass(frozen=True, kw_only=True)
class ParameterGroup:
    """What is different for some of the weights.

    Args:
        lr: Their peak learning rate; null for the optimiser's.
        weight_decay: Of all of them, one-dimensional ones too; null for what the optimiser gives them.
    """

    lr: float | None = None
    weight_decay: float | None = None

    def __post_init__(self) -> None:
        require(at_least=0, lr=self.lr, weight_decay=self.weight_decay)


def _check_patterns(groups: Mapping[str, ParameterGroup]) -> None:
    for pattern in groups:
        try:
            re.compile(pattern)
        except re.error as error:
            raise UserError(f"groups: {pattern!r} is no regular expression ({error})") from None


def _grouped(
    parameters: Iterable[tuple[str, nn.Parameter]], groups: Mapping[str, ParameterGroup], usual: Mapping[bool, float]
) -> list[dict[str, Any]]:
    """The parameter groups of a torch optimiser: first the weights of no named group.

    Args:
        parameters: With their names.
        groups: By regular expression; a weight is in the first whose expression is found in its name.
        usual: Weight decay of weights of several dimensions (True) and of one (False).

    Raises:
        UserError: no weight is in one of the groups.
    """
    named = list(parameters)
    members: dict[str | None, list[nn.Parameter]] = {None: [], **{pattern: [] for pattern in groups}}
    for name, parameter in named:
        members[next((pattern for pattern in groups if re.search(pattern, name)), None)].append(parameter)
    found = []
    for pattern, weights in members.items():
        if pattern is not None and not weights:
            raise UserError(
                f"groups: {pattern!r} is found in no weight's name, or only in names that an earlier group has taken; "
                f"weights are called like {named[0][0]}"
            )
        group = ParameterGroup() if pattern is None else groups[pattern]
        rate = {} if group.lr is None else {"lr": group.lr}
        for several in (True, False):
            decay = usual[several] if group.weight_decay is None else group.weight_decay
            if part := [weight for weight in weights if (weight.ndim > 1) is several]:
                found.append({"params": part, "weight_decay": decay, **rate})
    return found


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
        groups: What is different for weights in whose names a regular expression is found, such as
            ``{lora_B: {lr: 1.0e-3}}``; the first that is found counts. The schedule moves every rate alike.
    """

    lr: float = 1e-5
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.0
    groups: dict[str, ParameterGroup] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require(at_least=0, lr=self.lr, weight_decay=self.weight_decay)
        require(at_least=0, below=1, beta1=self.beta1, beta2=self.beta2)
        require(above=0, eps=self.eps)
        _check_patterns(self.groups)

    def build(self, parameters: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
        groups = _grouped(parameters, self.groups, {True: self.weight_decay, False: 0.0})
        return torch.optim.AdamW(groups, lr=self.lr, betas=(self.beta1, self.beta2), eps=self.eps)


@dataclass(frozen=True, kw_only=True)
class SGD(Optimizer):
    """Stochastic gradient descent.

    Args:
        lr: Peak learning rate.
        momentum: Decay of the accumulated gradient.
        weight_decay: L2 penalty.
        groups: What is different for weights in whose names a regular expression is found, such as
            ``{lora_B: {lr: 1.0e-3}}``; the first that is found counts. The schedule moves every rate alike.
    """

    lr: float = 1e-2
    momentum: float = 0.0
    weight_decay: float = 0.0
    groups: dict[str, ParameterGroup] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require(at_least=0, lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)
        _check_patterns(self.groups)

    def build(self, parameters: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
        groups = _grouped(parameters, self.groups, dict.fromkeys((True, False), self.weight_decay))
        return torch.optim.SGD(groups, lr=self.lr, momentum=self.momentum)

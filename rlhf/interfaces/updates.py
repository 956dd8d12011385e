"""The parts of an update: what a token was worth, what is minimised, and how gradients become weight changes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from rlhf.types import Advantages, Aggregation, Batch, Labelled, LossTerm, Outputs, Scored, Stateful


class AdvantageEstimator(ABC):
    """How much better a token, or a response, was than expected."""

    needs_critic: ClassVar[bool] = False
    """Whether ``values`` must be there."""
    needs_groups: ClassVar[bool] = False
    """Whether more than one response per prompt must be there."""
    needs_greedy: ClassVar[bool] = False
    """Whether each prompt's greedy response must be sampled and scored too."""
    needs_collision: ClassVar[bool] = False
    """Whether ``collision`` must be there."""

    @abstractmethod
    def __call__(self, scored: Scored) -> Advantages:
        """Advantages [B, T], and the critic's targets where there is one."""


class PolicyLoss(ABC):
    """The surrogate that raises good tokens' probability."""

    aggregation: Aggregation
    """How the per-token loss is reduced; a field of the subclasses. What "constant" divides by is the algorithm's."""

    def prepare(self, batch: Batch) -> Batch:
        """Called with the whole batch of an optimiser step before it is cut: the place for what depends on all of it.

        What is found goes into ``selected``, which is cut with the rest.
        """
        return batch

    @abstractmethod
    def __call__(self, logprobs: Tensor, batch: Batch) -> Tensor:
        """Loss per token [B, T], to be minimised, 0 on masked slots."""


class SamplerCorrection(ABC):
    """What to do where the sampler's probabilities are not the trainer's: a weight of each token's policy loss."""

    @abstractmethod
    def __call__(self, batch: Batch) -> Tensor:
        """Weights [B, T] without gradient, from ``old_logprobs`` and ``rollout_logprobs``; 0 on masked slots."""


class RolloutFilter(ABC):
    """Which of the sampled responses an iteration learns from."""

    def attempts(self) -> int:
        """How often prompts are drawn at most until the kept responses fill an iteration."""
        return 1

    def kept(self, responses: int, group: int) -> int:
        """How many of so many responses, ``group`` to a prompt, an iteration learns from."""
        return responses

    def check(self, group: int) -> str | None:
        """Why it cannot be used with ``group`` responses to a prompt; None where it can."""
        return None

    @abstractmethod
    def __call__(self, scores: Tensor, groups: Tensor) -> Tensor:
        """[B] bool, True for the responses to keep, from their scores [B] and groups [B]."""


class LiveController(Stateful, ABC):
    """A coefficient that may follow what is observed."""

    coef: float

    @abstractmethod
    def update(self, observed: float, samples: int) -> None:
        """Moves the coefficient after an iteration that measured KL ``observed`` (nats per sequence) on ``samples``."""


class KLController(ABC):
    """The weight of the KL penalty over time."""

    def check(self, *, responses: int) -> str | None:
        """Why it cannot follow iterations of so many responses; None where it can."""
        return None

    @abstractmethod
    def build(self, *, iterations: int) -> LiveController:
        """The coefficient before the first of so many iterations."""


class LiveAverage(Stateful, ABC):
    """An average of a model's weights, sharded as the engine's fp32 master weights are."""

    shards: list[Tensor]

    @abstractmethod
    def update(self, master: Sequence[Tensor]) -> None:
        """Takes in the weights after one optimiser step."""


class WeightAverage(ABC):
    """A running average of the policy's weights, exported beside them."""

    def check(self, *, steps: int) -> str | None:
        """Why it is of no use in a run of so many optimiser steps; None where it is."""
        return None

    @abstractmethod
    def build(self, master: Sequence[Tensor]) -> LiveAverage:
        """Starts from the given fp32 master shards (copied)."""


class Objective(ABC):
    """A term added to the policy's loss."""

    coef: float
    """Weight of the term; a field of the subclasses."""

    @abstractmethod
    def term(self, outputs: Outputs, batch: Labelled | Batch) -> LossTerm:
        """The term on a micro-batch: of the rollouts, or of the objective's own data where it has ``data``."""


class Optimizer(ABC):
    """How gradients become weight changes."""

    lr: float
    """Peak learning rate; a field of the subclasses."""

    @abstractmethod
    def build(self, parameters: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
        """The torch optimiser over named parameters."""


class Schedule(ABC):
    """The learning rate over a stage, as a factor of the peak."""

    @abstractmethod
    def factor(self, step: int, total: int) -> float:
        """Factor for optimiser step ``step`` (from 0) of ``total``."""

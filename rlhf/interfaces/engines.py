"""Engines: where and how models run, and what samples in their place."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from torch import Tensor, nn

from rlhf.interfaces.updates import Optimizer, Schedule
from rlhf.types import LossTerm, Outputs, Prompts, Rollout, Selectable, Tally

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from rlhf.engines.inference.responses import Request
    from rlhf.engines.inference.sampling import Sampling
    from rlhf.engines.reshard import Held
    from rlhf.engines.weights import Delta


M = TypeVar("M", bound=Selectable)

LossFn = Callable[[Outputs, M], tuple[list[LossTerm], Tally]]

Model = nn.Module
"""A module whose ``forward(sequences, *, temperature, want)`` answers :class:`Outputs`; see ``rlhf.models``."""


class LiveEngine(ABC):
    """One model in the hands of an engine: trained, evaluated, sampled from, saved.

    Gradients accumulate over any number of :meth:`accumulate` calls, each with any number of losses and micro-batches;
    :meth:`step` makes one optimiser step of them.
    """

    model: nn.Module
    steps: int
    """Optimiser steps made."""
    skipped: int = 0
    """Optimiser steps that were not made because a gradient had overflowed."""

    @abstractmethod
    def accumulate(
        self,
        micro_batches: Iterable[M],
        loss_fn: LossFn[M],
        denominators: Mapping[str, float],
        *,
        want: Sequence[str],
        temperature: float = 1.0,
        dropout: bool = False,
    ) -> Tally:
        """Adds the gradient of Σ coef · Σ values / denominator; nothing is divided by the number of micro-batches.

        Args:
            micro_batches: Any number, of any sizes; the same on every process, which the engine divides.
            loss_fn: Maps a model's outputs on a micro-batch to loss terms and metrics.
            denominators: Global count of each term by name: all ranks, all micro-batches of the optimiser step.
            want: The fields of :class:`Outputs` that the loss reads.
            temperature: Divides the logits in every log-probability and entropy.
            dropout: Whether the model's dropout is on.

        Returns:
            Metrics of ``loss_fn`` and ``loss/<term>`` (already divided) of each term, of all processes.
        """

    @abstractmethod
    def step(self) -> dict[str, float]:
        """One optimiser step: clips the gradient, moves the weights, zeroes the gradient, advances the schedule.

        Returns:
            ``grad_norm`` (global, before clipping) and ``lr`` of the step made, and ``loss_scale`` where losses are
            scaled. Where the gradient has overflowed, what :meth:`skip` answers.

        Raises:
            NonFiniteError: the gradient is not finite and no loss scale is to blame; no weight was changed.
        """

    def overflowed(self) -> bool:
        """Whether the accumulated gradient has overflowed at its loss scale, on any process; every process has to ask.

        Asked after the last :meth:`accumulate` of a step, by who makes steps of several models jointly; never so where
        losses are not scaled.
        """
        return False

    def skip(self) -> dict[str, float]:
        """Drops what was accumulated, after :meth:`overflowed` of this or of another model of the same step.

        Weights, optimiser and schedule stay as they are, ``steps`` too, and ``skipped`` counts one more. Where this
        model's own gradient has overflowed, its loss scale falls.

        Returns:
            ``loss_scale`` of the step that was not made.

        Raises:
            NonFiniteError: the scale cannot fall any further.
        """
        # No narrower base has it: whoever makes joint steps asks all engines alike, and one that trains by another
        # (such as Hybrid) scales losses or not as that one does.
        raise NotImplementedError(f"{type(self).__name__} scales no loss, and so skips no step")

    @abstractmethod
    def evaluate(self, batches: Iterable[M], *, temperature: float = 1.0, want: Sequence[str]) -> Iterator[Outputs]:
        """Forward passes without gradient or dropout; ``want`` names the fields of :class:`Outputs` needed."""

    @abstractmethod
    def generate(
        self,
        prompts: Prompts,
        sampling: Sampling,
        tokenizer: PreTrainedTokenizerBase,
        *,
        seed: int,
        counters: Sequence[int],
        stop_ids: Sequence[int],
    ) -> Rollout:
        """One response per prompt.

        Args:
            prompts: B prompts, already repeated for groups.
            sampling: How tokens are drawn.
            tokenizer: For pads and for the responses' text.
            seed: Run seed of the random numbers.
            counters: B global rollout numbers. A token depends on (seed, counter, position) only.
            stop_ids: Ids that end a response.
        """

    def eval(self) -> None:
        """Goes into inference mode: sampling is ready until :meth:`train`, whatever many calls it is asked for.

        An engine that samples with the weights it trains has no modes.
        """
        return

    def train(self) -> None:
        """Goes back into training mode; does nothing in it. Whatever reads or moves the weights does it first."""
        return

    @contextmanager
    def inference_mode(self) -> Iterator[None]:
        """Inside, the engine is in inference mode; after it, also after an error, in the one that it was in before."""
        yield

    def sampling_figures(self) -> dict[str, float]:
        """What :meth:`generate` has cost besides time, since the last call: figures of metrics, by name."""
        return {}

    @abstractmethod
    def master(self) -> list[Tensor]:
        """This rank's fp32 master shards of the trainable weights, in a fixed order; read, never written."""

    @abstractmethod
    def substituted(self, shards: Sequence[Tensor]) -> AbstractContextManager[None]:
        """The model works with other weights (such as an average's) inside the context, and has its own after it."""

    @abstractmethod
    def gradient(self) -> list[Tensor]:
        """A copy of this rank's accumulated gradient shards, in the order of :meth:`master`."""

    @abstractmethod
    def inner(self, a: Sequence[Tensor], b: Sequence[Tensor]) -> float:
        """Inner product of two shard lists over all ranks."""

    @abstractmethod
    def whole(self, shards: Sequence[Tensor]) -> dict[str, Tensor]:
        """Shards as :meth:`master` gives them, such as an average's, as whole weights by name: the same everywhere."""

    @abstractmethod
    def cut(self, weights: Mapping[str, Tensor]) -> list[Tensor]:
        """This rank's shards of whole weights, whatever engine they come from."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Trained weights, buffers, optimiser, schedule position: all that continues the training exactly.

        What is frozen may be left out, as whoever loads this has built the model from the same settings; then it is
        noticed when it has changed.
        """

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from :meth:`state_dict`. Raises ``UserError`` where the model is not the one it was made with."""

    @abstractmethod
    def full_state(self) -> dict[str, Tensor]:
        """The model's complete state dict on this process, gathered if need be: what an export writes."""


class Engine(ABC):
    """Where and how models run."""

    micro_batch_size: int | None
    """Rows a training pass of one process takes at once, None for up to 64; a field of the subclasses. Changes speed
    and memory, never results."""

    @property
    def rows_at_once(self) -> int:
        """Rows of a micro-batch: of a forward pass, on all processes together."""
        return self.micro_batch_size or 64

    @abstractmethod
    def build(
        self,
        model: nn.Module,
        *,
        optimizer: Optimizer | None = None,
        schedule: Schedule | None = None,
        total_steps: int = 0,
        max_grad_norm: float | None = None,
    ) -> LiveEngine:
        """Takes a model in hand. Without an optimiser it is frozen."""

    @property
    def world_size(self) -> int:
        """Number of processes that divide the rows of a training batch."""
        return 1

    def check(self, launched: int) -> list[str]:
        """Problems of an engine that is not made for as many processes as a launcher has started."""
        if self.world_size == launched:
            return []
        return [
            f"engine: {type(self).__name__} runs in {self.world_size} process, but {launched} were launched; use Zero, "
            "or start without a launcher"
        ]


class LiveInference(ABC):
    """A second form of a policy's weights, made for sampling."""

    @abstractmethod
    def refresh(self, held: Mapping[str, Held], deltas: Iterable[Delta]) -> None:
        """Takes over the weights as they are now; every process has to call it.

        Args:
            held: What this process has of each weight, by its name in the Hugging Face module.
            deltas: What adapters add to them.
        """

    @abstractmethod
    def check(self, request: Request) -> None:
        """Raises ``UserError`` for what cannot be answered, before anything is; the same on every process."""

    @abstractmethod
    def respond(self, request: Request) -> Rollout:
        """One response per prompt, equal on the processes that answer together; other processes have other prompts."""

    @abstractmethod
    def release(self) -> None:
        """Called when the weights are going to change: gives memory back, as far as the settings want that."""

    @abstractmethod
    def figures(self) -> dict[str, float]:
        """Figures since the last call, for :meth:`LiveEngine.sampling_figures`."""


class Inference(ABC):
    """How an engine samples that does not sample with the weights it trains."""

    @property
    def ways(self) -> int:
        """How many processes answer the same prompts together; a divisor of the number of all."""
        return 1

    @abstractmethod
    def build(self, lm: PreTrainedModel) -> LiveInference | None:
        """Gets ready for a model, which is whole; None, with a warning that says why, where it cannot be run."""

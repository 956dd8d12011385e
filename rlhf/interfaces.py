"""Every kind of component as an abstract base class with its contract: the map of the house.

A *component* is a frozen, keyword-only dataclass derived from one of these bases. Its fields are its YAML schema; it
holds settings and nothing else: no model, no tensor, no rank. What has state is *built* by the component and is a live
object with ``state_dict`` and ``load_state_dict``. Deriving from a base is registering: see ``rlhf.registry``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from rlhf.types import (
    Advantages,
    Aggregation,
    Batch,
    Conversation,
    Form,
    Labelled,
    LossTerm,
    Outputs,
    Phase,
    Prompts,
    Rollout,
    Scored,
    Scores,
    Selectable,
    Stateful,
    Tally,
    Turn,
)

if TYPE_CHECKING:
    import datasets
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from rlhf.engines.inference.responses import Request
    from rlhf.engines.inference.sampling import Sampling
    from rlhf.engines.reshard import Held
    from rlhf.engines.weights import Delta


class _OutputOfAStage:
    """Mark of ``ModelPath``."""


ModelPath = Annotated[str, _OutputOfAStage()]
"""Type of a setting that says where a saved model is: a folder, a hub name, or ``@stage`` or ``@stage/output`` for what
an earlier stage leaves. An experiment puts the folder in its place before the component is built."""


class NeedsInputs:
    """A component that needs files or functions to be there, which can be known before anything runs."""

    def check_inputs(self) -> None:
        """Raises what using it would raise for a file or function that is not there; loads nothing."""

    def fingerprint(self) -> str | None:
        """A text that is equal where the files and functions that it needs are; None where there are none.

        What settings of the type ``ModelPath`` lead to, and the source of the component's own class, count without it.
        """
        return None


# ------------------------------------------------------------------------------------------------------------- data


class Source(NeedsInputs, ABC):
    """Rows of one data set under our column names.

    ``prompt`` · ``prompt, response`` · ``prompt, chosen, rejected[, margin]`` · ``prompt, responses, scores`` (K-wise)
    · ``prompt, response, label`` · ``messages[, label]`` · ``text``; other columns travel along. A prompt is a text or
    a conversation. A richer row serves as a poorer one: a comparison's chosen response is a demonstration, its prompt
    a prompt (``rlhf.data.forms``).
    """

    @abstractmethod
    def load(self) -> datasets.Dataset:
        """Reads the rows. Raises ``UserError`` naming path, the columns present and the remedy."""

    def fingerprint(self) -> str | None:
        """A text that is equal where the rows are, known without making them (such as a hash of the file).

        None, the default, has the rows read and compared with those that were prepared before.
        """
        return None

    def remark(self) -> str:
        """What who reads figures measured on these rows should know, in a few words; nothing for most sources."""
        return ""


class Template(ABC):
    """How a row becomes token ids. The prompt's ids are the same in SFT, reward modelling and rollouts."""

    @abstractmethod
    def prompt(self, text: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
        """Ids of a prompt, beginning-of-sequence token (if the tokenizer has one) exactly once."""

    @abstractmethod
    def response(self, text: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
        """Ids of a response, ending in exactly one end id."""

    def prompts(self, texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
        """``prompt`` of each text; to be overridden where many at once are faster."""
        return [self.prompt(text, tokenizer) for text in texts]

    def responses(self, texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
        """``response`` of each text; to be overridden where many at once are faster."""
        return [self.response(text, tokenizer) for text in texts]

    def all_turns(self, conversations: Sequence[Conversation], tokenizer: PreTrainedTokenizerBase) -> list[list[Turn]]:
        """``turns`` of each conversation; to be overridden where many at once are faster."""
        return [self.turns(conversation, tokenizer) for conversation in conversations]

    @abstractmethod
    def turns(self, conversation: Conversation, tokenizer: PreTrainedTokenizerBase) -> list[Turn]:
        """Ids of a conversation that ends where the assistant is to speak: joined, they are a prompt.

        Returns:
            The assistant turns that may be learned, and one without a response for what is still to be said.

        Raises:
            UserError: which tokens the assistant says cannot be told.
        """

    @abstractmethod
    def end_id(self, tokenizer: PreTrainedTokenizerBase) -> int:
        """The single id that ends a response: appended in training, a stop id in sampling."""

    def bare(self, text: str) -> str:
        """A sampled response as a source would have it: without what this template puts around a response."""
        return text


class Blender(ABC):
    """In which order the rows of several sources are drawn."""

    def check_sources(self, names: Collection[str]) -> None:
        """Raises ``UserError`` where the settings do not fit sources of these names."""
        return

    def over(self, *, draws: int, batch_size: int) -> Blender:
        """This blender for a run of so many draws, ``batch_size`` at a time; itself, unless its order depends on that.

        The length of an epoch stays as it is.
        """
        return self

    @abstractmethod
    def epoch(self, sizes: Mapping[str, int], *, seed: int, epoch: int) -> np.ndarray:
        """The draws of one epoch.

        Args:
            sizes: Rows of each source, in config order.
            seed: Run seed: same seed, same order, on every rank.
            epoch: Counts from 0; each epoch is another permutation.

        Returns:
            [N, 2] int64, (index of the source, row in it), N the length of an epoch.
        """


# ----------------------------------------------------------------------------------------------------------- models


class LanguageModel(NamedTuple):
    """A causal language model and its tokenizer."""

    module: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase


class Policy(NeedsInputs, ABC):
    """Where a language model comes from."""

    def outline(self) -> PreTrainedModel | None:
        """The model without its weights, on the meta device; None where it is not known before it is loaded.

        Raises:
            UserError: the settings make no model.
        """
        return None

    def check_training(self, outline: PreTrainedModel) -> None:
        """Raises ``UserError`` where what is to be trained is not in a model of this outline."""
        return

    @abstractmethod
    def build(self, corpus: Callable[[], Iterable[str]], *, seed: int) -> LanguageModel:
        """Makes the model.

        Args:
            corpus: Yields the stage's training texts, for policies that train a tokenizer; others never call it.
            seed: For new weights.
        """


class ValueHead(ABC):
    """A scalar read from hidden states: the head of critics and reward models, kept in fp32."""

    @abstractmethod
    def build(self, width: int) -> nn.Module:
        """A module mapping [..., width] hidden states of any dtype to [...] fp32 values."""


class Critic(ABC):
    """Where values come from: a trunk of its own, or a head on the policy's."""

    head: ValueHead
    coef: float
    clip: float | None
    warmup_iterations: int
    """Fields of the subclasses: the head, weight of the value loss, value clip, iterations before the policy learns."""
    optimizer: Optimizer
    schedule: Schedule
    max_grad_norm: float | None
    """Fields of those that have a trunk of their own, and with it an optimiser."""
    shared: ClassVar[bool]
    """True: ``head`` sits on the policy's trunk and is trained by the policy's optimiser."""

    @property
    def starts_as_reward_model(self) -> bool:
        """Whether it begins as a model of the score, so that it must be brought to the units of the scores."""
        return False

    def check_training(self, outline: PreTrainedModel) -> None:
        """Raises ``UserError`` where what is to be trained is not in a language model of this outline."""
        return

    @abstractmethod
    def build(self, policy: LanguageModel, *, seed: int) -> nn.Module:
        """The value model (a trunk of its own), or the head for the policy's trunk where ``shared``."""


class Scorer(ABC):
    """A live reward model."""

    @abstractmethod
    def __call__(self, rollout: Rollout) -> Scores:
        """Scores B responses. Never sees gradients."""


class RewardModel(NeedsInputs, ABC):
    """What a response is worth."""

    def check_columns(self, columns: Mapping[str, Collection[str]]) -> None:
        """Raises ``UserError`` where the data lack a column that it reads.

        Args:
            columns: Further columns of the prompts, by source.
        """
        return

    @abstractmethod
    def build(self, engine: Engine, tokenizer: PreTrainedTokenizerBase) -> Scorer:
        """Makes the scorer; a model inside it is run by ``engine``. ``tokenizer`` is the policy's."""


# ----------------------------------------------------------------------------------------- parts of a policy update


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


# ---------------------------------------------------------------------------------------------------------- engines

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


class LiveSink(ABC):
    """An open metrics sink."""

    @abstractmethod
    def write(self, metrics: Mapping[str, float]) -> None:
        """Takes one line of figures; ``step`` is always among them."""

    @abstractmethod
    def close(self) -> None: ...


class MetricSink(ABC):
    """Where figures go besides ``metrics.jsonl``."""

    @abstractmethod
    def open(self, directory: Path) -> LiveSink:
        """Opens the sink for a stage, in the stage's folder."""


# -------------------------------------------------------------------------------------------------------- evaluation


class MetricSetup(ABC):
    """What a metric of the evaluation is built with.

    Attributes:
        engine: Runs models.
        tokenizer: The policy's.
        prompts: The P held-out prompts, each once.
        positions: The most tokens that the policy reads; None where it has no limit.
        cache_dir: Where prepared data are kept, see :class:`rlhf.Experiment`.
    """

    engine: Engine
    tokenizer: PreTrainedTokenizerBase
    prompts: Prompts
    positions: int | None
    cache_dir: str | None

    @abstractmethod
    def judge(self, reward: RewardModel | None) -> Scorer:
        """The scorer of a reward model, built once for all who name an equal one; None is the stage's own."""

    @abstractmethod
    def answers_of(self, policy: Policy) -> Rollout:
        """Another policy's response to each prompt, by the random numbers of the evaluation. It is let go of then.

        Raises:
            UserError: it has another vocabulary, or no room for the responses.
        """

    @abstractmethod
    def scores(self, judge: Scorer, rollout: Rollout) -> Tensor:
        """[B] what a judge says of responses.

        Raises:
            NonFiniteError: a score is not finite.
        """


class Evaluated(ABC):
    """The policy, or its average, at an evaluation. What one metric has asked for, others have without its costs.

    Attributes:
        policy: Its weights are those that are evaluated; :meth:`LiveEngine.evaluate` and ``generate`` may be called.
    """

    policy: LiveEngine

    @abstractmethod
    def samples(self, count: int = 1, sampling: Sampling | None = None) -> Sequence[Rollout]:
        """Responses to the P held-out prompts, with the same random numbers at every evaluation.

        Args:
            count: How many to each prompt.
            sampling: How they are drawn; None as the evaluation does.

        Returns:
            ``count`` rollouts of P rows. The first, as the evaluation draws it, is what its own figures are of. They
            are the same whatever ``count`` is.
        """

    @abstractmethod
    def scores(self, judge: Scorer, count: int = 1, sampling: Sampling | None = None) -> Tensor:
        """[P, count] what a judge says of these responses, each scored once.

        Raises:
            NonFiniteError: a score is not finite.
        """


class LiveMetric(ABC):
    """A metric with all that it needs."""

    @abstractmethod
    def __call__(self, evaluated: Evaluated) -> dict[str, float]:
        """Figures by name, "" for that of the metric itself; weights and random states stay as they are."""


class EvaluationMetric(ABC):
    """Figures of a policy, taken at every evaluation: ``eval/<name>/<figure>``, by the name it is given."""

    @property
    @abstractmethod
    def figures(self) -> tuple[str, ...] | None:
        """The names of its figures; None where they are known only when it is built."""

    def check(self, sampling: Sampling) -> list[str]:
        """Problems with an evaluation that draws responses so, each ``"<setting>: <problem>; <remedy>"``."""
        return []

    @abstractmethod
    def build(self, setup: MetricSetup) -> LiveMetric:
        """Loads what it needs, once for all evaluations.

        Raises:
            UserError: it cannot be measured.
        """


class Worth(NamedTuple):
    """What a selection says of an evaluation.

    Attributes:
        value: More is better; NaN is worth nothing.
        averaged: Whether it is that of the average.
        text: The figure and its value, for people.
    """

    value: float
    averaged: bool
    text: str


class Selection(ABC):
    """Which of a stage's weights become its ``model/``."""

    averaged: ClassVar[bool] = False
    """Whether the last weights that it takes are the average's."""
    evaluates: ClassVar[bool] = False
    """Whether it takes those of the best evaluation, by :meth:`worth`, and not the last ones."""

    @abstractmethod
    def check(self, *, every: int, averaged: bool, figures: Collection[str], prefixes: Collection[str]) -> list[str]:
        """Problems with a stage, each ``"<setting>: <problem>; <remedy>"``.

        Args:
            every: Iterations between evaluations; 0 none.
            averaged: Whether the weights are averaged.
            figures: Of an evaluation of the policy, without ``eval/``.
            prefixes: What further ones, whose names are known only then, begin with.
        """

    def worth(self, figures: Mapping[str, float]) -> Worth:
        """How good weights are, from the figures of their evaluation.

        Raises:
            UserError: what it goes by is not among the figures.
        """
        raise NotImplementedError(f"{type(self).__name__} goes by no evaluation")


# ------------------------------------------------------------------------------------------------------- algorithms


class Algorithm(ABC):
    """One stage of an experiment: settings, and the maths that a loop of ``rlhf.loops`` calls.

    Subclasses derive from one of the two families below; the family decides which loop runs them.
    """

    phase: ClassVar[Phase]
    """Which part of a three-phase data split is this algorithm's by default."""

    def check(self) -> list[str]:
        """Problems of the settings, known before a model loads, each ``"<setting>: <problem>; <remedy>"``."""
        return []

    def check_positions(self, positions: int) -> list[str]:
        """Problems with a model of so many positions, as :meth:`check` tells them."""
        return []

    def outputs(self) -> tuple[str, ...]:
        """What later stages may refer to: ``"@stage"`` is ``model``, ``"@stage/ema"`` is ``ema``."""
        return ("model",)


class Deployment(ABC):
    """Chooses how the stages of an experiment run on the machines at hand."""

    @property
    @abstractmethod
    def world(self) -> int:
        """Processes that it plans for."""

    @abstractmethod
    def choose(self, stages: Mapping[str, Algorithm]) -> tuple[dict[str, Algorithm], list[str]]:
        """The stages with engines of its choice, all else as it was, and a few lines on what was chosen and why.

        Raises:
            ConfigError: a stage cannot run there.
        """


class OfflineAlgorithm(Algorithm, Generic[M]):
    """Learns from fixed data: data → loss. Run by ``rlhf.loops.offline``."""

    form: ClassVar[Form]
    """The rows it learns from."""
    want: ClassVar[tuple[str, ...]]
    """The fields of :class:`Outputs` its loss reads."""

    @abstractmethod
    def build(self, corpus: Callable[[], Iterable[str]], *, seed: int) -> tuple[nn.Module, PreTrainedTokenizerBase]:
        """The module to train (its ``forward`` answers :class:`Outputs`) and its tokenizer."""

    @abstractmethod
    def collate(self, examples: Sequence[Any], *, pad_id: int) -> M:
        """One batch of the given tokenised examples."""

    @abstractmethod
    def loss(self, outputs: Outputs, batch: M) -> tuple[list[LossTerm], Tally]:
        """Terms and metrics of a micro-batch."""

    @abstractmethod
    def denominators(self, batch: M) -> dict[str, float]:
        """Local count for each term over a whole optimiser step's batch; the loop makes them global."""

    def conclude(self, engine: LiveEngine, heldout: Sequence[M]) -> dict[str, float]:
        """What is left to do after the last step and before saving; its figures are logged."""
        return {}

    @abstractmethod
    def save(
        self, directory: Path, model: nn.Module, tokenizer: PreTrainedTokenizerBase, state: dict[str, Tensor]
    ) -> None:
        """Writes the model of a complete state dict so that ``from_pretrained`` loads it."""


class OnlineAlgorithm(Algorithm):
    """Learns from its own samples: prompts → rollout → update. Run by ``rlhf.loops.online``."""

    @abstractmethod
    def rewards(
        self,
        scores: Tensor,
        old_logprobs: Tensor,
        ref_logprobs: Tensor | None,
        mask: Tensor,
        *,
        kl_coef: float,
        divergence: Tensor | None = None,
    ) -> Tensor:
        """Reward of every token [B, T] from the scores [B] or [B, T].

        ``divergence`` [B, T], the exact KL of each token's distribution, is given where the settings ask for it.
        """

    @abstractmethod
    def advantages(self, scored: Scored) -> Advantages:
        """Advantages and critic targets of an iteration's rollouts."""

    @abstractmethod
    def loss(self, outputs: Outputs, batch: Batch, *, kl_coef: float) -> tuple[list[LossTerm], Tally]:
        """Policy terms and metrics of a micro-batch."""

    @abstractmethod
    def value_loss(self, outputs: Outputs, batch: Batch) -> tuple[list[LossTerm], Tally]:
        """Critic terms and metrics of a micro-batch."""

    @abstractmethod
    def denominators(self, batch: Batch) -> dict[str, float]:
        """Local count for each term over a whole mini-batch; the loop makes them global."""


__all__ = [
    "AdvantageEstimator",
    "Algorithm",
    "Blender",
    "Critic",
    "Deployment",
    "Engine",
    "Evaluated",
    "EvaluationMetric",
    "Inference",
    "KLController",
    "LanguageModel",
    "LiveAverage",
    "LiveController",
    "LiveEngine",
    "LiveInference",
    "LiveMetric",
    "LiveSink",
    "MetricSetup",
    "MetricSink",
    "Objective",
    "OfflineAlgorithm",
    "OnlineAlgorithm",
    "Optimizer",
    "Policy",
    "PolicyLoss",
    "RewardModel",
    "RolloutFilter",
    "SamplerCorrection",
    "Schedule",
    "Scorer",
    "Selection",
    "Source",
    "Template",
    "ValueHead",
    "Worth",
]

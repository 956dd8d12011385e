"""Figures: what is measured at an evaluation, which weights it chooses, and where figures go."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from torch import Tensor

from rlhf.interfaces.engines import Engine, LiveEngine
from rlhf.interfaces.models import Policy, RewardModel, Scorer
from rlhf.types import Prompts, Rollout

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from rlhf.engines.inference.sampling import Sampling


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
    """Whether it takes those of an evaluation: true of a :class:`SelectionByEvaluation`."""

    @abstractmethod
    def check(self, *, every: int, averaged: bool, figures: Collection[str], prefixes: Collection[str]) -> list[str]:
        """Problems with a stage, each ``"<setting>: <problem>; <remedy>"``.

        Args:
            every: Iterations between evaluations; 0 none.
            averaged: Whether the weights are averaged.
            figures: Of an evaluation of the policy, without ``eval/``.
            prefixes: What further ones, whose names are known only then, begin with.
        """


class SelectionByEvaluation(Selection):
    """Takes the weights of the best evaluation, and not the last ones."""

    evaluates: ClassVar[bool] = True

    @abstractmethod
    def worth(self, figures: Mapping[str, float]) -> Worth:
        """How good weights are, from the figures of their evaluation.

        Raises:
            UserError: what it goes by is not among the figures.
        """


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

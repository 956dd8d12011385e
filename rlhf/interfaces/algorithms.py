"""Algorithms: the stages of an experiment, and what chooses how they run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic

from torch import Tensor, nn

from rlhf.interfaces.engines import LiveEngine, M
from rlhf.types import Advantages, Batch, Form, LossTerm, Outputs, Phase, Scored, Tally

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


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

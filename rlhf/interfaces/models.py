"""Models: where policies and critics come from, and what says how good a response is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from torch import nn

from rlhf.interfaces.engines import Engine
from rlhf.interfaces.inputs import NeedsInputs
from rlhf.interfaces.updates import Optimizer, Schedule
from rlhf.types import Rollout, Scores

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


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

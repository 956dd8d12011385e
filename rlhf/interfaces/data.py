"""Data: where rows come from, how they become token ids, and in which order they are drawn."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from rlhf.interfaces.inputs import NeedsInputs
from rlhf.types import Conversation, Turn

if TYPE_CHECKING:
    import datasets
    from transformers import PreTrainedTokenizerBase


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

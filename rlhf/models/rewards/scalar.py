"""A trained scalar reward model."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from rlhf.errors import UserError
from rlhf.interfaces import Engine, LiveEngine, ModelPath, RewardModel, Scorer, Template
from rlhf.models.storage import USAGE, load_usage, load_value_model
from rlhf.models.tokenizer import check_same_vocabulary, differing_tokens, pad_id
from rlhf.types import Message, Rollout, Scores, Selectable, Sequences, joined

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)


def frozen_value_model(path: str, engine: Engine, tokenizer: PreTrainedTokenizerBase) -> LiveEngine:
    """A saved reward model in an engine, frozen.

    Raises:
        UserError: the folder, or its head, is missing.
        UserError: the reward model reads other token ids than the policy writes.
    """
    model, own = load_value_model(path)
    check_same_vocabulary(f"path: the reward model in {path}", own, tokenizer)
    return engine.build(model)


def check_path(path: str) -> None:
    """Refuses a path that is empty."""
    if not path:
        raise UserError("path: it is empty; give @stage or the folder of a reward model")


@dataclass(frozen=True, kw_only=True)
class ScalarReward(RewardModel):
    """A trained reward model, read at the last real token of the sampled ids: where its training read it.

    A model with another tokenizer than the policy's is given the texts instead, a conversation turn by turn, through
    its own tokenizer and the template of its training.

    Args:
        path: "@stage" for the result of an earlier reward-modelling stage, or the folder of one.
    """

    path: ModelPath

    def __post_init__(self) -> None:
        check_path(self.path)

    def build(self, engine: Engine, tokenizer: PreTrainedTokenizerBase) -> Scorer:
        """Loads the model and freezes it in the engine.

        Raises:
            UserError: the folder, or its head, is missing.
            UserError: the reward model has another tokenizer than the policy, and its folder does not say how texts
                are to be read.
        """
        model, own = load_value_model(self.path)
        if not (different := differing_tokens(own, tokenizer)):
            return ScalarScorer(engine.build(model), engine.rows_at_once)
        template, _ = load_usage(self.path)
        if template is None:
            raise UserError(
                f"path: the reward model in {self.path} has another vocabulary than the policy, and no "
                f"{Path(self.path) / USAGE} says how its training read texts; train it again, or train it from the "
                "policy's starting model"
            )
        logger.warning(
            "The reward model in %s has another vocabulary than the policy (%d tokens differ, such as %r): "
            "responses are decoded and tokenised again for it.",
            self.path,
            len(different),
            different[0],
        )
        return TextScorer(engine.build(model), engine.rows_at_once, template, own)


class ScalarScorer(Scorer):
    """A frozen value model in an engine."""

    def __init__(self, engine: LiveEngine, rows_at_once: int) -> None:
        self.engine = engine
        self.rows_at_once = rows_at_once

    def __call__(self, rollout: Rollout) -> Scores:
        device = rollout.sequences.ids.device
        scores = [out.scores for out in self.engine.evaluate(self._batches(rollout), want=("scores",))]
        return Scores(torch.cat([part.to(device) for part in scores if part is not None]))

    def _batches(self, rollout: Rollout) -> Iterator[Selectable]:
        whole = self.read(rollout)
        for rows in torch.arange(len(whole), device=whole.mask.device).split(self.rows_at_once):
            yield whole.select(rows)

    def read(self, rollout: Rollout) -> Selectable:
        """The sequences that the model reads."""
        return Selectable(rollout.sequences, rollout.mask)


class TextScorer(ScalarScorer):
    """A frozen value model that reads the texts of a rollout through its own template and tokenizer."""

    def __init__(
        self, engine: LiveEngine, rows_at_once: int, template: Template, tokenizer: PreTrainedTokenizerBase
    ) -> None:
        super().__init__(engine, rows_at_once)
        self.template = template
        self.tokenizer = tokenizer

    def read(self, rollout: Rollout) -> Selectable:
        """Prompt and response as its training would have encoded them; a cut response has no end id."""
        talks = rollout.prompts.columns.get("messages") or [None] * len(rollout)
        asked = [self._prompt(*row) for row in zip(rollout.prompts.text, talks, strict=True)]
        said = [self._response(*row) for row in zip(rollout.text, rollout.ended.tolist(), strict=True)]
        rows = [prompt + response for prompt, response in zip(asked, said, strict=True)]
        width = max(2, *map(len, rows))
        fill = pad_id(self.tokenizer)
        ids = torch.tensor([row + [fill] * (width - len(row)) for row in rows], device=rollout.mask.device)
        lengths = torch.tensor([len(row) for row in rows], device=rollout.mask.device)
        real = torch.arange(width, device=rollout.mask.device) < lengths.unsqueeze(1)
        return Selectable(Sequences(ids, real, prompt_width=1), real[:, 1:])

    def _prompt(self, text: str, messages: Sequence[Mapping[str, str]] | None) -> list[int]:
        """A prompt, or the messages of one that is a conversation, as its training would have encoded them."""
        talk = tuple(Message(message["role"], message["content"]) for message in messages or ())
        if len(talk) < 2 and not (talk and talk[0].role != "user"):
            return self.template.prompt(text, self.tokenizer)
        try:
            return joined(self.template.turns(talk, self.tokenizer))
        except UserError as error:
            raise UserError(f"path: the reward model cannot read a conversation as a prompt: {error}") from error

    def _response(self, text: str, ended: bool) -> list[int]:
        ids = self.template.response(self.template.bare(text), self.tokenizer)
        return ids if ended else ids[:-1]

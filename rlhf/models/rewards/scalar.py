"""A trained scalar reward model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from rlhf.errors import UserError
from rlhf.interfaces import Engine, LiveEngine, ModelPath, RewardModel, Scorer
from rlhf.models.storage import load_value_model
from rlhf.models.tokenizer import check_same_vocabulary
from rlhf.types import Rollout, Scores, Selectable

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


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

    Args:
        path: "@stage" for the result of an earlier reward-modelling stage, or the folder of one.
    """

    path: ModelPath

    def __post_init__(self) -> None:
        check_path(self.path)

    def build(self, engine: Engine, tokenizer: PreTrainedTokenizerBase) -> Scorer:
        """Loads the model and freezes it in the engine; see :func:`frozen_value_model`."""
        return ScalarScorer(frozen_value_model(self.path, engine, tokenizer), engine.rows_at_once)


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
        whole = Selectable(rollout.sequences, rollout.mask)
        for rows in torch.arange(len(whole), device=rollout.sequences.ids.device).split(self.rows_at_once):
            yield whole.select(rows)

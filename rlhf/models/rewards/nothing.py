"""No reward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from rlhf.interfaces import Engine, RewardModel, Scorer
from rlhf.types import Rollout, Scores

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class _Zero(Scorer):
    def __call__(self, rollout: Rollout) -> Scores:
        return Scores(torch.zeros(len(rollout), device=rollout.mask.device))


@dataclass(frozen=True, kw_only=True)
class NoReward(RewardModel):
    """Every response is worth 0: only the KL counts, as in distillation from a teacher."""

    def build(self, engine: Engine, tokenizer: PreTrainedTokenizerBase) -> Scorer:
        return _Zero()

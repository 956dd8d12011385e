"""What length costs: components of a ``Weighted`` reward. Scores are at most 0, so their weights are positive."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from rlhf.errors import UserError, require
from rlhf.interfaces import Engine, RewardModel, Scorer
from rlhf.types import Rollout, Scores

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, kw_only=True)
class LengthPenalty(RewardModel):
    """A charge for each token beyond a target: score = −per_token · max(0, tokens − target).

    Tokens are those the policy chose, the end token included.

    Args:
        target: Tokens that cost nothing.
        per_token: What each further token costs, in units of the score.
    """

    target: int
    per_token: float

    def __post_init__(self) -> None:
        require(at_least=0, target=self.target, per_token=self.per_token)

    def build(self, engine: Engine, tokenizer: PreTrainedTokenizerBase) -> Scorer:
        """Nothing is needed."""
        return LengthScorer(self.target, self.per_token, -math.inf)


@dataclass(frozen=True, kw_only=True)
class OverlongPenalty(RewardModel):
    """Soft overlong punishment: 0 up to ``max_tokens − buffer``, then linearly down to −1 at ``max_tokens``.

    score = max(−1, min(0, (max_tokens − buffer − tokens) / buffer)).   Source: arXiv:2503.14476, eq. 13, with
    max_tokens = L_max and buffer = L_cache. Tokens are those the policy chose, the end token included.

    Args:
        max_tokens: Length from which a response gets the whole punishment; at most ``sampling.max_new_tokens``, or no
            response ever does.
        buffer: Tokens before it over which the punishment grows.
    """

    max_tokens: int
    buffer: int

    def __post_init__(self) -> None:
        require(at_least=1, max_tokens=self.max_tokens, buffer=self.buffer)
        if self.buffer > self.max_tokens:
            raise UserError(f"buffer: {self.buffer}, more than max_tokens ({self.max_tokens}); set at most that")

    def build(self, engine: Engine, tokenizer: PreTrainedTokenizerBase) -> Scorer:
        """Nothing is needed."""
        return LengthScorer(self.max_tokens - self.buffer, 1 / self.buffer, -1.0)


class LengthScorer(Scorer):
    """A charge per token beyond ``free``, down to the score ``lowest``."""

    def __init__(self, free: int, per_token: float, lowest: float) -> None:
        self.free = free
        self.per_token = per_token
        self.lowest = lowest

    def __call__(self, rollout: Rollout) -> Scores:
        room = (self.free - rollout.mask.sum(1)).clamp(max=0)
        return Scores((room.to(torch.float32) * self.per_token).clamp(min=self.lowest))

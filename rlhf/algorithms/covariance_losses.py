"""Policy losses that hold back the tokens which take the policy's entropy."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from rlhf.algorithms.functional import policy_losses, selection
from rlhf.algorithms.policy_losses import Clip
from rlhf.engines.inference.random import GOLDEN, splitmix64, uniform
from rlhf.errors import UserError, require
from rlhf.interfaces import PolicyLoss
from rlhf.types import Aggregation, Batch, Sequences


def token_order(sequences: Sequences, *, seed: int) -> Tensor:
    """A random number for each response token that depends on what its row says and where the token stands.

    So the same tokens come first whatever the order of the rows, the padding, the division of the batch, and the last
    digits of log-probabilities.

    Args:
        sequences: B rows.
        seed: Of the random numbers.

    Returns:
        [B, T] float64 in [0, 1).
    """
    words = splitmix64(splitmix64(sequences.ids) + sequences.position_ids * GOLDEN)
    rows = torch.where(sequences.attention_mask, words, 0).sum(1)  # wraps around, as sums of hashes may
    positions = torch.arange(sequences.response_width, device=rows.device)
    return uniform(seed, rows[:, None], positions[None, :])


def _selected(loss: PolicyLoss, batch: Batch) -> Tensor:
    if batch.selected is None:
        raise UserError(
            f"{type(loss).__name__} chooses tokens from the whole batch of an optimiser step: call its prepare first"
        )
    return batch.selected


@dataclass(frozen=True, kw_only=True)
class ClipCov(Clip):
    """PPO's clipped surrogate without some of the tokens whose probability and advantage go together.

    L_t = 0 for tokens drawn at random, ⌊fraction · N⌋ of the step's N and at least one, from those with a covariance
    C_t = (log π_old(a_t) − mean) (A_t − mean) in (cov_low, cov_high); else PPO's.
    Source: arXiv:2505.22617, §4.2 (Clip-Cov), which takes the log-probabilities of the policy as it is trained: here it
    is those before the update, of the whole optimiser step, so that no division of the batch changes the choice.

    Args:
        fraction: Share of the tokens that is left out.
        cov_low: Covariance from which a token may be left out.
        cov_high: Covariance up to which.
        seed: Of the draw, which depends on it and on what the responses say.
    """

    fraction: float = 2e-4
    cov_low: float = 1.0
    cov_high: float = 5.0
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(above=0, at_most=1, fraction=self.fraction)
        if not self.cov_low < self.cov_high:
            raise UserError(f"cov_low is {self.cov_low}; must be below cov_high, {self.cov_high}")

    def prepare(self, batch: Batch) -> Batch:
        selected = selection.tokens_between(
            selection.token_covariance(batch.old_logprobs, batch.advantages, batch.mask),
            token_order(batch.sequences, seed=self.seed),
            batch.mask,
            fraction=self.fraction,
            low=self.cov_low,
            high=self.cov_high,
        )
        return dataclasses.replace(batch, selected=selected)

    def __call__(self, logprobs: Tensor, batch: Batch) -> Tensor:
        return super().__call__(logprobs, batch).masked_fill(_selected(self, batch), 0.0)


@dataclass(frozen=True, kw_only=True)
class KLCov(PolicyLoss):
    """Policy gradient with ratios, and a penalty on how far the tokens of highest covariance go.

    L_t = −r_t A_t + coef · |log r_t| · [t is among the ⌊fraction · N⌋, at least one, of largest C_t of the step's N],
    r_t = exp(logprobs − old_logprobs),   C_t = (log π_old(a_t) − mean) (A_t − mean).
    Source: arXiv:2505.22617, §4.2 (KL-Cov). As in ``ClipCov``, C is that of the whole optimiser step before the update.

    Args:
        fraction: Share of the tokens that is penalised.
        coef: Weight of the penalty, per nat.
        aggregation: As in ``Clip``.
    """

    fraction: float = 2e-4
    coef: float = 1.0
    aggregation: Aggregation = "token"

    def __post_init__(self) -> None:
        require(above=0, at_most=1, fraction=self.fraction)
        require(at_least=0, coef=self.coef)

    def prepare(self, batch: Batch) -> Batch:
        covariance = selection.token_covariance(batch.old_logprobs, batch.advantages, batch.mask)
        order = token_order(batch.sequences, seed=0)  # of tokens with the same covariance only
        return dataclasses.replace(
            batch, selected=selection.top_tokens(covariance, order, batch.mask, fraction=self.fraction)
        )

    def __call__(self, logprobs: Tensor, batch: Batch) -> Tensor:
        return policy_losses.selectively_penalised_surrogate(
            logprobs, batch.old_logprobs, batch.advantages, batch.mask, _selected(self, batch), coef=self.coef
        )

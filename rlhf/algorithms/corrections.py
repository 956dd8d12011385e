"""Corrections of the sampler's probabilities: adapters over ``functional.corrections``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from rlhf.algorithms.functional import corrections
from rlhf.errors import UserError, require
from rlhf.interfaces import SamplerCorrection
from rlhf.types import Batch


@dataclass(frozen=True, kw_only=True)
class TruncatedIS(SamplerCorrection):
    """Truncated importance weights.

    w_t = min(ρ_t, cap),   ρ_t = exp(old_logprobs − rollout_logprobs).
    Source: Yao et al. 2025, https://fengyao.notion.site/off-policy-rl; by responses: Li et al. 2025,
    https://richardli.xyz/rl-collapse.

    Args:
        cap: Largest weight.
        level: "token": ρ of the token itself; "sequence": the product of ρ over the response, for all its tokens.
    """

    cap: float = 2.0
    level: Literal["token", "sequence"] = "token"

    def __post_init__(self) -> None:
        require(above=0, cap=self.cap)

    def __call__(self, batch: Batch) -> Tensor:
        return corrections.truncated_weights(
            batch.old_logprobs, batch.rollout_logprobs, batch.mask, cap=self.cap, level=self.level
        )


@dataclass(frozen=True, kw_only=True)
class MaskedIS(SamplerCorrection):
    """Importance weights, and none for what sampler and trainer disagree on too much (IcePop).

    w_t = ρ_t where low ≤ ρ_t ≤ high, else 0,   ρ_t = exp(old_logprobs − rollout_logprobs).
    Source: arXiv:2510.18855 (IcePop); by responses: Li et al. 2025, https://richardli.xyz/rl-collapse.
    What is masked still counts in the denominator of the loss.

    Args:
        low: Smallest ρ that counts.
        high: Largest.
        level: "token": ρ of the token itself; "sequence": the product of ρ over the response, for all its tokens.
    """

    low: float = 0.5
    high: float = 5.0
    level: Literal["token", "sequence"] = "token"

    def __post_init__(self) -> None:
        require(at_least=0, low=self.low, high=self.high)
        if self.low > self.high:
            raise UserError(f"low is {self.low}, above high, {self.high}: nothing would count")

    def __call__(self, batch: Batch) -> Tensor:
        return corrections.masked_weights(
            batch.old_logprobs, batch.rollout_logprobs, batch.mask, low=self.low, high=self.high, level=self.level
        )

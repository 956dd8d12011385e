"""Policy losses: adapters over ``functional.losses``."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from rlhf.algorithms.functional import losses
from rlhf.errors import UserError
from rlhf.interfaces import PolicyLoss
from rlhf.types import Aggregation, Batch


@dataclass(frozen=True, kw_only=True)
class Clip(PolicyLoss):
    """PPO's clipped surrogate.

    L_t = −min(r_t A_t, clip(r_t, 1 − low, 1 + high) A_t),   r_t = exp(logprobs − old_logprobs).
    Source: arXiv:1707.06347, eq. 7; asymmetric range: arXiv:2503.14476, eq. 10; dual clip: arXiv:1912.09729, eq. 5.

    Args:
        low: How far below 1 the ratio may go before its gradient is cut.
        high: How far above 1.
        dual: Upper bound c > 1 of the loss's ratio for negative advantages; null leaves it unbounded.
        aggregation: "token": mean over all tokens of the step; "sequence": mean of each response's mean; "constant":
            sum over the tokens / (responses · longest allowed response), so that no length is favoured (Dr. GRPO,
            arXiv:2503.20783).
    """

    low: float = 0.2
    high: float = 0.2
    dual: float | None = None
    aggregation: Aggregation = "token"

    def __post_init__(self) -> None:
        if not 0 <= self.low < 1:
            raise UserError(f"low is {self.low}; the ratio's lower clip must be in [0, 1)")
        if self.high < 0:
            raise UserError(f"high is {self.high}; the ratio's upper clip must not be negative")
        if self.dual is not None and self.dual <= 1:
            raise UserError(f"dual is {self.dual}; the dual clip must be above 1, or null for none")

    def __call__(self, logprobs: Tensor, batch: Batch) -> Tensor:
        return losses.clipped_surrogate(
            logprobs,
            batch.old_logprobs,
            batch.advantages,
            batch.mask,
            clip_low=self.low,
            clip_high=self.high,
            dual_clip=self.dual,
        )

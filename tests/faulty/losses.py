"""Policy losses, weights of tokens and filters: pads that count, gradients that are missing, rows that matter."""

from __future__ import annotations

import torch

from faulty.parts import component
from rlhf.algorithms.functional import losses
from rlhf.interfaces import PolicyLoss, RolloutFilter, SamplerCorrection
from rlhf.types import Aggregation, Batch


class _Loss(PolicyLoss):
    """The clipped surrogate."""

    aggregation: Aggregation = "token"

    def __call__(self, logprobs: torch.Tensor, batch: Batch) -> torch.Tensor:
        return losses.clipped_surrogate(logprobs, batch.old_logprobs, batch.advantages, batch.mask)


@component
class _LossOfPads(_Loss):
    """Multiplies by the mask: NaN stays NaN."""

    def __call__(self, logprobs: torch.Tensor, batch: Batch) -> torch.Tensor:
        return -(logprobs - batch.old_logprobs).exp() * batch.advantages * batch.mask


@component
class _GradientOfPads(_Loss):
    """Masks the value and not what it is made of: 0 · NaN comes back in the gradient."""

    def __call__(self, logprobs: torch.Tensor, batch: Batch) -> torch.Tensor:
        surrogate = -(logprobs - batch.old_logprobs).exp() * batch.advantages.masked_fill(~batch.mask, 0.0)
        return torch.where(batch.mask, surrogate, 0.0)


@component
class _Whitening(_Loss):
    """Whitens the advantages of whatever micro-batch it is given."""

    def __call__(self, logprobs: torch.Tensor, batch: Batch) -> torch.Tensor:
        found = super().__call__(logprobs, batch)
        return (found - found.sum() / batch.mask.sum()).masked_fill(~batch.mask, 0.0)


@component
class _LossByRow(_Loss):
    """Weighs rows by their place."""

    def __call__(self, logprobs: torch.Tensor, batch: Batch) -> torch.Tensor:
        return super().__call__(logprobs, batch) * torch.arange(len(batch))[:, None]


@component
class _WritingLoss(_Loss):
    """Clips the advantages in place."""

    def __call__(self, logprobs: torch.Tensor, batch: Batch) -> torch.Tensor:
        batch.advantages.clamp_(-0.5, 0.5)
        return super().__call__(logprobs, batch)


@component
class _DetachedLoss(_Loss):
    """Has no gradient."""

    def __call__(self, logprobs: torch.Tensor, batch: Batch) -> torch.Tensor:
        return super().__call__(logprobs.detach(), batch)


@component
class _FlatLoss(_Loss):
    """Has a gradient of 0."""

    def __call__(self, logprobs: torch.Tensor, batch: Batch) -> torch.Tensor:
        return super().__call__(logprobs * 0 + batch.old_logprobs, batch)


@component
class _UnknownAggregation(_Loss):
    """Is reduced in a way that nobody knows.

    Args:
        aggregation: How it is reduced.
    """

    aggregation: str = "mean"


@component
class _ScalarLoss(_Loss):
    """Reduces by itself."""

    def __call__(self, logprobs: torch.Tensor, batch: Batch) -> torch.Tensor:
        return super().__call__(logprobs, batch).mean()


@component
class _Attached(SamplerCorrection):
    """Weights with a gradient."""

    def __call__(self, batch: Batch) -> torch.Tensor:
        ratio = (batch.old_logprobs - batch.rollout_logprobs).masked_fill(~batch.mask, 0.0).exp()
        return ratio.masked_fill(~batch.mask, 0.0)


@component
class _Numbered(RolloutFilter):
    """Answers numbers of rows."""

    def __call__(self, scores: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
        return scores.argsort()[:4]


CAUGHT: list[tuple[type, str]] = [
    (_LossOfPads, r"masked slots: with nan there, the loss of row 1, token 1 is nan, not exactly 0"),
    (_GradientOfPads, r"masked slots: with nan there, the gradient of row 1, token 1 is nan, not exactly 0"),
    (_Whitening, r"the cut into micro-batches must change nothing, but rows \[0, 1, 2\] alone: row 0, token 0 is"),
    (_LossByRow, r"the order of rows must change nothing, but as \[5, 2, 7"),
    (_WritingLoss, r"arguments are not written to, but .* numbers of batch.advantages changed"),
    (_DetachedLoss, "gradient: the loss does not depend on logprobs"),
    (_FlatLoss, "gradient: it is 0 everywhere"),
    (_UnknownAggregation, "aggregation is 'mean'; must be one of token, sequence, constant"),
    (_ScalarLoss, r"shape: the loss must be a tensor \[8, 6\] of floats, it is \[\] torch.float32"),
    (_Attached, "gradient: a weight is a constant; detach it"),
    (_Numbered, "it must answer 8 bools"),
]

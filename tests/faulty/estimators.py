"""Advantage estimators that look at pads, at neighbours, or at what they did not ask for."""

from __future__ import annotations

import torch

from faulty.parts import _Estimator, component
from rlhf.types import Advantages, Scored


@component
class _OverPads(_Estimator):
    """Takes the mean over pads too."""

    def estimate(self, scored: Scored) -> torch.Tensor:
        return (super().estimate(scored) - scored.rewards.mean()).masked_fill(~scored.mask, 0.0)


@component
class _ByWidth(_Estimator):
    """Divides by the width of the batch."""

    def estimate(self, scored: Scored) -> torch.Tensor:
        return super().estimate(scored) / scored.mask.shape[1]


@component
class _FirstRow(_Estimator):
    """Takes the first response for the baseline."""

    def estimate(self, scored: Scored) -> torch.Tensor:
        return (super().estimate(scored) - scored.scores[0]).masked_fill(~scored.mask, 0.0)


@component
class _Unmasked(_Estimator):
    """Gives pads an advantage."""

    def estimate(self, scored: Scored) -> torch.Tensor:
        return super().estimate(scored) - 0.5


@component
class _Writing(_Estimator):
    """Centres the rewards in place."""

    def estimate(self, scored: Scored) -> torch.Tensor:
        scored.rewards.sub_(1.0)
        return super().estimate(scored)


@component
class _WritingOnPads(_Estimator):
    """Clears pads in place."""

    def estimate(self, scored: Scored) -> torch.Tensor:
        scored.rewards.masked_fill_(~scored.mask, 0.0)
        return super().estimate(scored)


@component
class _NoEpsilon(_Estimator):
    """Divides by a deviation that may be 0."""

    def estimate(self, scored: Scored) -> torch.Tensor:
        found = super().estimate(scored)
        return (found / scored.scores.std()).masked_fill(~scored.mask, 0.0)


@component
class _PerResponse(_Estimator):
    """One advantage per response."""

    def estimate(self, scored: Scored) -> torch.Tensor:
        return scored.scores


@component
class _Undeclared(_Estimator):
    """Reads values without saying so."""

    def estimate(self, scored: Scored) -> torch.Tensor:
        return super().estimate(scored) - scored.values


@component
class _Targets(_Estimator):
    """Gives a critic's targets that nobody asked for."""

    def __call__(self, scored: Scored) -> Advantages:
        found = self.estimate(scored)
        return Advantages(found, found)


CAUGHT: list[tuple[type, str]] = [
    (_OverPads, r"what pads hold \(nan\) must change nothing, the advantage: row 0, token 0 is nan, not"),
    (_ByWidth, r"padding must change nothing, but with 3 more columns of NaN, the advantage: row 0, token 0 is"),
    (_FirstRow, r"the order of rows must change nothing, but as \[5, 2, 7.*\], the advantage: row"),
    (_Unmasked, r"masked slots: the advantage of row 1, token 1 is -0.5, not exactly 0 \(20 of 48 numbers are wrong\)"),
    (_Writing, r"arguments are not written to, but 48 of 48 numbers of scored.rewards changed"),
    (_NoEpsilon, r"with groups whose responses are all worth the same, the advantage of row 0, token 0 is inf, not"),
    (_PerResponse, r"shape: advantages must be a tensor \[8, 6\] of floats, it is \[8\]"),
    (_Undeclared, r"it must answer from what its needs_… ask for .* it raised TypeError"),
    (_Targets, "returns must be None where no critic is needed"),
    (_WritingOnPads, r"arguments are not written to, but .* numbers of scored.rewards changed"),
]

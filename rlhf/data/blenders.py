"""The order in which the rows of several sources are drawn."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rlhf.errors import UserError
from rlhf.interfaces import Blender


def _permutation(size: int, *key: int) -> np.ndarray:
    return np.random.default_rng(key).permutation(size)


def _draws(source: int, rows: np.ndarray) -> np.ndarray:
    """[N, 2]: the given rows of one source."""
    return np.stack([np.full(len(rows), source), rows], axis=1).astype(np.int64)


def _interleave(draws: Sequence[np.ndarray]) -> np.ndarray:
    """Spreads each source's draws evenly over the whole: the k-th of n stands at (k + ½) / n."""
    at = np.concatenate([(np.arange(len(d)) + 0.5) / max(len(d), 1) for d in draws])
    return np.concatenate(draws)[np.argsort(at, kind="stable")]


@dataclass(frozen=True, kw_only=True)
class Concatenate(Blender):
    """One source after the other in config order, each shuffled: a curriculum."""

    def epoch(self, sizes: Mapping[str, int], *, seed: int, epoch: int) -> np.ndarray:
        rows = [_permutation(size, seed, epoch, source) for source, size in enumerate(sizes.values())]
        return np.concatenate([_draws(source, r) for source, r in enumerate(rows)])


@dataclass(frozen=True, kw_only=True)
class Proportional(Blender):
    """Every row of every source once, shuffled together."""

    def epoch(self, sizes: Mapping[str, int], *, seed: int, epoch: int) -> np.ndarray:
        draws = np.concatenate([_draws(source, np.arange(size)) for source, size in enumerate(sizes.values())])
        return draws[_permutation(len(draws), seed, epoch)]


@dataclass(frozen=True, kw_only=True)
class RoundRobin(Blender):
    """One row of each source in turn, each source shuffled, no row twice.

    Args:
        stop: ``first`` ends the epoch when the smallest source has no row left; ``all`` goes on with the others until
            every row has been drawn.
    """

    stop: Literal["first", "all"] = "first"

    def epoch(self, sizes: Mapping[str, int], *, seed: int, epoch: int) -> np.ndarray:
        limit = min(sizes.values()) if self.stop == "first" else max(sizes.values())
        rows = [_permutation(size, seed, epoch, source)[:limit] for source, size in enumerate(sizes.values())]
        draws = np.concatenate([_draws(source, r) for source, r in enumerate(rows)])
        turn = np.concatenate([np.arange(len(r)) for r in rows])
        return draws[np.argsort(turn, kind="stable")]


@dataclass(frozen=True, kw_only=True)
class Weighted(Blender):
    """Exact shares: of N draws a source of weight w gets N · w / Σw, evenly interleaved with the others.

    Shares are whole numbers by largest remainder. A source's rows are drawn in one permutation after the other, across
    epochs, so no row is drawn again before all others of its source have been.

    Args:
        weights: Weight of each source by its name, any positive unit.
        length: Draws in an epoch; None takes as many as the sources have rows together.
        repeat: Whether a source may be drawn more often than it has rows. False makes that an error, and then each
            epoch takes a fresh choice of rows, none of them twice.
    """

    weights: dict[str, float]
    length: int | None = None
    repeat: bool = True

    def __post_init__(self) -> None:
        if not self.weights:
            raise UserError("weights: none; give each source a positive weight")
        for name, weight in self.weights.items():
            if not 0 < weight < math.inf:
                raise UserError(f"weights.{name}: {weight}; must be positive (leave out a source to draw none of it)")
        if self.length is not None and self.length < 1:
            raise UserError(f"length: {self.length}; must be at least 1")

    def epoch(self, sizes: Mapping[str, int], *, seed: int, epoch: int) -> np.ndarray:
        quotas = self._quotas(sizes)
        draws = []
        for source, (name, size) in enumerate(sizes.items()):
            start = epoch * (quotas[name] if self.repeat else size)
            passes = range(start // size, -(-(start + quotas[name]) // size))
            rows = [_permutation(size, seed, source, number) for number in passes] or [np.arange(0)]
            offset = start - passes.start * size
            draws.append(_draws(source, np.concatenate(rows)[offset : offset + quotas[name]]))
        return _interleave(draws)

    def _quotas(self, sizes: Mapping[str, int]) -> dict[str, int]:
        if set(self.weights) != set(sizes):
            raise UserError(f"weights: {sorted(self.weights)} but the sources are {sorted(sizes)}; name each once")
        total, length = math.fsum(self.weights.values()), self.length or sum(sizes.values())
        exact = {name: length * self.weights[name] / total for name in sizes}
        quotas = {name: math.floor(share) for name, share in exact.items()}
        left = length - sum(quotas.values())  # rounded, so that equal remainders go by config order, not by float noise
        for name in sorted(sizes, key=lambda name: round(quotas[name] - exact[name], 9))[:left]:
            quotas[name] += 1
        for name, quota in quotas.items():
            if quota and not sizes[name]:
                raise UserError(f"weights.{name}: the source has no rows; leave it out")
            if quota > sizes[name] and not self.repeat:
                raise UserError(
                    f"weights.{name}: {quota} of {length} draws, but the source has {sizes[name]} rows; "
                    "set repeat: true, or lower its weight or the length"
                )
        return quotas

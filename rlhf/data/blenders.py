"""The order in which the rows of several sources are drawn."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from rlhf.errors import UserError, require
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


def _check_weights(weights: Mapping[str, float], where: str = "weights") -> None:
    if not weights:
        raise UserError(f"{where}: none; give each source a positive weight")
    for name, weight in weights.items():
        if not 0 < weight < math.inf:
            raise UserError(f"{where}.{name}: {weight}; must be positive (leave out a source to draw none of it)")


def _quotas(weights: Mapping[str, float], sizes: Mapping[str, int], length: int, where: str) -> dict[str, int]:
    """How many of ``length`` draws fall to each source: whole numbers by largest remainder, 0 without a weight."""
    total = math.fsum(weights.values())
    exact = {name: length * weights.get(name, 0.0) / total for name in sizes}
    quotas = {name: math.floor(share) for name, share in exact.items()}
    left = length - sum(quotas.values())  # rounded, so that equal remainders go by config order, not by float noise
    for name in sorted(sizes, key=lambda name: round(quotas[name] - exact[name], 9))[:left]:
        quotas[name] += 1
    for name, quota in quotas.items():
        if quota and not sizes[name]:
            raise UserError(f"{where}.{name}: the source has no rows; leave it out")
    return quotas


def _consecutive(source: int, size: int, start: int, count: int, seed: int) -> np.ndarray:
    """Draws ``start`` to ``start + count`` of a source whose rows come in one permutation after the other."""
    if not count:
        return _draws(source, np.arange(0))
    passes = range(start // size, -(-(start + count) // size))
    rows = np.concatenate([_permutation(size, seed, source, number) for number in passes])
    offset = start - passes.start * size
    return _draws(source, rows[offset : offset + count])


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
        _check_weights(self.weights)
        if self.length is not None and self.length < 1:
            raise UserError(f"length: {self.length}; must be at least 1")

    def check_sources(self, names: Collection[str]) -> None:
        if set(self.weights) != set(names):
            raise UserError(f"weights: {sorted(self.weights)} but the sources are {sorted(names)}; name each once")

    def epoch(self, sizes: Mapping[str, int], *, seed: int, epoch: int) -> np.ndarray:
        self.check_sources(sizes)
        length = self.length or sum(sizes.values())
        quotas = _quotas(self.weights, sizes, length, "weights")
        for name, quota in quotas.items():
            if quota > sizes[name] and not self.repeat:
                raise UserError(
                    f"weights.{name}: {quota} of {length} draws, but the source has {sizes[name]} rows; "
                    "set repeat: true, or lower its weight or the length"
                )
        return _interleave(
            [
                _consecutive(source, size, epoch * (quotas[name] if self.repeat else size), quotas[name], seed)
                for source, (name, size) in enumerate(sizes.items())
            ]
        )


@dataclass(frozen=True, kw_only=True)
class Temperature(Blender):
    """Exact shares p_i ∝ n_i^(1/T) of sources with n_i rows: between their sizes (T = 1) and equal shares (T → ∞).

    Quotas, order and repeats are those of ``Weighted``. Source: arXiv:1907.05019, section 4.2.

    Args:
        temperature: T. Above 1 small sources are drawn more often than their size, below 1 less often.
        length: Draws in an epoch; None takes as many as the sources have rows together.
    """

    temperature: float
    length: int | None = None

    def __post_init__(self) -> None:
        require(above=0, temperature=self.temperature)
        require(at_least=1, length=self.length)

    def epoch(self, sizes: Mapping[str, int], *, seed: int, epoch: int) -> np.ndarray:
        largest = max(sizes.values())  # shares of the largest: a small temperature makes powers that no float holds
        weights = {name: (size / largest) ** (1 / self.temperature) for name, size in sizes.items()}
        quotas = _quotas(weights, sizes, self.length or sum(sizes.values()), "sources")
        return _interleave(
            [
                _consecutive(source, size, epoch * quotas[name], quotas[name], seed)
                for source, (name, size) in enumerate(sizes.items())
            ]
        )


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """A part of a curriculum.

    Args:
        weights: Weight of each source by its name, any positive unit; sources that are not named are not drawn.
        until: Where it ends: up to 1 a share of the run, above 1 steps (batches drawn; of PPO that is iterations).
            Null for the end of the run, in the last one only.
    """

    weights: dict[str, float]
    until: float | None = None

    def __post_init__(self) -> None:
        _check_weights(self.weights)
        require(above=0, until=self.until)


@dataclass(frozen=True, kw_only=True)
class Curriculum(Blender):
    """Weights that change over the run: one lesson after the other, each with exact shares.

    Within a lesson sources are interleaved as by ``Weighted``; a source goes on in the next lesson where it was, so no
    row is drawn again before all others of its source have been. An epoch is as many draws as there are rows.

    Args:
        lessons: In the order of the run.
    """

    lessons: list[Lesson]

    def __post_init__(self) -> None:
        if not self.lessons:
            raise UserError("lessons: none; give at least one")
        *earlier, last = (lesson.until for lesson in self.lessons)
        if any(until is None for until in earlier):
            raise UserError(f"lessons: {earlier.index(None)} has no until, and others follow; say where it ends")
        if last is not None and last != 1:
            raise UserError(f"lessons: the last ends at {last}, but the run goes on; leave its until out")

    def check_sources(self, names: Collection[str]) -> None:
        _check_lessons([lesson.weights for lesson in self.lessons], names)

    def over(self, *, draws: int, batch_size: int) -> Blender:
        fixed = [self._place(lesson.until, draws, batch_size) for lesson in self.lessons[:-1]]
        ends = [0, *fixed, draws]
        if any(later <= earlier for earlier, later in pairwise(ends)):
            raise UserError(
                f"lessons: they end after {', '.join(map(str, ends[1:]))} of {draws} draws ({batch_size} a step); each "
                "must end behind the one before, and before the run does"
            )
        return _Planned([lesson.weights for lesson in self.lessons], ends)

    @staticmethod
    def _place(until: float | None, draws: int, batch_size: int) -> int:
        assert until is not None  # of the last lesson only
        return math.floor(until * draws + 0.5) if until <= 1 else math.floor(until * batch_size + 0.5)

    def epoch(self, sizes: Mapping[str, int], *, seed: int, epoch: int) -> np.ndarray:
        """An epoch taken for the whole run, until :meth:`over` says how long that is."""
        total = sum(sizes.values())
        return self.over(draws=total, batch_size=1).epoch(sizes, seed=seed, epoch=epoch)


def _check_lessons(weights: Sequence[Mapping[str, float]], names: Collection[str]) -> None:
    for number, lesson in enumerate(weights):
        if unknown := sorted(set(lesson) - set(names)):
            raise UserError(f"lessons.{number}.weights.{unknown[0]}: the sources are {', '.join(names)}")


class _Planned(Blender):
    """A curriculum whose lessons end after known numbers of draws; behind the last its weights go on, epoch by epoch.

    Args:
        weights: Of each lesson.
        ends: Draws after which each ends, a 0 before them.
    """

    def __init__(self, weights: Sequence[Mapping[str, float]], ends: Sequence[int]) -> None:
        self.weights, self.ends = weights, ends

    def epoch(self, sizes: Mapping[str, int], *, seed: int, epoch: int) -> np.ndarray:
        _check_lessons(self.weights, sizes)
        length = sum(sizes.values())
        first, behind = epoch * length, (epoch + 1) * length
        ends = [*self.ends]
        while ends[-1] < behind:
            ends.append(ends[-1] + length)
        drawn = dict.fromkeys(sizes, 0)
        parts = []
        for number, (start, end) in enumerate(pairwise(ends)):
            lesson = min(number, len(self.weights) - 1)
            quotas = _quotas(self.weights[lesson], sizes, end - start, f"lessons.{lesson}.weights")
            if start < behind and end > first:
                order = _interleave(
                    [
                        _consecutive(source, size, drawn[name], quotas[name], seed)
                        for source, (name, size) in enumerate(sizes.items())
                    ]
                )
                parts.append(order[max(first - start, 0) : behind - start])
            drawn = {name: count + quotas[name] for name, count in drawn.items()}
        return np.concatenate(parts)

"""Training examples as an endless, resumable stream; held-out ones as batches that are the same every time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar, overload

import numpy as np

from rlhf.data.examples import E, Examples
from rlhf.errors import UserError
from rlhf.interfaces import Blender

M = TypeVar("M")


class Stream(Generic[E]):
    """Draws examples in the blender's order, epoch after epoch.

    A batch may straddle two epochs, so every row is used and no batch is smaller than the others.

    Args:
        examples: What is drawn from.
        blender: The order.
        seed: Run seed: same seed, same order, on every rank.

    Attributes:
        epoch_length: Draws in an epoch.
        epoch: Number of the epoch that the next draw belongs to.
    """

    def __init__(self, examples: Examples[E], blender: Blender, *, seed: int) -> None:
        self.examples, self.blender, self.seed = examples, blender, seed
        self.epoch = 0
        self._position = 0
        self._names = list(examples.sizes)
        self._order = self._draw()
        self.epoch_length = len(self._order)
        if not self.epoch_length:
            raise UserError(f"blender: an epoch of {examples.sizes} has no rows; give every source rows")

    def _draw(self) -> np.ndarray:
        return self.blender.epoch(self.examples.sizes, seed=self.seed, epoch=self.epoch)

    def plan(self, *, draws: int, batch_size: int) -> None:
        """Says how many draws the run will make, and how many at a time, before the first of them."""
        self.blender = self.blender.over(draws=draws, batch_size=batch_size)
        self._order = self._draw()

    def next(self, n: int) -> list[E]:
        """The next n examples."""
        drawn: list[E] = []
        while len(drawn) < n:
            taken = self._order[self._position : self._position + n - len(drawn)]
            drawn += [self.examples[self._names[source], row] for source, row in taken.tolist()]
            self._position += len(taken)
            if self._position == len(self._order):
                self.epoch, self._position = self.epoch + 1, 0
                self._order = self._draw()
        return drawn

    def total_steps(self, epochs: float, batch_size: int) -> int:
        """Batches that draw every row ``epochs`` times: epochs · epoch length / batch size, rounded up once."""
        return math.ceil(round(epochs * self.epoch_length, 6) / batch_size)

    def state_dict(self) -> dict[str, Any]:
        """The exact position, and the sizes that it is a position in."""
        return {"epoch": self.epoch, "position": self._position, "seed": self.seed, "sizes": self.examples.sizes}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues where the state was taken.

        Raises:
            UserError: the data or the seed are others.
        """
        for name, mine in (("sizes", self.examples.sizes), ("seed", self.seed)):
            if state[name] != mine:
                raise UserError(f"data {name}: {mine}, but the checkpoint has {state[name]}; resume with the same data")
        self.epoch, self._position = state["epoch"], state["position"]
        self._order = self._draw()


class Batches(Sequence[M], Generic[M]):
    """All examples in order, in batches that are collated when they are asked for, so they need not fit in memory.

    Args:
        examples: What the batches are made of.
        size: Examples of a batch; the last may have fewer.
        collate: Makes a batch of a list of them.
    """

    def __init__(self, examples: Examples[Any], size: int, collate: Callable[[list[Any]], M]) -> None:
        self.examples, self.size, self.collate = examples, size, collate

    def __len__(self) -> int:
        return -(-len(self.examples) // self.size)

    @overload
    def __getitem__(self, at: int) -> M: ...
    @overload
    def __getitem__(self, at: slice) -> list[M]: ...
    def __getitem__(self, at: int | slice) -> M | list[M]:
        if isinstance(at, slice):
            return [self[number] for number in range(*at.indices(len(self)))]
        number = at + len(self) if at < 0 else at
        if not 0 <= number < len(self):
            raise IndexError(f"batch {at} of {len(self)}")
        return self.collate(list(self._examples(number * self.size, (number + 1) * self.size)))

    def _examples(self, start: int, end: int) -> Iterator[Any]:
        """The examples from ``start`` to before ``end``, counted over all sources."""
        for name, size in self.examples.sizes.items():
            for row in range(max(start, 0), min(end, size)):
                yield self.examples[name, row]
            start, end = start - size, end - size

"""Which cell comes next: stages that several cells need are made first, and nobody waits for one idly."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple


class Needs(NamedTuple):
    """A cell that waits.

    Attributes:
        name: Of the cell.
        keys: Of the stages that it would have to make, in their order.
    """

    name: str
    keys: tuple[str, ...]


def next_cell(waiting: Sequence[Needs], making: Collection[str]) -> str | None:
    """The cell to start now; None where each would only wait for another to make its next stage.

    First those that need nothing of what is being made, the one before others that can hand on its stages to most
    cells: made early, these keep every slot busy to the end. Where there is none, one that has something to do before
    it comes to a stage of others.

    Args:
        waiting: Cells that may start, in the order of the grid.
        making: Keys of the stages that running cells make, or are going to.
    """
    free = [cell for cell in waiting if not set(cell.keys) & set(making)]
    free = free or [cell for cell in waiting if not cell.keys or cell.keys[0] not in making]
    if not free:
        return None

    def serves(cell: Needs) -> int:
        return sum(1 for other in waiting if other is not cell and set(other.keys) & set(cell.keys))

    return max(free, key=serves).name  # the first of equal ones

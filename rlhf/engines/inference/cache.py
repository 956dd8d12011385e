"""Keys and values of many texts in blocks of one allocation.

A row is one text. It owns blocks of consecutive positions, which need not lie together; blocks of rows that have left
are given to others. Lower blocks are given out first, so that those in use lie near the beginning, where the attention
reads them in place (:mod:`~rlhf.engines.inference.attention`).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rlhf.engines.inference.shards import head_part
from rlhf.engines.inference.specs import DecoderSpec

BLOCK = 32
"""Positions of a block: small enough that few are left unused at a row's end, large enough for a matrix product."""
COMPACT_AT = 2
"""Blocks are moved together once they lie over this many times their number: the attention reads free ones in vain."""


class CacheFull(Exception):
    """More blocks are needed than are free; nothing has been changed."""


class KVCache:
    """Keys and values of all layers.

    Args:
        spec: The model.
        blocks: How many blocks; see :meth:`blocks_within`.
        tp: Size of the tensor-parallel group.
        rank: Which of the group.
        dtype: Of keys and values.
        device: Where they are.
        block: Positions of a block.

    Attributes:
        lengths: By row: how many positions it has.
        owner: [blocks] int64, the row of each block; −1: free.
        ordinal: [blocks] int64, which of its row's blocks it is.
        used: Every block from this one on is free.
        read: What its readers have worked out of where the blocks of some rows lie; emptied when that changes.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        blocks: int,
        *,
        tp: int = 1,
        rank: int = 0,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        block: int = BLOCK,
    ) -> None:
        attention = spec.layers[0].attention
        self.block = block
        self.shape = (len(head_part(attention, rank, tp).kv), block, attention.head_dim)
        self.layers = len(spec.layers)
        self.lengths: dict[int, int] = {}
        self.tables: dict[int, list[int]] = {}
        self.used = 0
        self.read: dict[tuple[int, ...], Any] = {}
        self._touched = 0
        self._free = list(range(blocks))
        self.owner = torch.full((blocks,), -1, device=device)
        self.ordinal = torch.zeros(blocks, dtype=torch.int64, device=device)
        self._store(self._allocate(blocks, dtype, device))

    @staticmethod
    def blocks_within(
        spec: DecoderSpec, budget: int, *, tp: int = 1, dtype: torch.dtype = torch.float32, block: int = BLOCK
    ) -> int:
        """How many blocks a number of bytes per rank holds, on the rank that needs most for one: all agree on it."""
        attention = spec.layers[0].attention
        heads = max(len(head_part(attention, rank, tp).kv) for rank in range(tp))
        return budget // (len(spec.layers) * 2 * heads * block * attention.head_dim * dtype.itemsize)

    def _allocate(self, blocks: int, dtype: torch.dtype, device: torch.device | str) -> Tensor:
        """[layers, 2, blocks, key-value heads, positions, width of a head], zero: a weight of 0 must meet no NaN."""
        return torch.zeros(self.layers, 2, blocks, *self.shape, dtype=dtype, device=device)

    def _store(self, storage: Tensor) -> None:
        self.storage = storage
        self._by_layer: list[tuple[Tensor, Tensor]] = [(both[0], both[1]) for both in storage]

    @property
    def bytes(self) -> int:
        """Memory of keys and values."""
        return self.storage.numel() * self.storage.element_size()

    @property
    def blocks(self) -> int:
        """How many there are."""
        return self.storage.shape[2]

    @property
    def free(self) -> int:
        """How many of them no row owns."""
        return len(self._free)

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a layer, [blocks, key-value heads, positions, width of a head] each."""
        return self._by_layer[index]

    def open(self) -> int:
        """A new row without positions."""
        row = next(number for number in range(len(self.lengths) + 1) if number not in self.lengths)
        self.lengths[row], self.tables[row] = 0, []
        return row

    def needed(self, rows: Sequence[int], counts: Sequence[int]) -> int:
        """How many more blocks these rows need for so many more positions."""
        ends = (self.lengths[row] + count for row, count in zip(rows, counts, strict=True))
        return sum(-(-end // self.block) - len(self.tables[row]) for row, end in zip(rows, ends, strict=True))

    def extend(self, rows: Sequence[int], counts: Sequence[int]) -> None:
        """Gives rows room for so many more positions, which the caller then writes; may move blocks together first.

        Args:
            rows: Distinct open rows.
            counts: New positions of each.

        Raises:
            CacheFull: there are not enough blocks.
        """
        wanted = self.needed(rows, counts)
        if wanted > self.free:
            raise CacheFull(f"{wanted} blocks of {self.block} positions needed, {self.free} of {self.blocks} free")
        if self.used > COMPACT_AT * (self.blocks - self.free):
            self.compact()
        given, owners, ordinals = [], [], []
        for row, count in zip(rows, counts, strict=True):
            self.lengths[row] += count
            table = self.tables[row]
            while len(table) * self.block < self.lengths[row]:
                given.append(heapq.heappop(self._free))
                owners.append(row)
                ordinals.append(len(table))
                table.append(given[-1])
        if not given:
            return
        self.read.clear()
        device = self.owner.device
        self.owner[given], self.ordinal[given] = (torch.tensor(values, device=device) for values in (owners, ordinals))
        if worn := [block for block in given if block < self._touched]:  # what a row left may not even be finite
            self.storage[:, :, worn] = 0
        self.used = max(self.used, max(given) + 1)
        self._touched = max(self._touched, self.used)

    def fork(self, row: int) -> int:
        """A new row with a copy of what another holds.

        Raises:
            CacheFull: there are not enough blocks.
        """
        new = self.open()
        try:
            self.extend([new], [self.lengths[row]])
        except CacheFull:
            self.close(new)
            raise
        self.storage[:, :, self.tables[new]] = self.storage[:, :, self.tables[row]]
        return new

    def close(self, row: int) -> None:
        """Takes a row out; its blocks are free."""
        del self.lengths[row]
        blocks = self.tables.pop(row)
        if not blocks:
            return
        self.read.clear()
        self.owner[blocks] = -1
        for block in blocks:
            heapq.heappush(self._free, block)
        held = [block for table in self.tables.values() for block in table]
        self.used = max(held, default=-1) + 1

    def compact(self) -> None:
        """Moves the blocks in use to the beginning, in their order, which copies those that move."""
        self.resize(self.blocks)

    def resize(self, blocks: int) -> None:
        """Another number of blocks, for rows as they are; those in use are moved to the beginning.

        Raises:
            CacheFull: fewer than are in use.
        """
        held = sorted(block for table in self.tables.values() for block in table)
        if blocks < len(held):
            raise CacheFull(f"{len(held)} blocks are in use, {blocks} are asked for")
        self.read.clear()
        moved = {old: new for new, old in enumerate(held)}
        if blocks == self.blocks:
            for old, new in moved.items():  # ascending, and new ≤ old: nothing is overwritten before it has moved
                if old != new:
                    self.storage[:, :, new] = self.storage[:, :, old]
        else:
            storage = self._allocate(blocks, self.storage.dtype, self.storage.device)
            storage[:, :, : len(held)] = self.storage[:, :, held]
            self._store(storage)
            self._touched = len(held)
        owner, ordinal = self.owner[held], self.ordinal[held]
        self.owner, self.ordinal = self.owner.new_full((blocks,), -1), self.ordinal.new_zeros(blocks)
        self.owner[: len(held)], self.ordinal[: len(held)] = owner, ordinal
        self.tables = {row: [moved[block] for block in table] for row, table in self.tables.items()}
        self._free, self.used = list(range(len(held), blocks)), len(held)

"""Attention of new tokens to the blocks of their rows.

Rows with one new token, the usual case, are answered together: scores of every used block come from one batched
product over the cache as it lies, which copies no key and no value and does no work for padding; only scores, which are
smaller by the width of a head, are laid out by row for the softmax. Rows with several new tokens are padded to those of
about their length.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from einops import rearrange
from torch import Tensor
from torch.nn import functional as F

from rlhf.engines.inference.cache import KVCache
from rlhf.engines.inference.specs import Attention

SCORES = 1 << 22
"""Scores of a head that are made at a time, unless a single row has more: bounds memory, not work."""


class Step:
    """One call: which tokens belong to which row, and where their keys and values go.

    Args:
        cache: Extended already by the new positions.
        rows: R open rows.
        counts: New tokens of each, one after another in the flat layout of N tokens.

    Attributes:
        positions: [N] int64 of the new tokens.
        last: [R] int64, the last token of each row.
        singles: Rows with one new token.
        groups: The others.
    """

    def __init__(self, cache: KVCache, rows: Sequence[int], counts: Sequence[int]) -> None:
        self.cache = cache
        self.device = device = cache.storage.device
        ends = [cache.lengths[row] for row in rows]
        places = [position for end, count in zip(ends, counts, strict=True) for position in range(end - count, end)]
        tables = [cache.tables[row] for row, count in zip(rows, counts, strict=True) for _ in range(count)]
        blocks = [table[at // cache.block] for table, at in zip(tables, places, strict=True)]
        self.positions, owned = torch.tensor([places, blocks], device=device)
        heads = torch.arange(cache.shape[0], device=device)
        keys = ((owned.unsqueeze(1) * cache.shape[0] + heads) * cache.block).add_(
            (self.positions % cache.block).unsqueeze(1)
        )
        self._slots = torch.cat([keys, keys + cache.blocks * cache.shape[0] * cache.block], dim=1).flatten()
        starts = [0]
        for count in counts:
            starts.append(starts[-1] + count)
        self.last = torch.tensor(starts[1:], device=device) - 1
        one = [index for index, count in enumerate(counts) if count == 1]
        self.singles = Singles(cache, [rows[index] for index in one], [starts[index] for index in one]) if one else None
        self.groups = [
            Group.of(self, [rows[i] for i in group], [starts[i] for i in group], [counts[i] for i in group])
            for group in _alike(counts, ends)
        ]

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Puts the [N, key-value heads, width of a head] of the new tokens in their places."""
        width = keys.shape[-1]
        new = torch.cat([keys, values], dim=1).view(-1, width)
        self.cache.storage[layer].view(-1, width).index_copy_(0, self._slots, new)


def _alike(counts: Sequence[int], ends: Sequence[int]) -> Iterator[list[int]]:
    """Rows with several new tokens, in groups whose padding is at most as much as their tokens."""
    pending = sorted((i for i, count in enumerate(counts) if count > 1), key=lambda i: -counts[i])
    while pending:
        longest, most = counts[pending[0]], max(ends[i] for i in pending)
        room = max(1, SCORES // (longest * most))
        group = [i for i in pending[:room] if 2 * counts[i] >= longest]
        pending = pending[len(group) :]
        yield group


class Layout:
    """Where the blocks of S rows with one new token each are; the same until blocks change hands.

    Attributes:
        table: [S, blocks] int64.
        blocks: The same, flattened.
        own: [S, 1, blocks] float32, 1 for the blocks of a row, 0 where the table repeats its last.
        query_of_block: [used blocks] int64, which of the S rows; that of no row: 0.
    """

    def __init__(self, cache: KVCache, rows: Sequence[int]) -> None:
        device = cache.storage.device
        self.table = _table(cache, rows)
        self.blocks = self.table.flatten()
        number = torch.full((max(cache.lengths) + 2,), len(rows), device=device)  # the last entry is of free blocks
        number[list(rows)] = torch.arange(len(rows), device=device)
        row_of_block = number[cache.owner[: cache.used]]
        self._theirs = row_of_block < len(rows)
        self.query_of_block = row_of_block.where(self._theirs, 0)
        self._ordinal = cache.ordinal[: cache.used].where(self._theirs, 0)
        counts = torch.tensor([len(cache.tables[row]) for row in rows], device=device)
        self.own = (torch.arange(self.table.shape[1], device=device) < counts.unsqueeze(1)).float().unsqueeze(1)
        self._orders: dict[int, tuple[Tensor, Tensor]] = {}

    @classmethod
    def of(cls, cache: KVCache, rows: Sequence[int]) -> Layout:
        """That of the last call, where blocks lie as they did."""
        key = tuple(rows)
        if key not in cache.read:
            cache.read[key] = cls(cache, rows)
        return cache.read[key]

    def orders(self, heads: int) -> tuple[Tensor, Tensor]:
        """[S · heads · blocks] and [used blocks · heads] int64: what to pick to go from scores, by block and head, to
        scores by row, head and block, and what to go back; for a block of no row something that is there.
        """
        if heads not in self._orders:
            head = torch.arange(heads, device=self.table.device)
            by_row = self.table.unsqueeze(1) * heads + head.unsqueeze(1)
            by_block = (self.query_of_block.unsqueeze(1) * heads + head) * self.table.shape[1]
            self._orders[heads] = by_row.flatten(), (by_block + self._ordinal.unsqueeze(1)).flatten()
        return self._orders[heads]


class Singles:
    """S rows with one new token each.

    Attributes:
        tokens: [S] int64, their places among the new tokens.
        layout: Where their blocks are.
    """

    def __init__(self, cache: KVCache, rows: list[int], tokens: list[int]) -> None:
        device = cache.storage.device
        self.tokens = torch.tensor(tokens, device=device)
        self.layout = Layout.of(cache, rows)
        self._places = torch.arange(self.layout.table.shape[1] * cache.block, device=device)
        self._lengths = torch.tensor([cache.lengths[row] for row in rows], device=device).unsqueeze(1)
        self._unseen: dict[int | None, Tensor] = {}

    def unseen(self, window: int | None, dtype: torch.dtype) -> Tensor:
        """[S, 1, places], −∞ for places among the scores of a row that its token does not see, 0 for the others."""
        if window not in self._unseen:
            hidden = self._places >= self._lengths
            if window is not None:
                hidden |= self._places < self._lengths - window
            self._unseen[window] = torch.zeros_like(hidden, dtype=dtype).masked_fill_(hidden, -math.inf).unsqueeze(1)
        return self._unseen[window]


@dataclass
class Group:
    """G rows with up to n new tokens each; shorter ones repeat their last, whose answer is then made several times.

    Attributes:
        tokens: [G, n] int64, their places among the new tokens.
        positions: [G, n] int64.
        table: [G, blocks] int64.
    """

    tokens: Tensor
    positions: Tensor
    table: Tensor
    _seen: dict[int | None, Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, step: Step, rows: list[int], starts: list[int], counts: list[int]) -> Group:
        """The group of rows whose new tokens begin at ``starts``."""
        first, number = (torch.tensor(values, device=step.device).unsqueeze(1) for values in (starts, counts))
        tokens = first + torch.arange(max(counts), device=step.device).minimum(number - 1)
        return cls(tokens, step.positions[tokens], _table(step.cache, rows))

    def seen(self, window: int | None, block: int) -> Tensor:
        """[G, 1, n, places] bool: what each token sees of its row's blocks."""
        if window not in self._seen:
            places = torch.arange(self.table.shape[1] * block, device=self.table.device)
            own = self.positions.unsqueeze(-1)
            seen = places <= own
            if window is not None:
                seen &= places > own - window
            self._seen[window] = seen.unsqueeze(1)
        return self._seen[window]


def _table(cache: KVCache, rows: Sequence[int]) -> Tensor:
    """[rows, blocks] int64; shorter rows repeat their last block, so that none reads what is another's."""
    tables = [cache.tables[row] for row in rows]
    width = max(map(len, tables))
    filled = [table + table[-1:] * (width - len(table)) for table in tables]
    return torch.tensor(filled, device=cache.storage.device)


def attend(attention: Attention, layer: int, step: Step, queries: Tensor) -> Tensor:
    """What the new tokens read, [N, heads · width of a head], once their keys and values are written.

    Args:
        attention: Of the layer.
        layer: Its number.
        step: The call.
        queries: [N, heads, width of a head], rotated.
    """
    keys, values = step.cache.layer(layer)
    if step.singles is not None and not step.groups:
        return _attend_singles(attention, step.singles, queries, keys, values, step.cache.used)
    found = queries.new_empty(len(queries), queries[0].numel())
    if step.singles is not None:
        tokens = step.singles.tokens
        found[tokens] = _attend_singles(attention, step.singles, queries[tokens], keys, values, step.cache.used)
    for group in step.groups:
        found[group.tokens] = _attend_group(attention, group, queries[group.tokens], keys, values)
    return found


def _attend_singles(
    attention: Attention, singles: Singles, queries: Tensor, keys: Tensor, values: Tensor, used: int
) -> Tensor:
    """[S, heads · width of a head] from the queries [S, heads, width of a head] and the layer's blocks."""
    keys, values, layout = keys[:used], values[:used], singles.layout
    _, groups, block, width = keys.shape
    rows, blocks = layout.table.shape
    by_row, by_block = layout.orders(queries.shape[1])
    each = queries.index_select(0, layout.query_of_block).view(used * groups, -1, width)
    scores = torch.baddbmm(each.new_zeros(()), each, keys.flatten(0, 1).mT, beta=0, alpha=attention.scale)
    scores = scores.view(-1, block).index_select(0, by_row).view(rows, -1, blocks * block)
    weights = _weights(attention, scores, singles.unseen(attention.window, scores.dtype))
    weights = weights.view(-1, block).index_select(0, by_block).view(used * groups, -1, block)
    read = torch.bmm(weights, values.flatten(0, 1)).view(used, -1).index_select(0, layout.blocks)
    # Sums over a row's blocks are fp32, and see no other row's: what a row left may not even be finite.
    found = torch.bmm(layout.own, read.view(rows, blocks, -1).float())
    return found.squeeze(1).to(queries.dtype)


def _attend_group(attention: Attention, group: Group, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """[G, n, heads · width of a head] from the queries [G, n, heads, width of a head] and the layer's blocks."""
    seen = group.seen(attention.window, keys.shape[2])
    keys, values = (
        rearrange(stored[group.table], "row block kv place width -> row kv (block place) width")
        for stored in (keys, values)
    )
    queries = queries.transpose(1, 2)
    if attention.softcap is None:
        read = F.scaled_dot_product_attention(
            queries, keys, values, attn_mask=seen, scale=attention.scale, enable_gqa=keys.shape[1] != queries.shape[1]
        )
    else:
        kv = keys.shape[1]
        grouped = rearrange(queries, "row (kv group) token width -> (row kv) (group token) width", kv=kv)
        scores = torch.baddbmm(
            queries.new_zeros(()), grouped, keys.flatten(0, 1).mT, beta=0, alpha=attention.scale
        ).view(*queries.shape[:3], -1)
        unseen = torch.zeros_like(seen, dtype=scores.dtype).masked_fill_(~seen, -math.inf)
        weights = _weights(attention, scores, unseen).view(*grouped.shape[:2], -1)
        read = torch.bmm(weights, values.flatten(0, 1)).view_as(queries)
    return rearrange(read, "row head token width -> row token (head width)")


def _weights(attention: Attention, scores: Tensor, unseen: Tensor) -> Tensor:
    """Softmax over the last dimension, in fp32, in the dtype of the scores, which are written over.

    Args:
        attention: Of the layer.
        scores: Before its soft cap.
        unseen: Added to them: −∞ for what is not seen.
    """
    if attention.softcap is not None:
        scores = torch.tanh(scores / attention.softcap) * attention.softcap
    return scores.add_(unseen).softmax(-1, dtype=torch.float32).to(scores.dtype)

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
        self._slots = (
            ((owned.unsqueeze(1) * cache.shape[0] + heads) * cache.block)
            .add_((self.positions % cache.block).unsqueeze(1))
            .flatten()
        )
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
        for stored, new in zip(self.cache.layer(layer), (keys, values), strict=True):
            width = new.shape[-1]
            stored.view(-1, width).index_copy_(0, self._slots, new.reshape(-1, width))


def _alike(counts: Sequence[int], ends: Sequence[int]) -> Iterator[list[int]]:
    """Rows with several new tokens, in groups whose padding is at most as much as their tokens."""
    pending = sorted((i for i, count in enumerate(counts) if count > 1), key=lambda i: -counts[i])
    while pending:
        longest, most = counts[pending[0]], max(ends[i] for i in pending)
        room = max(1, SCORES // (longest * most))
        group = [i for i in pending[:room] if 2 * counts[i] >= longest]
        pending = pending[len(group) :]
        yield group


class Singles:
    """S rows with one new token each, and where their blocks are.

    Attributes:
        tokens: [S] int64, their places among the new tokens.
        table: [S, blocks] int64.
        blocks: The same, flattened.
        own: [S, 1, blocks] float32, 1 for the blocks of a row, 0 where the table repeats its last.
        query_of_block: [used blocks] int64, which of the S rows; that of no row: 0.
        place_of_block: [used blocks] int64, in the flattened table; that of no row: 0.
    """

    def __init__(self, cache: KVCache, rows: list[int], tokens: list[int]) -> None:
        device = cache.storage.device
        self.block = cache.block
        self.tokens = torch.tensor(tokens, device=device)
        self.table = _table(cache, rows)
        self.blocks = self.table.flatten()
        self._lengths = torch.tensor([cache.lengths[row] for row in rows], device=device).unsqueeze(1)
        number = torch.full((max(cache.lengths) + 2,), len(rows), device=device)  # the last entry is of free blocks
        number[rows] = torch.arange(len(rows), device=device)
        row_of_block = number[cache.owner[: cache.used]]
        theirs = row_of_block < len(rows)
        self.query_of_block = row_of_block.where(theirs, 0)
        place = row_of_block * self.table.shape[1] + cache.ordinal[: cache.used]
        self.place_of_block = place.where(theirs, 0)
        counts = torch.tensor([len(cache.tables[row]) for row in rows], device=device)
        self.own = (torch.arange(self.table.shape[1], device=device) < counts.unsqueeze(1)).float().unsqueeze(1)
        self._hidden: dict[int | None, Tensor] = {}

    def hidden(self, window: int | None) -> Tensor:
        """[S, 1, places] bool: places among the scores of a row that its token does not see."""
        if window not in self._hidden:
            places = torch.arange(self.table.shape[1] * self.block, device=self.table.device)
            unseen = places >= self._lengths
            if window is not None:
                unseen |= places < self._lengths - window
            self._hidden[window] = unseen.unsqueeze(1)
        return self._hidden[window]


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
    keys, values = keys[:used], values[:used]
    _, groups, block, width = keys.shape
    rows, blocks = singles.table.shape
    each = queries.reshape(rows, -1).index_select(0, singles.query_of_block).view(used * groups, -1, width)
    scores = torch.baddbmm(each.new_zeros(()), each, keys.flatten(0, 1).mT, beta=0, alpha=attention.scale)
    scores = scores.view(used, -1).index_select(0, singles.blocks)
    scores = scores.view(rows, blocks, -1, block).transpose(1, 2).flatten(2)  # row, head, block and place
    weights = _weights(attention, scores, singles.hidden(attention.window))
    weights = weights.view(rows, -1, blocks, block).transpose(1, 2).reshape(rows * blocks, -1)
    weights = weights.index_select(0, singles.place_of_block).view(used * groups, -1, block)
    read = torch.bmm(weights, values.flatten(0, 1)).view(used, -1).index_select(0, singles.blocks)
    # Sums over a row's blocks are fp32, and see no other row's: what a row left may not even be finite.
    found = torch.bmm(singles.own, read.view(rows, blocks, -1).float())
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
        weights = _weights(attention, scores, ~seen).view(*grouped.shape[:2], -1)
        read = torch.bmm(weights, values.flatten(0, 1)).view_as(queries)
    return rearrange(read, "row head token width -> row token (head width)")


def _weights(attention: Attention, scores: Tensor, hidden: Tensor) -> Tensor:
    """Softmax over the last dimension, in fp32, in the dtype of the scores."""
    if attention.softcap is not None:
        scores = torch.tanh(scores / attention.softcap) * attention.softcap
    return scores.masked_fill(hidden, -math.inf).softmax(-1, dtype=torch.float32).to(scores.dtype)

"""Attention of new tokens to the blocks of their rows.

Rows with one new token, the usual case, are answered together: scores of every used block come from one batched
product over the cache as it lies, which copies no key and no value and does no work for padding; only scores, which are
smaller by the width of a head, are laid out by row for the softmax. Rows with several new tokens are answered one by
one: their time goes into the matrices around.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from einops import rearrange
from torch import Tensor
from torch.nn import functional as F

from rlhf.engines.inference.cache import KVCache
from rlhf.engines.inference.specs import Attention


class Step:
    """One call: which tokens belong to which row, and where their keys and values go.

    Args:
        cache: Extended already by the new positions.
        rows: R open rows.
        counts: New tokens of each, one after another in the flat layout of N tokens.

    Attributes:
        positions: [N] int64 of the new tokens.
        last: [R] int64, the last token of each row.
        single: [S] int64, tokens of rows that have one.
    """

    def __init__(self, cache: KVCache, rows: Sequence[int], counts: Sequence[int]) -> None:
        device = cache.storage.device
        self.cache = cache
        ends = [cache.lengths[row] for row in rows]
        places = [position for end, count in zip(ends, counts, strict=True) for position in range(end - count, end)]
        tables = [cache.tables[row] for row, count in zip(rows, counts, strict=True) for _ in range(count)]
        slots = [table[at // cache.block] for table, at in zip(tables, places, strict=True)]
        self.positions, blocks = torch.tensor([places, slots], device=device)
        heads = torch.arange(cache.shape[0], device=device)
        self._slots = (
            ((blocks.unsqueeze(1) * cache.shape[0] + heads) * cache.block)
            .add_((self.positions % cache.block).unsqueeze(1))
            .flatten()
        )
        starts = [0]
        for count in counts:
            starts.append(starts[-1] + count)
        self.last = torch.tensor(starts[1:], device=device) - 1
        one = [index for index, count in enumerate(counts) if count == 1]
        self.all_single = len(one) == len(rows)
        self.single = torch.tensor([starts[index] for index in one], dtype=torch.int64, device=device)
        self.several = [
            (starts[index], starts[index + 1], rows[index]) for index, count in enumerate(counts) if count > 1
        ]
        if one:
            self._lay_out([rows[index] for index in one])

    def _lay_out(self, rows: list[int]) -> None:
        """Where the blocks of rows with one token stand among the scores of their row."""
        cache, device = self.cache, self.cache.storage.device
        tables = [cache.tables[row] for row in rows]
        width = max(map(len, tables))
        self.table = torch.tensor([table + [0] * (width - len(table)) for table in tables], device=device)
        self._lengths = torch.tensor([cache.lengths[row] for row in rows], device=device).unsqueeze(1)
        number = torch.full((max(cache.lengths) + 2,), len(rows), device=device)  # the last entry is of free blocks
        number[rows] = torch.arange(len(rows), device=device)
        self.row_of_block = number[cache.owner[: cache.used]]
        theirs = self.row_of_block < len(rows)
        self.query_of_block = self.row_of_block.where(theirs, 0)
        self.place_of_block = (self.row_of_block * width + cache.ordinal[: cache.used]).where(theirs, 0)
        self._hidden: dict[int | None, Tensor] = {}

    def hidden(self, window: int | None) -> Tensor:
        """[S, places] bool: places among the scores of a row that its token does not see."""
        if window not in self._hidden:
            places = torch.arange(self.table.shape[1] * self.cache.block, device=self.table.device)
            unseen = places >= self._lengths
            if window is not None:
                unseen |= places < self._lengths - window
            self._hidden[window] = unseen
        return self._hidden[window]

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Puts the [N, key-value heads, width of a head] of the new tokens in their places."""
        for stored, new in zip(self.cache.layer(layer), (keys, values), strict=True):
            width = new.shape[-1]
            stored.view(-1, width).index_copy_(0, self._slots, new.reshape(-1, width))


def attend(attention: Attention, layer: int, step: Step, queries: Tensor) -> Tensor:
    """What the new tokens read, [N, heads · width of a head], once their keys and values are written.

    Args:
        attention: Of the layer.
        layer: Its number.
        step: The call.
        queries: [N, heads, width of a head], rotated.
    """
    if step.all_single:
        return _attend_singles(attention, layer, step, queries)
    found = queries.new_empty(len(queries), queries[0].numel())
    if len(step.single):
        found[step.single] = _attend_singles(attention, layer, step, queries[step.single])
    for start, end, row in step.several:
        found[start:end] = _attend_row(attention, layer, step, queries[start:end], row)
    return found


def _attend_singles(attention: Attention, layer: int, step: Step, queries: Tensor) -> Tensor:
    """[S, heads · width of a head] from the [S, heads, width of a head] of rows with one new token each."""
    keys, values = (stored[: step.cache.used] for stored in step.cache.layer(layer))
    used, groups, block, width = keys.shape
    rows, blocks = step.table.shape
    each = queries.view(rows, groups, -1, width)[step.query_of_block].flatten(0, 1)  # [used · groups, group, width]
    scores = torch.baddbmm(each.new_zeros(()), each, keys.flatten(0, 1).transpose(1, 2), beta=0, alpha=attention.scale)
    scores = scores.view(used, groups, -1, block)[step.table]
    scores = rearrange(scores, "row block kv group place -> row (kv group) (block place)")
    weights = _weights(attention, scores, step.hidden(attention.window).unsqueeze(1))
    weights = rearrange(weights, "row (kv group) (block place) -> (row block) kv group place", kv=groups, block=blocks)
    read = torch.bmm(weights[step.place_of_block].flatten(0, 1), values.flatten(0, 1)).view(used, -1)
    # Sums over a row's blocks are fp32; those of other rows' blocks fall into a row of their own.
    found = torch.zeros(rows + 1, read.shape[1], dtype=torch.float32, device=read.device)
    return found.index_add_(0, step.row_of_block, read.float())[:rows].to(queries.dtype)


def _attend_row(attention: Attention, layer: int, step: Step, queries: Tensor, row: int) -> Tensor:
    """[n, heads · width of a head] from the [n, heads, width of a head] of the last n tokens of one row."""
    cache = step.cache
    length, new = cache.lengths[row], len(queries)
    table = cache.tables[row]
    keys, values = (
        rearrange(stored[table], "block kv place width -> kv (block place) width")[:, :length]
        for stored in cache.layer(layer)
    )
    places = torch.arange(length, device=queries.device)
    own = places[length - new :].unsqueeze(1)
    seen = places <= own
    if attention.window is not None:
        seen &= places > own - attention.window
    queries = queries.transpose(0, 1)
    if attention.softcap is None:
        read = F.scaled_dot_product_attention(
            queries.unsqueeze(0), keys.unsqueeze(0), values.unsqueeze(0), attn_mask=seen, scale=attention.scale,
            enable_gqa=len(keys) != len(queries),
        )[0]  # fmt: skip
    else:
        grouped = queries.reshape(len(keys), -1, queries.shape[-1])  # a group's queries under one another
        scores = torch.baddbmm(queries.new_zeros(()), grouped, keys.transpose(1, 2), beta=0, alpha=attention.scale)
        weights = _weights(attention, scores.view(len(queries), new, length), ~seen)
        read = torch.bmm(weights.view(len(keys), -1, length), values).view_as(queries)
    return read.transpose(0, 1).flatten(1)


def _weights(attention: Attention, scores: Tensor, hidden: Tensor) -> Tensor:
    """Softmax over the last dimension, in fp32, in the dtype of the scores."""
    if attention.softcap is not None:
        scores = torch.tanh(scores / attention.softcap) * attention.softcap
    return scores.masked_fill(hidden, -math.inf).softmax(-1, dtype=torch.float32).to(scores.dtype)

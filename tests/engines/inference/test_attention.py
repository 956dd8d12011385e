"""Attention to blocks by hand: two query heads on one key-value head of width 1, two positions a block."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from decoders import config_of

from rlhf.engines.inference.attention import Step, attend
from rlhf.engines.inference.cache import KVCache
from rlhf.engines.inference.families import spec_of

SPEC = spec_of(config_of("llama"))
ATTENTION = dataclasses.replace(SPEC.layers[0].attention, heads=2, kv_heads=1, head_dim=1, scale=1.0)


def cache() -> KVCache:
    layer = dataclasses.replace(SPEC.layers[0], attention=ATTENTION)
    return KVCache(dataclasses.replace(SPEC, layers=(layer,)), 8, block=2)


def read(held: KVCache, new: dict[int, list[tuple[float, float]]], queries: list[list[float]], **settings: Any):
    """Writes new (key, value) of rows, and answers what their tokens read: a list of two numbers each."""
    counts = [len(pairs) for pairs in new.values()]
    held.extend(list(new), counts)
    step = Step(held, list(new), counts)
    keys, values = torch.tensor([pair for pairs in new.values() for pair in pairs]).view(-1, 1, 1, 2).unbind(-1)
    step.write(0, keys, values)
    attention = dataclasses.replace(ATTENTION, **settings)
    return attend(attention, 0, step, torch.tensor(queries).unsqueeze(-1)).tolist()


LOG2 = math.log(2)


def test_a_row_reads_its_own_blocks_by_the_weights_of_its_scores():
    held = cache()
    first, second = held.open(), held.open()
    # One token sees itself; the second of a row both. A query of 0 takes the mean.
    found = read(held, {first: [(0.0, 4.0), (LOG2, 8.0)]}, [[1.0, 0.0], [0.0, 0.0]])
    assert found == [pytest.approx([4, 4]), pytest.approx([6, 6])]
    # Scores 0, log 2, 0 are weights 1, 2, 1 of 4: (4 + 16 + 16) / 4 = 9; the mean is 28 / 3. The other row has its own.
    found = read(held, {first: [(0.0, 16.0)], second: [(3.0, 5.0)]}, [[1.0, 0.0], [1.0, 0.0]])
    assert found == [pytest.approx([9, 28 / 3]), pytest.approx([5, 5])]


@pytest.mark.parametrize("at_once", [True, False])
def test_a_window_hides_what_lies_before_it_however_many_tokens_are_new(at_once):
    held = cache()
    row = held.open()
    pairs, query = [(0.0, 4.0), (LOG2, 8.0), (0.0, 16.0)], [1.0, 0.0]
    if at_once:
        found = read(held, {row: pairs}, [query] * 3, window=2)
    else:
        found = [read(held, {row: [pair]}, [query], window=2)[0] for pair in pairs]
    # Two are seen: 4; weights 1, 2 of 4, 8: 20 / 3, mean 6; weights 2, 1 of 8, 16: 32 / 3, mean 12.
    assert found == [pytest.approx([4, 4]), pytest.approx([20 / 3, 6]), pytest.approx([32 / 3, 12])]


@pytest.mark.parametrize("at_once", [True, False])
def test_a_soft_cap_bounds_scores(at_once):
    held = cache()
    row = held.open()
    pairs, settings = [(1e6, 3.0), (0.0, 9.0)], {"softcap": LOG2}
    if at_once:
        found = read(held, {row: pairs}, [[1.0, 1.0]] * 2, **settings)[-1]
    else:
        found = [read(held, {row: [pair]}, [[1.0, 1.0]], **settings)[0] for pair in pairs][-1]
    assert found == pytest.approx([5, 5])  # log 2 · tanh(10⁶ / log 2) = log 2: weights 2, 1 of 3, 9


def test_rows_of_one_token_and_of_many_in_one_call_read_what_they_read_alone():
    held = cache()
    rows = [held.open() for _ in range(4)]
    new = {rows[0]: [(0.0, 1.0)] * 5, rows[1]: [(1.0, 2.0)], rows[2]: [(2.0, 3.0), (0.0, 6.0)], rows[3]: [(0.0, 7.0)]}
    queries = [[float(i % 3), 0.5] for i in range(9)]
    together, start = read(held, new, queries), 0
    for pairs in new.values():
        alone = cache()
        found = read(alone, {alone.open(): pairs}, queries[start : start + len(pairs)])
        assert found == [pytest.approx(tokens) for tokens in together[start : start + len(pairs)]]
        start += len(pairs)


def test_the_last_token_of_each_row_and_positions_count_on():
    held = cache()
    a, b = held.open(), held.open()
    held.extend([a], [3])
    held.extend([a, b], [2, 1])
    step = Step(held, [a, b], [2, 1])
    assert step.positions.tolist() == [3, 4, 0] and step.last.tolist() == [1, 2]

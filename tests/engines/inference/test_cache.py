"""Blocks are given, taken back and moved; what rows hold stays what it was."""

from __future__ import annotations

import pytest
import torch
from decoders import config_of
from hypothesis import given, settings, strategies as st

from rlhf.engines.inference.cache import CacheFull, KVCache
from rlhf.engines.inference.families import spec_of

SPEC = spec_of(config_of("llama"))


def cache_of(blocks: int) -> KVCache:
    return KVCache(SPEC, blocks, block=4)


def write(cache: KVCache, row: int, start: int) -> None:
    """Marks the positions of a row from ``start`` on with the row and the position."""
    for position in range(start, cache.lengths[row]):
        block = cache.tables[row][position // cache.block]
        cache.storage[:, :, block, :, position % cache.block] = row * 100 + position


def read(cache: KVCache, row: int) -> list[float]:
    blocks = cache.storage[:, :, cache.tables[row]].movedim(3, 2).flatten(3, 4)[:, :, :, : cache.lengths[row]]
    assert blocks.numel() == 0 or all(torch.equal(blocks[0, 0, 0], each) for each in blocks.flatten(0, 2))
    return blocks[0, 0, 0, :, 0].tolist()


def check(cache: KVCache) -> None:
    """Every block is free or of one row, at the place that the row's table says."""
    held = [block for table in cache.tables.values() for block in table]
    assert len(set(held)) == len(held) == cache.blocks - cache.free
    assert cache.used == max(held, default=-1) + 1
    for row, table in cache.tables.items():
        assert len(table) == -(-cache.lengths[row] // cache.block)
        assert cache.owner[table].tolist() == [row] * len(table)
        assert cache.ordinal[table].tolist() == list(range(len(table)))
    assert (cache.owner >= 0).sum() == len(held)


def layout(cache: KVCache) -> tuple[object, ...]:
    """Where blocks lie."""
    tables = {row: list(table) for row, table in cache.tables.items() if table}
    return tables, cache.owner.tolist(), cache.ordinal[cache.owner >= 0].tolist(), cache.used


ACTIONS = st.lists(st.tuples(st.sampled_from(["open", "grow", "close", "compact", "resize"]), st.integers(0, 20)))


@settings(max_examples=60, deadline=None)
@given(ACTIONS)
def test_rows_keep_what_they_hold_whatever_comes_and_goes(actions) -> None:
    cache = cache_of(6)
    kept: dict[int, int] = {}
    for action, number in actions:
        rows = sorted(cache.lengths)
        row = rows[number % len(rows)] if rows else None
        laid = cache.read[()] = layout(cache)
        if action == "open":
            assert cache.lengths[cache.open()] == 0
        elif action == "compact":
            cache.compact()
            assert cache.used == cache.blocks - cache.free
        elif action == "resize":
            try:
                cache.resize(number)
                assert cache.blocks == number and cache.bytes == number * 2 * 2 * 2 * 4 * 8 * 4
            except CacheFull:
                assert number < cache.blocks - cache.free
        elif row is not None and action == "close":
            cache.close(row)
            kept.pop(row, None)
        elif row is not None:
            start = cache.lengths[row]
            try:
                cache.extend([row], [number])
            except CacheFull:
                assert cache.needed([row], [number]) > cache.free
            fresh = cache.tables[row][-(-start // cache.block) :]
            assert not cache.storage[:, :, fresh].any()  # nothing of whoever had them before
            write(cache, row, start)
            kept[row] = cache.lengths[row]
        check(cache)
        assert layout(cache) == laid or not cache.read
        for held, length in kept.items():
            assert read(cache, held) == [held * 100 + position for position in range(length)]


def test_low_blocks_are_given_out_first_and_rows_numbered_anew() -> None:
    cache = cache_of(5)
    rows = [cache.open() for _ in range(3)]
    cache.extend(rows, [4, 5, 1])
    assert cache.tables == {0: [0], 1: [1, 2], 2: [3]}
    cache.close(1)
    assert (cache.used, cache.free) == (4, 3)
    assert cache.open() == 1
    cache.extend([1, 2], [1, 4])
    assert cache.tables == {0: [0], 1: [1], 2: [3, 2]}
    cache.close(2)
    assert cache.used == 2


def test_long_rows_that_are_left_over_move_to_the_beginning() -> None:
    cache = cache_of(12)
    rows = [cache.open() for _ in range(6)]
    cache.extend(rows, [8] * 6)
    for row in rows:
        write(cache, row, 0)
    for row in rows[:4]:
        cache.close(row)
    assert cache.used == 12
    cache.extend(rows[4:], [1, 1])
    assert cache.used == 6 and cache.tables == {4: [0, 1, 4], 5: [2, 3, 5]}
    assert read(cache, 5)[:8] == [500 + position for position in range(8)]
    check(cache)


def test_a_budget_is_in_bytes_of_the_rank_that_needs_most() -> None:
    # 2 layers · (keys and values) · heads · 32 positions · 8 wide · 4 bytes
    assert KVCache.blocks_within(SPEC, 10 * 2 * 2 * 2 * 32 * 8 * 4) == 10
    assert KVCache.blocks_within(SPEC, 10 * 2 * 2 * 2 * 32 * 8 * 4 - 1) == 9
    assert KVCache.blocks_within(SPEC, 10 * 2 * 2 * 2 * 32 * 8 * 4, tp=2, dtype=torch.bfloat16) == 40
    uneven = spec_of(config_of("gpt2", n_head=3, n_embd=24))  # one head, and two
    assert KVCache.blocks_within(uneven, 10 * 2 * 2 * 2 * 32 * 8 * 4, tp=2) == 10
    assert KVCache(SPEC, 10, tp=2, rank=1).bytes == 10 * 2 * 2 * 1 * 32 * 8 * 4


def test_no_room_is_said_and_changes_nothing() -> None:
    cache = cache_of(2)
    first, second = cache.open(), cache.open()
    with pytest.raises(CacheFull, match="3 blocks of 4 positions needed, 2 of 2 free"):
        cache.extend([first, second], [5, 1])
    assert cache.lengths == {first: 0, second: 0} and cache.free == 2
    cache.extend([first], [5])
    with pytest.raises(CacheFull, match="2 blocks are in use, 1 are asked for"):
        cache.resize(1)
    check(cache)

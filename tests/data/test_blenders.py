from collections import Counter

import numpy as np
import pytest

from rlhf.data.blenders import Concatenate, Proportional, RoundRobin, Weighted
from rlhf.interfaces import Blender

SIZES = {"a": 5, "b": 3}
ALL = [(0, r) for r in range(5)] + [(1, r) for r in range(3)]
HALVES = Weighted(weights={"a": 1.0, "b": 1.0}, length=16)


def draws(blender: Blender, sizes: dict[str, int] = SIZES, seed: int = 1, epoch: int = 0) -> list[tuple[int, int]]:
    order = blender.epoch(sizes, seed=seed, epoch=epoch)
    assert order.dtype == np.int64 and order.shape == (len(order), 2)
    return [(int(source), int(row)) for source, row in order]


@pytest.mark.parametrize("blender", [Concatenate(), Proportional(), RoundRobin(stop="all"), HALVES])
def test_same_seed_same_order_other_epoch_or_seed_another(blender: Blender) -> None:
    sizes = {"a": 50, "b": 30}
    assert draws(blender, sizes) == draws(blender, sizes)
    assert draws(blender, sizes) != draws(blender, sizes, epoch=1)
    assert draws(blender, sizes) != draws(blender, sizes, seed=2)


@pytest.mark.parametrize("blender", [Concatenate(), Proportional(), RoundRobin(stop="all")])
@pytest.mark.parametrize("sizes", [SIZES, {"a": 5}, {"a": 5, "b": 0}])
def test_every_row_once(blender: Blender, sizes: dict[str, int]) -> None:
    assert sorted(draws(blender, sizes)) == [(s, r) for s, size in enumerate(sizes.values()) for r in range(size)]


def test_concatenate_keeps_the_order_of_sources() -> None:
    assert [source for source, _ in draws(Concatenate())] == [0] * 5 + [1] * 3


def test_proportional_mixes() -> None:
    first = [source for source, _ in draws(Proportional(), {"a": 500, "b": 500})[:100]]
    assert 30 < sum(first) < 70


def test_round_robin_alternates() -> None:
    assert [source for source, _ in draws(RoundRobin())] == [0, 1, 0, 1, 0, 1]
    assert [source for source, _ in draws(RoundRobin(stop="all"))] == [0, 1, 0, 1, 0, 1, 0, 0]


def test_weighted_shares_are_exact_and_early() -> None:  # case G6
    order = draws(Weighted(weights={"A": 0.5, "B": 0.5}, length=1000), {"A": 900, "B": 100})
    assert Counter(source for source, _ in order) == {0: 500, 1: 500}
    assert Counter(source for source, _ in order[:100]) == {0: 50, 1: 50}
    repeats = Counter(row for source, row in order if source == 1)
    assert set(repeats.values()) == {5} and len(repeats) == 100
    passes = [[row for source, row in order if source == 1][i : i + 100] for i in range(0, 500, 100)]
    assert len({tuple(rows) for rows in passes}) == 5  # fresh permutations


def test_weighted_rounds_by_largest_remainder() -> None:
    order = draws(Weighted(weights={"a": 1, "b": 1, "c": 4}, length=10), {"a": 9, "b": 9, "c": 9})
    assert Counter(source for source, _ in order) == {0: 2, 1: 2, 2: 6}  # 1.67, 1.67, 6.67: ties by config order
    order = draws(Weighted(weights={"a": 1, "b": 2, "c": 4}, length=10), {"a": 9, "b": 9, "c": 9})
    assert Counter(source for source, _ in order) == {0: 1, 1: 3, 2: 6}  # 1.43, 2.86, 5.71


def test_weighted_goes_through_a_source_before_it_repeats() -> None:
    blender = Weighted(weights={"a": 2, "b": 1}, length=3)  # two of a's four rows per epoch
    seen = [row for epoch in range(2) for source, row in draws(blender, {"a": 4, "b": 1}, epoch=epoch) if source == 0]
    assert sorted(seen) == [0, 1, 2, 3]


def test_weighted_length_defaults_to_all_rows() -> None:
    assert len(draws(Weighted(weights={"a": 1, "b": 3}))) == 8


def test_weighted_without_repeats() -> None:
    blender = Weighted(weights={"a": 0.5, "b": 0.5}, length=6, repeat=False)
    for epoch in range(5):
        assert len(set(draws(blender, epoch=epoch))) == 6
    with pytest.raises(ValueError, match=r"weights.B: 500 of 1000 draws, but the source has 100 rows"):  # case G6
        draws(Weighted(weights={"A": 1, "B": 1}, length=1000, repeat=False), {"A": 900, "B": 100})


@pytest.mark.parametrize("weights", [{"a": 1.0}, {"a": 1.0, "b": 1.0, "c": 1.0}, {"a": 1.0, "B": 1.0}])
def test_weights_must_match_the_sources(weights: dict[str, float]) -> None:  # case G6
    with pytest.raises(ValueError, match="the sources are"):
        draws(Weighted(weights=weights))


@pytest.mark.parametrize("settings", [{"weights": {}}, {"weights": {"a": 0.0}}, {"weights": {"a": 1.0}, "length": 0}])
def test_impossible_settings_are_refused(settings: dict) -> None:
    with pytest.raises(ValueError, match=r"weights|length"):
        Weighted(**settings)


def test_a_weighted_source_without_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="no rows"):
        draws(HALVES, {"a": 3, "b": 0})

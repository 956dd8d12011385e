from collections import Counter

import numpy as np
import pytest

from rlhf.data.blenders import Concatenate, Curriculum, Lesson, Proportional, RoundRobin, Temperature, Weighted
from rlhf.interfaces import Blender

SIZES = {"a": 5, "b": 3}
ALL = [(0, r) for r in range(5)] + [(1, r) for r in range(3)]
HALVES = Weighted(weights={"a": 1.0, "b": 1.0}, length=16)


def draws(blender: Blender, sizes: dict[str, int] = SIZES, seed: int = 1, epoch: int = 0) -> list[tuple[int, int]]:
    order = blender.epoch(sizes, seed=seed, epoch=epoch)
    assert order.dtype == np.int64 and order.shape == (len(order), 2)
    return [(int(source), int(row)) for source, row in order]


@pytest.mark.parametrize(
    "blender",
    [
        Concatenate(),
        Proportional(),
        RoundRobin(stop="all"),
        HALVES,
        Temperature(temperature=2.0),
        Curriculum(lessons=[Lesson(weights={"a": 1}, until=0.25), Lesson(weights={"a": 1, "b": 1})]),
    ],
)
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


def shares(order: list[tuple[int, int]]) -> dict[int, int]:
    return dict(Counter(source for source, _ in order))


@pytest.mark.parametrize(
    ("temperature", "expected"),
    [
        (1.0, {0: 900, 1: 100}),
        (2.0, {0: 750, 1: 250}),  # 30 : 10
        (1e9, {0: 500, 1: 500}),
        (0.5, {0: 988, 1: 12}),  # 81 : 1 is 987.8 : 12.2
        (0.001, {0: 1000}),  # 9^1000 is more than a float holds
    ],
)
def test_temperature_lies_between_sizes_and_equal_shares(temperature: float, expected: dict) -> None:  # case G6
    order = draws(Temperature(temperature=temperature), {"A": 900, "B": 100})
    assert shares(order) == expected
    assert shares(order[:100]) == pytest.approx({s: n / 10 for s, n in expected.items()}, abs=1)


def test_temperature_repeats_small_sources_evenly_and_goes_through_large_ones() -> None:
    blender = Temperature(temperature=2.0)
    order = draws(blender, {"A": 900, "B": 100}) + draws(blender, {"A": 900, "B": 100}, epoch=1)
    rows = {source: [row for s, row in order if s == source] for source in (0, 1)}
    assert len(set(rows[0][:900])) == 900 and set(Counter(rows[1]).values()) == {5}
    assert shares(draws(Temperature(temperature=2.0, length=10), {"A": 900, "B": 100})) == {0: 8, 1: 2}  # 7.5 : 2.5


@pytest.mark.parametrize("settings", [{"temperature": 0.0}, {"temperature": 1.0, "length": 0}])
def test_impossible_temperatures_are_refused(settings: dict) -> None:
    with pytest.raises(ValueError, match=r"temperature|length"):
        Temperature(**settings)


# --------------------------------------------------------------------------------------------------------- curriculum

EASY_THEN_BOTH = Curriculum(
    lessons=[
        Lesson(weights={"easy": 1.0}, until=0.2),
        Lesson(weights={"easy": 3.0, "hard": 1.0}, until=0.6),
        Lesson(weights={"hard": 1.0}),
    ]
)
TWO = {"easy": 60, "hard": 40}


def whole_run(blender: Blender, epochs: int, sizes: dict[str, int]) -> list[tuple[int, int]]:
    return [draw for epoch in range(epochs) for draw in draws(blender, sizes, epoch=epoch)]


def test_shares_of_a_lesson_are_exact_wherever_the_epochs_end() -> None:  # case G6
    planned = EASY_THEN_BOTH.over(draws=250, batch_size=10)  # epochs are 100 draws
    order = whole_run(planned, 3, TWO)
    assert shares(order[:50]) == {0: 50}
    assert shares(order[50:150]) == {0: 75, 1: 25}
    assert shares(order[50:70]) == {0: 15, 1: 5}  # evenly interleaved
    assert shares(order[150:250]) == {1: 100}
    assert shares(order[250:]) == {1: 50}  # drawn beyond the run: the last lesson goes on


def test_a_source_goes_on_where_it_was() -> None:
    order = whole_run(EASY_THEN_BOTH.over(draws=250, batch_size=10), 3, TWO)
    easy, hard = ([row for source, row in order if source == number] for number in (0, 1))
    assert sorted(easy[:60]) == list(range(60)) and len(set(easy[60:120])) == len(easy[60:120])
    assert [sorted(hard[i : i + 40]) for i in range(0, 160, 40)] == [list(range(40))] * 4
    assert hard[:40] != hard[40:80]


def test_lessons_may_end_at_steps() -> None:
    blender = Curriculum(lessons=[Lesson(weights={"easy": 1}, until=3), Lesson(weights={"hard": 1})])
    order = whole_run(blender.over(draws=100, batch_size=8), 1, TWO)
    assert shares(order[:24]) == {0: 24} and shares(order[24:]) == {1: 76}


def test_without_a_plan_an_epoch_is_the_run() -> None:
    order = draws(EASY_THEN_BOTH, TWO)
    assert len(order) == 100 and shares(order[:20]) == {0: 20} and shares(order[60:]) == {1: 40}


def test_the_order_of_other_blenders_does_not_depend_on_the_run() -> None:
    assert HALVES.over(draws=7, batch_size=2) is HALVES


@pytest.mark.parametrize(
    ("lessons", "message"),
    [
        ([], "lessons: none"),
        ([Lesson(weights={"easy": 1}), Lesson(weights={"hard": 1})], "lessons: 0 has no until, and others follow"),
        ([Lesson(weights={"easy": 1}, until=0.5)], "the last ends at 0.5, but the run goes on"),
    ],
)
def test_curricula_with_gaps_are_refused(lessons: list[Lesson], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Curriculum(lessons=lessons)


@pytest.mark.parametrize(("first", "second"), [(0.5, 0.5), (0.5, 0.2), (0.5, 6), (20, 0.9)])
def test_lessons_that_end_out_of_order_are_refused(first: float, second: float) -> None:
    lessons = [Lesson(weights={"easy": 1}, until=until) for until in (first, second, 1)]
    with pytest.raises(ValueError, match=r"lessons: they end after .* of 100 draws \(5 a step\)"):
        Curriculum(lessons=lessons).over(draws=100, batch_size=5)


@pytest.mark.parametrize("settings", [{"weights": {}}, {"weights": {"a": -1}}, {"weights": {"a": 1}, "until": 0}])
def test_impossible_lessons_are_refused(settings: dict) -> None:
    with pytest.raises(ValueError, match=r"weights|until"):
        Lesson(**settings)


def test_a_lesson_of_unknown_or_empty_sources_is_refused() -> None:
    blender = Curriculum(lessons=[Lesson(weights={"easy": 1}, until=0.5), Lesson(weights={"eassy": 1})])
    with pytest.raises(ValueError, match=r"lessons.1.weights.eassy: the sources are easy, hard"):
        draws(blender, TWO)
    with pytest.raises(ValueError, match=r"lessons.0.weights.easy: the source has no rows"):
        draws(EASY_THEN_BOTH, {"easy": 0, "hard": 40})

import pytest

from rlhf.data.blenders import Concatenate, Curriculum, Lesson, Proportional, RoundRobin, Temperature, Weighted
from rlhf.data.examples import Examples, TextExample
from rlhf.data.stream import Batches, Stream
from rlhf.interfaces import Blender


def examples(n: int) -> Examples[TextExample]:
    return Examples({"x": [TextExample(ids=[i, i]) for i in range(n)]})


def ids(batch: list[TextExample]) -> list[int]:
    return [example.ids[0] for example in batch]


def test_batches_are_carried_over_the_end_of_an_epoch() -> None:
    stream = Stream(examples(10), Proportional(), seed=1)
    batches = [ids(stream.next(4)) for _ in range(5)]
    drawn = [i for batch in batches for i in batch]
    assert [len(batch) for batch in batches] == [4] * 5
    assert sorted(drawn[:10]) == sorted(drawn[10:]) == list(range(10))
    assert drawn[:10] != drawn[10:]
    assert stream.epoch == 2


def test_total_steps_round_up_once() -> None:  # case F2
    stream = Stream(examples(10), Proportional(), seed=1)
    assert stream.epoch_length == 10
    assert stream.total_steps(2, 4) == 5  # rounding each epoch down gives 4
    assert stream.total_steps(1, 4) == 3
    assert stream.total_steps(0.1, 1) == 1  # 0.1 · 10 is 1 in spite of rounding
    assert stream.total_steps(2.3, 1) == 23


def test_a_batch_may_be_larger_than_an_epoch() -> None:
    assert sorted(ids(Stream(examples(3), Proportional(), seed=1).next(6))) == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize("drawn", [0, 3, 10, 17])
def test_state_continues_exactly(drawn: int) -> None:
    straight, resumed = (Stream(examples(10), Proportional(), seed=1) for _ in range(2))
    straight.next(drawn)
    resumed.load_state_dict(straight.state_dict())
    assert [ids(straight.next(7)) for _ in range(4)] == [ids(resumed.next(7)) for _ in range(4)]


def test_state_of_other_data_is_refused() -> None:
    state = Stream(examples(10), Proportional(), seed=1).state_dict()
    with pytest.raises(ValueError, match=r"data sizes: {'x': 9}, but the checkpoint has {'x': 10}"):
        Stream(examples(9), Proportional(), seed=1).load_state_dict(state)
    with pytest.raises(ValueError, match="data seed"):
        Stream(examples(10), Proportional(), seed=2).load_state_dict(state)


def test_sources_are_drawn_as_blended() -> None:
    two = Examples({"a": [TextExample(ids=[0, 0])] * 2, "b": [TextExample(ids=[1, 1])] * 2})
    assert ids(Stream(two, Concatenate(), seed=1).next(4)) == [0, 0, 1, 1]
    assert ids(Stream(two, RoundRobin(), seed=1).next(4)) == [0, 1, 0, 1]


def test_an_empty_epoch_is_refused() -> None:
    with pytest.raises(ValueError, match="no rows"):
        Stream(examples(0), Proportional(), seed=1)


TWO = Examples({"a": [TextExample(ids=[i, 0]) for i in range(7)], "b": [TextExample(ids=[i, 1]) for i in range(4)]})
LESSONS = Curriculum(lessons=[Lesson(weights={"a": 1}, until=0.4), Lesson(weights={"a": 1, "b": 2})])


@pytest.mark.parametrize("blender", [Weighted(weights={"a": 1, "b": 2}), Temperature(temperature=3.0), LESSONS])
@pytest.mark.parametrize("drawn", [3, 11, 26])
def test_blends_continue_exactly(blender: Blender, drawn: int) -> None:
    def planned() -> Stream[TextExample]:
        stream = Stream(TWO, blender, seed=1)
        stream.plan(draws=30, batch_size=3)
        return stream

    straight, resumed = planned(), planned()
    straight.next(drawn)
    resumed.load_state_dict(straight.state_dict())
    assert [straight.next(3) for _ in range(8)] == [resumed.next(3) for _ in range(8)]


def test_a_plan_is_the_run_that_a_curriculum_is_spread_over() -> None:  # case G6
    stream = Stream(TWO, LESSONS, seed=1)
    stream.plan(draws=30, batch_size=3)
    assert stream.epoch_length == 11
    assert [example.ids[1] for example in stream.next(12)] == [0] * 12
    later = [example.ids[1] for example in stream.next(18)]
    assert sum(later) == 12 and later[:3] == [1, 0, 1]


def test_batches_are_the_rows_in_order_and_made_when_asked_for() -> None:
    made = []

    def collate(rows: list[TextExample]) -> list[int]:
        made.append(len(rows))
        return ids(rows)

    two = Examples({"a": [TextExample(ids=[i, i]) for i in range(3)], "b": [TextExample(ids=[i, i]) for i in (7, 8)]})
    batches = Batches(two, 2, collate)
    assert len(batches) == 3 and made == []
    assert list(batches) == list(batches) == [[0, 1], [2, 7], [8]] and made == [2, 2, 1] * 2
    assert batches[-1] == [8] and batches[1:] == [[2, 7], [8]]
    with pytest.raises(IndexError):
        batches[3]
    assert list(Batches(Examples({"a": []}), 2, collate)) == []

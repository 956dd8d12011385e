"""Which cell comes next; the cells and their stages are written down by hand."""

from rlhf.grid.schedule import Needs, next_cell


def cells(**keys):
    return [Needs(name, tuple(found.split())) for name, found in keys.items()]


def test_a_stage_that_several_need_is_made_by_one():
    waiting = cells(a="sft a", b="sft b", c="sft c")
    assert next_cell(waiting, ()) == "a"
    assert next_cell(waiting[1:], ("sft", "a")) is None  # b and c would only wait for sft
    assert next_cell(cells(b="b", c="c"), ("a",)) == "b"  # sft is there


def test_who_can_hand_on_to_most_is_first():
    # x shares nothing, s1 is needed by two others, s2 by one
    waiting = cells(x="x", a2="s2 a2", b2="s2 b2", a1="s1 a1", b1="s1 b1", c1="s1 c1")
    assert next_cell(waiting, ()) == "a1"
    assert next_cell([cell for cell in waiting if cell.name != "a1"], ("s1", "a1")) == "a2"
    left = [cell for cell in waiting if cell.name not in ("a1", "a2")]
    assert next_cell(left, ("s1", "a1", "s2", "a2")) == "x"


def test_of_equal_ones_the_first_of_the_grid():
    assert next_cell(cells(a="a", b="b"), ()) == "a"


def test_rather_something_of_its_own_first_than_an_idle_slot():
    waiting = cells(a="reward a", b="sft reward b")
    assert next_cell(waiting, ("reward", "c")) == "b"  # makes its sft meanwhile
    assert next_cell(waiting[:1], ("reward", "c")) is None


def test_a_cell_whose_stages_are_all_there_waits_for_nobody():
    assert next_cell(cells(a="", b="sft"), ("sft",)) == "a"
    assert next_cell([], ()) is None

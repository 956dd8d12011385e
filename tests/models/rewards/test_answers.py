"""Checks of foreign answers; ``test_function.py`` tries them on a function."""

import pytest
import torch

from rlhf.models.rewards.answers import finite_numbers


def test_numbers_come_out_as_floats():
    assert finite_numbers(torch.tensor([1, 2]), ["a", "b"], "url: x") == [1.0, 2.0]


@pytest.mark.parametrize("answer", [{"a": 1}, None, 3, "12"])
def test_what_is_no_list_is_named(answer):
    with pytest.raises(ValueError, match=r"url: x answered .*; it must be 2 numbers"):
        finite_numbers(answer, ["a", "b"], "url: x")


def test_what_was_scored_is_named():
    with pytest.raises(ValueError, match=r"^f answered 1 scores for 2 steps; give one for each$"):
        finite_numbers([1.0], ["a", "b"], "f", "steps")
    with pytest.raises(ValueError, match=r"^f answered nan, no finite number, for 'b'; answer a number for every one"):
        finite_numbers([1.0, float("nan")], ["a", "b"], "f")

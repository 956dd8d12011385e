"""Which responses of a group stand out."""

import pytest
import torch

from rlhf.algorithms.functional.filters import best_of_group, spread_of_group

SCORES = torch.tensor([1.0, 5.0, 3.0, 5.0, -2.0, 5.0])
GROUPS = torch.tensor([7, 2, 7, 2, 7, 2])


def test_spread_by_hand():
    # group 7 has 1, 3, −2: 3 − (−2) = 5; group 2 has 5 three times
    assert spread_of_group(SCORES, GROUPS).tolist() == [5, 0, 5, 0, 5, 0]


def test_best_by_hand_and_of_equal_ones_the_first():
    assert best_of_group(SCORES, GROUPS, keep=1).tolist() == [False, True, True, False, False, False]
    assert best_of_group(SCORES, GROUPS, keep=2).tolist() == [True, True, True, True, False, False]
    assert best_of_group(SCORES, GROUPS, keep=9).all()


def test_rows_go_with_their_groups():
    order = torch.tensor([4, 2, 0, 1, 5, 3])
    torch.testing.assert_close(spread_of_group(SCORES[order], GROUPS[order]), spread_of_group(SCORES, GROUPS)[order])
    distinct = torch.tensor([1.0, 6.0, 3.0, 5.0, -2.0, 4.0])
    best = best_of_group(distinct, GROUPS, keep=2)
    assert torch.equal(best_of_group(distinct[order], GROUPS[order], keep=2), best[order])


def test_no_response_and_a_group_of_one():
    nothing = torch.zeros(0)
    assert (
        spread_of_group(nothing, nothing.long()).shape == best_of_group(nothing, nothing.long(), keep=1).shape == (0,)
    )
    assert spread_of_group(torch.ones(1), torch.zeros(1).long()).tolist() == [0]
    assert best_of_group(torch.ones(1), torch.zeros(1).long(), keep=1).tolist() == [True]


def test_what_is_refused():
    with pytest.raises(ValueError, match="same shape"):
        spread_of_group(SCORES, GROUPS[:3])
    with pytest.raises(ValueError, match="integer ids"):
        best_of_group(SCORES, GROUPS.float(), keep=1)
    with pytest.raises(ValueError, match="keep must be at least 1"):
        best_of_group(SCORES, GROUPS, keep=0)

"""Shift and scale of scores, per response and per token."""

import pytest
import torch

from rlhf.algorithms.normalization import ScoreNormalization, per_response, take_off

MASK = torch.tensor([[True, True, True], [True, True, False]])
PER_TOKEN = torch.tensor([[1.0, 0.0, 3.0], [2.0, 0.0, 99.0]])


def test_scores_per_token_are_added_up():
    assert per_response(PER_TOKEN, MASK).tolist() == [4.0, 2.0]
    assert per_response(torch.tensor([1.0, 2.0]), MASK).tolist() == [1.0, 2.0]


def test_an_amount_is_taken_off_the_last_real_token():
    amount = torch.tensor([0.5, 1.0])
    assert take_off(torch.tensor([1.0, 2.0]), amount, MASK).tolist() == [0.5, 1.0]
    assert take_off(PER_TOKEN, amount, MASK).tolist() == [[1.0, 0.0, 2.5], [2.0, -1.0, 99.0]]
    assert PER_TOKEN[0, 2] == 3.0


def test_measured_once_and_kept():
    live = ScoreNormalization(samples=4).build()
    assert (live.mean, live.std, live.measured, live.samples) == (0.0, 1.0, False, 4)
    live.measure(torch.tensor([1.0, 3.0, 5.0, 7.0]))  # mean 4, sample deviation √(20/3)
    assert live.mean == 4 and live.std == pytest.approx(2.5819889) and live.measured
    assert live(torch.tensor([4.0, 6.5819889]), MASK).tolist() == [0.0, pytest.approx(1.0)]
    again = ScoreNormalization().build()
    again.load_state_dict(live.state_dict())
    assert (again.mean, again.std, again.measured) == (live.mean, live.std, True)


def test_scores_per_token_are_shifted_once_per_response():
    live = ScoreNormalization(samples=2).build()
    live.load_state_dict({"mean": 2.0, "std": 2.0, "measured": True})
    assert per_response(live(PER_TOKEN, MASK), MASK).tolist() == [1.0, 0.0]  # (4 − 2) / 2, (2 − 2) / 2


def test_equal_scores_give_nothing_to_divide_by():
    with pytest.raises(ValueError, match=r"all 3 responses .* score 2\.0"):
        ScoreNormalization().build().measure(torch.full((3,), 2.0))
    with pytest.raises(ValueError, match="samples: 1"):
        ScoreNormalization(samples=1)

"""Shift and scale of scores, per response and per token."""

import numpy as np
import pytest
import torch

from rlhf.algorithms.functional.rewards import per_response
from rlhf.algorithms.normalization import LiveNormalization, ScoreNormalization

MASK = torch.tensor([[True, True, True], [True, True, False]])
PER_TOKEN = torch.tensor([[1.0, 0.0, 3.0], [2.0, 0.0, 99.0]])


def live(**settings) -> LiveNormalization:
    return ScoreNormalization(**settings).build()


def test_measured_once_and_kept():
    fixed = live(samples=4)
    assert (fixed.mean, fixed.std, fixed.measured, fixed.samples) == (0.0, 1.0, False, 4)
    fixed.measure(torch.tensor([1.0, 3.0, 5.0, 7.0]))  # mean 4, sample deviation √(20/3)
    assert fixed.mean == 4 and fixed.std == pytest.approx(2.5819889) and fixed.measured
    assert fixed(torch.tensor([4.0, 6.5819889]), MASK).tolist() == [0.0, pytest.approx(1.0)]
    fixed.observe(torch.tensor([100.0, 200.0]))
    assert fixed.mean == 4
    again = live()
    again.load_state_dict(fixed.state_dict())
    assert (again.mean, again.std, again.measured) == (fixed.mean, fixed.std, True)


def test_scores_per_token_are_shifted_once_per_response():
    fixed = live(samples=2)
    fixed.load_state_dict({"number": 2.0, "mean": 2.0, "square_sum": 4.0})  # deviation 2
    assert per_response(fixed(PER_TOKEN, MASK), MASK).tolist() == [1.0, 0.0]  # (4 − 2) / 2, (2 − 2) / 2


def test_running_statistics_are_those_of_the_whole_stream():
    rng = np.random.default_rng(0)
    batches = [rng.normal(1e6, 3.0, size) for size in (16, 1, 8, 8, 33)]  # a mean that sums of squares would drown in
    running = live(running=True)
    running.measure(torch.tensor(batches[0]))
    for seen in range(1, len(batches)):
        before = np.concatenate(batches[:seen])
        assert running.mean == pytest.approx(before.mean(), rel=1e-14)
        assert running.std == pytest.approx(before.std(ddof=1), rel=1e-9)
        running.observe(torch.tensor(batches[seen]))
    assert running.std == pytest.approx(np.concatenate(batches).std(ddof=1), rel=1e-9)


def test_running_statistics_resume_exactly():  # case D7
    first, batches = live(running=True), torch.randn(3, 8).double().unbind()
    first.measure(batches[0])
    second = live(running=True)
    second.load_state_dict(first.state_dict())
    for batch in batches[1:]:
        first.observe(batch)
        second.observe(batch)
    assert first.state_dict() == second.state_dict()


def test_equal_scores_give_nothing_to_divide_by():
    with pytest.raises(ValueError, match=r"all 3 responses .* score 2,"):
        live().measure(torch.full((3,), 2.0))
    with pytest.raises(ValueError, match="samples is 1"):
        ScoreNormalization(samples=1)

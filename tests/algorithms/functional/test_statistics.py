"""Explained variance, and statistics of a stream."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from rlhf.algorithms.functional.statistics import Moments, explained_variance, merge_moments

NAN, INF = float("nan"), float("inf")
MASK = torch.tensor([[True, True, True, False]])
RETURNS = torch.tensor([[1.0, 2.0, 6.0, NAN]])


def test_by_hand():
    # residuals 0, 1, 2: variance 2/3; returns: variance 14/3; 1 − 1/7 = 0.857143
    values = torch.tensor([[1.0, 1.0, 4.0, INF]])
    assert explained_variance(values, RETURNS, MASK).item() == pytest.approx(0.857143, abs=1e-6)


def test_perfect_constant_and_harmful_critics():
    assert explained_variance(RETURNS, RETURNS, MASK).item() == 1.0
    assert explained_variance(torch.full((1, 4), 100.0), RETURNS, MASK).item() == pytest.approx(0.0, abs=1e-6)
    # values −returns: residual 2 R, four times the variance
    assert explained_variance(-RETURNS, RETURNS, MASK).item() == pytest.approx(-3.0, abs=1e-5)


def test_a_constant_offset_is_not_counted():
    assert explained_variance(RETURNS + 10, RETURNS, MASK).item() == pytest.approx(1.0, abs=1e-6)


def test_nothing_to_explain_is_nan():
    equal = torch.full((1, 4), 0.1)  # in fp32 the mean of three 0.1 is not 0.1
    assert explained_variance(torch.randn(1, 4), equal, MASK).isnan()
    assert explained_variance(RETURNS, RETURNS, torch.zeros_like(MASK)).isnan()


def test_padding_changes_nothing():
    values, returns = torch.tensor([[1.0, 1.0, 4.0]]), RETURNS[:, :3]
    wide = [torch.nn.functional.pad(x, (0, 5), value=-INF) for x in (values, returns)]
    base = explained_variance(values, returns, MASK[:, :3])
    assert torch.equal(explained_variance(*wide, torch.nn.functional.pad(MASK[:, :3], (0, 5))), base)


def test_scalar_fp32_and_refusals():
    value = explained_variance(RETURNS.bfloat16(), RETURNS.bfloat16(), MASK)
    assert value.shape == () and value.dtype == torch.float32
    with pytest.raises(ValueError, match=r"values \[1, 1\]"):
        explained_variance(RETURNS[:, :1], RETURNS, MASK)
    with pytest.raises(ValueError, match="bool"):
        explained_variance(RETURNS, RETURNS, MASK.float())


def test_arguments_are_not_written_to():
    values, returns = RETURNS.clone(), RETURNS.clone()
    explained_variance(values, returns, MASK)
    torch.testing.assert_close(values, RETURNS, equal_nan=True, rtol=0, atol=0)
    torch.testing.assert_close(returns, RETURNS, equal_nan=True, rtol=0, atol=0)


def moments_of(values: list[float]) -> Moments:
    mean = float(np.mean(values)) if values else 0.0
    return Moments(float(len(values)), mean, float(np.square(np.array(values) - mean).sum()))


def test_two_sets_together_by_hand():
    # 1, 3 and 8: means 2 and 8, δ = 6; mean 2 + 6/3 = 4; 2 + 0 + 36 · 2 · 1 / 3 = 26 = 9 + 1 + 16
    assert merge_moments(Moments(2, 2, 2), Moments(1, 8, 0)) == Moments(3, 4, 26)


@settings(deadline=None)
@given(*[st.lists(st.floats(-1e6, 1e6), max_size=8)] * 2)
def test_two_sets_are_as_one(a, b):
    together = moments_of(a + b)
    found = merge_moments(moments_of(a), moments_of(b))
    assert found.number == together.number
    assert found.mean == pytest.approx(together.mean, rel=1e-9, abs=1e-6)
    assert found.square_sum == pytest.approx(together.square_sum, rel=1e-9, abs=1e-3)

"""What the maths share: refusals that name what is wrong, one precision, and nothing of masked slots."""

import math

import pytest
import torch

from rlhf.algorithms.functional import _shared as shared

MASK = torch.tensor([[True, True, False]])


def test_shapes_that_would_broadcast_are_refused_by_name():
    with pytest.raises(ValueError, match=r"the same shape: a \[2, 1\], b \[2, 3\]"):
        shared.check_same_shape(a=torch.zeros(2, 1), b=torch.zeros(2, 3))
    with pytest.raises(ValueError, match=r"scores must be \[B\], it is \[2, 1\]"):
        shared.check_dims("B", scores=torch.zeros(2, 1))
    with pytest.raises(ValueError, match=r"mask must be bool, it is torch.float32 \(shape \[1, 3\]\)"):
        shared.check_mask(MASK.float())
    with pytest.raises(ValueError, match=r"groups must hold integer ids, it is torch\.bool"):
        shared.check_integer(groups=MASK)


@pytest.mark.parametrize("number", [-0.1, math.nan])
def test_settings_below_0_are_refused_by_name(number):
    shared.check_not_negative(low=0.0, high=None)
    with pytest.raises(ValueError, match=f"high must not be negative, it is {number}"):
        shared.check_not_negative(low=0.0, high=number)


def test_one_double_makes_all_double_and_half_is_too_little():
    single, half, double = torch.zeros(1), torch.zeros(1, dtype=torch.bfloat16), torch.zeros(1, dtype=torch.float64)
    assert {x.dtype for x in shared.to_float(single, half)} == {torch.float32}
    assert {x.dtype for x in shared.to_float(single, half, double)} == {torch.float64}


def test_masked_slots_give_0_in_value_and_gradient_and_arguments_stay():
    x = torch.tensor([[1.0, 2.0, math.nan]], requires_grad=True)
    (kept,) = shared.masked(MASK, x=x)
    assert kept.tolist() == [[1.0, 2.0, 0.0]] and x[0, 2].isnan()
    kept.square().sum().backward()
    assert x.grad is not None and x.grad.tolist() == [[2.0, 4.0, 0.0]]
    with pytest.raises(ValueError, match=r"the same shape: x \[1, 1\], mask \[1, 3\]"):
        shared.masked(MASK, x=torch.zeros(1, 1))


def test_a_log_ratio_ends_where_its_exponential_would_overflow():
    new, old = torch.tensor([[-1.0, -2.0, 5.0]]), torch.tensor([[-1.5, -202.0, math.inf]])
    logprobs, log_ratio, advantages = shared.moved(new, old, torch.tensor([[1.0, -1.0, math.nan]]), MASK)
    assert logprobs.tolist() == [[-1.0, -2.0, 0.0]] and advantages.tolist() == [[1.0, -1.0, 0.0]]
    assert log_ratio.tolist() == [[0.5, 80.0, 0.0]]  # −1 + 1.5; −2 + 202, cut
    assert log_ratio.exp().isfinite().all()


def test_a_mean_that_rounding_put_outside_comes_back_with_the_means_gradient():
    x = torch.tensor([0.25, 0.75], requires_grad=True)
    bounded = shared.bound_mean(x.mean() + 1.0, x.min(), x.max())  # 1.5 is above 0.75
    assert bounded.item() == 0.75
    bounded.backward()
    assert x.grad is not None and x.grad.tolist() == [0.5, 0.5]


def test_moments_by_hand():
    # (1 + 3) / 2 = 2; deviations −1 and 1, squares 1 + 1
    found = shared.moments(torch.tensor([[1.0, 3.0, math.nan]]), MASK)
    assert found.centred.tolist() == [[-1.0, 1.0, 0.0]]
    assert [float(x) for x in found[1:]] == [2.0, 2.0, 2.0]
    alike = shared.moments(torch.full((1, 3), 0.1), torch.ones(1, 3, dtype=torch.bool))
    assert alike.centred.eq(0).all() and float(alike.square_sum) == 0.0
    none = shared.moments(torch.tensor([[math.inf] * 3]), torch.zeros(1, 3, dtype=torch.bool))
    assert none.centred.eq(0).all() and float(none.square_sum) == 0.0 and float(none.number) == 0.0


def test_the_root_of_0_has_no_slope():
    x = torch.tensor([0.0, 4.0], requires_grad=True)
    root = shared.safe_sqrt(x)
    assert root.tolist() == [0.0, 2.0]
    root.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [0.0, 0.25]  # 1 / (2 √4)

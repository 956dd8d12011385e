"""pass@k, best of k, win rates and distinct n-grams."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings, strategies as st

from rlhf.algorithms.functional.evaluation import best_at_k, distinct_n, pass_at_k, win_rate

NAN = float("nan")


def correct(*counts, n):
    return torch.tensor([[True] * c + [False] * (n - c) for c in counts])


# ------------------------------------------------------------------------------------------------------------- pass@k


def test_pass_at_k_by_hand():
    # n = 5, c = 2: k = 1: 1 − 3/5 = 2/5; k = 2: 1 − C(3,2)/C(5,2) = 1 − 3/10; k = 3: 1 − 1/10; k = 4: no 4 are wrong
    row = correct(2, n=5)
    found = [pass_at_k(row, k=k).item() for k in (1, 2, 3, 4, 5)]
    assert found == pytest.approx([0.4, 0.7, 0.9, 1.0, 1.0], abs=1e-15)


def test_pass_at_k_of_none_and_all():
    assert pass_at_k(correct(0, 4, n=4), k=4).tolist() == [0.0, 1.0]
    assert pass_at_k(correct(0, 4, n=4), k=1).tolist() == [0.0, 1.0]


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 9), data=st.data())
def test_pass_at_k_is_the_formula(n, data):
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    expected = 1 - math.comb(n - c, k) / math.comb(n, k)
    assert pass_at_k(correct(c, n=n), k=k).item() == pytest.approx(expected, abs=1e-12)


def test_pass_at_k_is_stable_where_the_binomials_are_no_floats():
    n, c, k = 4000, 40, 2000  # C(4000, 2000) has 1203 digits
    exact = float(1 - (lambda a, b: a / b)(math.comb(n - c, k) * 10**20 // math.comb(n, k), 10**20))
    assert pass_at_k(correct(c, n=n), k=k).item() == pytest.approx(exact, abs=1e-12)


def test_order_of_responses_and_prompts_changes_nothing():
    rows = torch.tensor([[True, False, False, True], [False, False, True, False]])
    expected = pass_at_k(rows, k=2)
    assert torch.equal(pass_at_k(rows.flip(1), k=2), expected)
    assert torch.equal(pass_at_k(rows.flip(0), k=2), expected.flip(0))


# ------------------------------------------------------------------------------------------------------------- best@k


def test_best_at_k_by_hand():
    # pairs of {1, 2, 4}: best are 2, 4, 4: mean 10/3
    scores = torch.tensor([[4.0, 1.0, 2.0]])
    assert best_at_k(scores, k=2).item() == pytest.approx(10 / 3)
    assert best_at_k(scores, k=1).item() == pytest.approx(7 / 3) and best_at_k(scores, k=3).item() == 4.0


@settings(max_examples=60, deadline=None)
@given(scores=st.lists(st.floats(-10, 10), min_size=1, max_size=7), data=st.data())
def test_best_at_k_is_the_mean_over_all_subsets(scores, data):
    k = data.draw(st.integers(1, len(scores)))
    best = [max(subset) for subset in itertools.combinations(scores, k)]
    found = best_at_k(torch.tensor([scores], dtype=torch.float64), k=k).item()
    assert found == pytest.approx(sum(best) / len(best), abs=1e-9)


@pytest.mark.parametrize("k", [1, 3, 6])
def test_best_of_zeros_and_ones_is_pass_at_k(k):
    rows = correct(0, 1, 4, 6, n=6)
    torch.testing.assert_close(best_at_k(rows.float(), k=k), pass_at_k(rows, k=k))


def test_best_at_k_weights_sum_to_one_where_the_binomials_are_no_floats():
    assert best_at_k(torch.ones(1, 4000), k=2000).item() == pytest.approx(1.0, abs=1e-12)


def test_best_at_k_grows_with_k_and_follows_a_shift():
    scores = torch.randn(3, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = torch.stack([best_at_k(scores, k=k) for k in range(1, 9)])
    assert (found.diff(dim=0) > 0).all()
    torch.testing.assert_close(best_at_k(3 * scores + 1, k=4), 3 * found[3] + 1)


# ----------------------------------------------------------------------------------------------------------- win rate


def test_win_rate_by_hand():
    # wins 1, 0, ½, 1: rate 0.625; deviations² .140625 + .390625 + .015625 + .140625 = .6875; √(.6875/3/4) = .2393568
    rate, error, ties = win_rate(torch.tensor([2.0, 0.0, 1.0, 5.0]), torch.tensor([1.0, 1.0, 1.0, 0.0]))
    assert rate.item() == 0.625 and ties.item() == 0.25
    assert error.item() == pytest.approx(0.2393568, abs=1e-7)


def test_win_rate_against_itself_is_a_half_without_error():
    scores = torch.randn(5)
    assert [x.item() for x in win_rate(scores, scores)] == [0.5, 0.0, 1.0]


def test_the_opponents_rate_is_the_rest():
    a, b = torch.randn(2, 9, generator=torch.Generator().manual_seed(1)).round()
    (one, error, ties), (other, same_error, same_ties) = win_rate(a, b), win_rate(b, a)
    assert one + other == 1 and ties == same_ties and error.item() == pytest.approx(same_error.item())


def test_one_prompt_has_no_error_and_infinities_can_be_compared():
    rate, error, _ = win_rate(torch.tensor([math.inf]), torch.tensor([0.0]))
    assert rate == 1 and error.isnan()


# --------------------------------------------------------------------------------------------------------- distinct-n


def test_distinct_by_hand():
    ids = torch.tensor([[1, 2, 1, 2], [1, 2, 9, 9]])
    mask = torch.tensor([[True] * 4, [True, True, False, False]])
    assert distinct_n(ids, mask, n=1).item() == 2 / 6
    assert distinct_n(ids, mask, n=2).item() == 2 / 4  # 12, 21, 12 and 12
    assert distinct_n(ids, mask, n=3).item() == 1.0  # 121, 212
    assert distinct_n(ids, mask, n=5).item() == 0.0


def test_holes_of_the_mask_are_stepped_over_and_padding_changes_nothing():
    ids = torch.tensor([[1, 7, 2, 1, 2]])
    mask = torch.tensor([[True, False, True, True, True]])
    found = distinct_n(ids, mask, n=2)
    assert found.item() == 2 / 3  # 12, 21, 12
    wide = [torch.nn.functional.pad(x, (0, 3)) for x in (ids, mask)]
    assert torch.equal(distinct_n(*wide, n=2), found)
    assert torch.equal(distinct_n(torch.where(mask, ids, -5), mask, n=2), found)


# ----------------------------------------------------------------------------------------------------------- refusals


def test_types_and_arguments():
    scores = torch.tensor([[1.0, 3.0]], dtype=torch.bfloat16)
    kept = scores.clone()
    assert best_at_k(scores, k=1).dtype == torch.float64 and torch.equal(scores, kept)
    assert pass_at_k(correct(1, n=2), k=1).dtype == torch.float64


@pytest.mark.parametrize(("call", "message"), [
    (lambda: pass_at_k(torch.ones(2), k=1), r"correct must be \[P, n\]"),
    (lambda: pass_at_k(torch.ones(2, 2), k=1), "correct must be bool"),
    (lambda: pass_at_k(correct(1, n=2), k=3), "k is 3; of 2 responses"),
    (lambda: pass_at_k(correct(1, n=2), k=0), "k is 0"),
    (lambda: best_at_k(torch.ones(2), k=1), r"scores must be \[P, n\]"),
    (lambda: best_at_k(torch.ones(1, 2), k=3), "k is 3"),
    (lambda: win_rate(torch.ones(2), torch.ones(1)), r"opponent \[1\]"),
    (lambda: win_rate(torch.ones(1, 2), torch.ones(1, 2)), r"scores must be \[B\]"),
    (lambda: win_rate(torch.ones(1), torch.tensor([NAN])), "opponent hold NaN"),
    (lambda: distinct_n(torch.ones(1, 2), torch.ones(1, 2).bool(), n=1), "integer"),
    (lambda: distinct_n(torch.ones(1, 2).long(), torch.ones(1, 1).bool(), n=1), r"mask \[1, 1\]"),
    (lambda: distinct_n(torch.ones(1, 2).long(), torch.ones(1, 2), n=1), "mask must be bool"),
    (lambda: distinct_n(torch.ones(1, 2).long(), torch.ones(1, 2).bool(), n=0), "n is 0"),
])  # fmt: skip
def test_what_does_not_fit_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()

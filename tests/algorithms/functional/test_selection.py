"""Covariance of log-probability and advantage, and the tokens chosen by it."""

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from rlhf.algorithms.functional.selection import token_covariance, tokens_between, top_tokens

NAN = float("nan")


def bits(text: str) -> Tensor:
    return torch.tensor([[c == "1" for c in row] for row in text.split()])


MASK = bits("110 111")
LOGPROBS = torch.tensor([[-1.0, -3.0, NAN], [-2.0, -4.0, -5.0]])
ADVANTAGES = torch.tensor([[2.0, 0.0, NAN], [1.0, -1.0, 3.0]])


def test_covariance_by_hand():
    # means −3 and 1: (2)(1), (0)(−1); (1)(0), (−1)(−2), (−2)(2)
    found = token_covariance(LOGPROBS, ADVANTAGES, MASK)
    assert found.tolist() == [[2.0, 0.0, 0.0], [0.0, 2.0, -4.0]] and found.dtype == torch.float32


def test_its_mean_is_the_covariance():
    found = token_covariance(LOGPROBS, ADVANTAGES, MASK)
    pairs = torch.stack([LOGPROBS[MASK], ADVANTAGES[MASK]])
    torch.testing.assert_close(found.sum() / 5, pairs.cov(correction=0)[0, 1])


def test_equal_advantages_have_no_covariance():
    assert (token_covariance(LOGPROBS, torch.full((2, 3), 0.1), MASK) == 0).all()


COVARIANCE = torch.tensor([[2.0, 0.5, NAN], [3.0, 2.0, -4.0]])
ORDER = torch.tensor([[0.9, 0.2, 0.0], [0.5, 0.1, 0.3]])


@pytest.mark.parametrize(
    ("fraction", "expected"),
    [
        (0.2, "000 100"),  # ⌊0.2 · 5⌋ = 1: 3.0
        (0.1, "000 100"),  # ⌊0.5⌋ = 0, but at least one
        (0.4, "000 110"),  # of the two 2.0 the one that is first in order
        (0.6, "100 110"),
        (1.0, "110 111"),
    ],
)
def test_top_tokens_by_hand(fraction, expected):
    assert torch.equal(top_tokens(COVARIANCE, ORDER, MASK, fraction=fraction), bits(expected))


@pytest.mark.parametrize(
    ("fraction", "low", "high", "expected"),
    [
        (0.2, 1.0, 5.0, "000 010"),  # 2.0, 3.0, 2.0 may be; order 0.1 comes first
        (0.4, 1.0, 5.0, "000 110"),
        (0.6, 1.0, 5.0, "100 110"),
        (1.0, 1.0, 5.0, "100 110"),  # no more than there are
        (1.0, 2.0, 3.0, "000 000"),  # the bounds themselves do not count
        (1.0, -9.0, 1.0, "010 001"),
    ],
)
def test_tokens_between_by_hand(fraction, low, high, expected):
    found = tokens_between(COVARIANCE, ORDER, MASK, fraction=fraction, low=low, high=high)
    assert torch.equal(found, bits(expected))


@given(st.integers(0, 10_000))
@settings(deadline=None, derandomize=True, max_examples=25)
def test_padding_and_the_order_of_rows_do_not_count(seed):
    g = torch.Generator().manual_seed(seed)
    logprobs, advantages, order = torch.randn(3, 6, 5, generator=g)
    advantages = advantages.round()  # so that some are equal
    mask, rows = torch.rand(6, 5, generator=g) < 0.7, torch.randperm(6, generator=g)

    def choose(*tensors: Tensor) -> Tensor:
        logprobs, advantages, order, mask = tensors
        covariance = token_covariance(logprobs, advantages, mask)
        some = tokens_between(covariance, order, mask, fraction=0.2, low=0.1, high=9.0)
        return torch.stack([some, top_tokens(covariance, order, mask, fraction=0.2)])

    expected = choose(logprobs, advantages, order, mask)
    assert torch.equal(choose(*(x[rows] for x in (logprobs, advantages, order, mask))), expected[:, rows])
    wide = [torch.nn.functional.pad(x, (0, 2), value=NAN) for x in (logprobs, advantages, order)]
    found = choose(*wide, torch.nn.functional.pad(mask, (0, 2)))
    assert torch.equal(found[..., :5], expected) and not found[..., 5:].any()


def test_nothing_is_chosen_from_nothing():
    none = torch.zeros(2, 3, dtype=torch.bool)
    covariance = token_covariance(LOGPROBS, ADVANTAGES, none)
    assert not top_tokens(covariance, ORDER, none, fraction=1.0).any()
    assert not tokens_between(covariance, ORDER, none, fraction=1.0, low=-9.0, high=9.0).any()


@pytest.mark.parametrize("fraction", [0.0, 1.5, NAN])
def test_refusals(fraction):
    with pytest.raises(ValueError, match="fraction"):
        top_tokens(COVARIANCE, ORDER, MASK, fraction=fraction)
    with pytest.raises(ValueError, match="fraction"):
        tokens_between(COVARIANCE, ORDER, MASK, fraction=fraction, low=0.0, high=1.0)
    with pytest.raises(ValueError, match=r"order \[1, 1\]"):
        top_tokens(COVARIANCE, torch.ones(1, 1), MASK, fraction=0.5)
    with pytest.raises(ValueError, match=r"advantages \[1, 1\]"):
        token_covariance(LOGPROBS, torch.ones(1, 1), MASK)

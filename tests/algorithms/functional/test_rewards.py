"""Score and KL penalty as rewards per token."""
# ruff: noqa: F722 (the shapes of jaxtyping are strings that are no Python)

import pytest
import torch
from beartype import beartype
from hypothesis import given, settings, strategies as st
from jaxtyping import Bool, Float, Float32, jaxtyped
from torch import Tensor

from rlhf.algorithms.functional.advantages import returns
from rlhf.algorithms.functional.rewards import add_at_end, per_response, shape_rewards

NAN, INF = float("nan"), float("inf")


def bits(text: str) -> Tensor:
    return torch.tensor([[c == "1" for c in row] for row in text.split()])


def close(actual: Tensor, expected, atol: float = 1e-5) -> None:
    expected = torch.as_tensor(expected, dtype=actual.dtype)
    torch.testing.assert_close(actual, expected, atol=atol, rtol=0)


# log-ratios to the reference 0.5, −0.2, 0.3, then two pads
OLD = torch.tensor([[-1.0, -1.2, -0.7, NAN, 4.0]])
REF = torch.tensor([[-1.5, -1.0, -1.0, 3.0, INF]])
THREE = bits("11100")


def test_by_hand():  # case B4
    rewards = shape_rewards(torch.tensor([2.0]), OLD, REF, THREE, kl_coef=0.1)
    # −0.1 · (0.5, −0.2, 0.3), score 2 on the third
    close(rewards, [[-0.05, 0.02, 1.97, 0.0, 0.0]])
    close(returns(rewards, THREE, gamma=1.0), [[1.94, 1.99, 1.97, 0.0, 0.0]])
    close(returns(rewards, THREE, gamma=0.9), [[1.5637, 1.793, 1.97, 0.0, 0.0]])


def test_full_length_response():  # case B4
    rewards = shape_rewards(torch.tensor([2.0]), OLD[:, :3], REF[:, :3], THREE[:, :3], kl_coef=0.1)
    close(rewards, [[-0.05, 0.02, 1.97]])


def test_the_clip_is_the_scores_only():  # case B4
    for score, last in ((7.0, 4.97), (-7.0, -5.03), (4.0, 3.97)):
        rewards = shape_rewards(torch.tensor([score]), OLD, REF, THREE, kl_coef=0.1, score_clip=5.0)
        close(rewards, [[-0.05, 0.02, last, 0.0, 0.0]])
    # a KL part larger than the clip stays: −100 · 0.5
    rewards = shape_rewards(torch.tensor([7.0]), OLD, REF, THREE, kl_coef=100.0, score_clip=5.0)
    close(rewards, [[-50.0, 20.0, -25.0, 0.0, 0.0]], atol=1e-4)


@pytest.mark.parametrize(
    ("kl", "penalties"),
    [("k1", [0.5, -0.2, 0.3]), ("k2", [0.125, 0.02, 0.045]), ("k3", [0.106531, 0.021403, 0.040818])],
)
def test_each_estimator_is_the_one_charged(kl, penalties):  # cases B6, I1
    # k2: halves of squares; k3: e^−0.5 − 0.5, e^0.2 − 1.2, e^−0.3 − 0.7
    rewards = shape_rewards(torch.tensor([0.0]), OLD, REF, THREE, kl_coef=1.0, kl=kl)
    close(rewards[:, :3], [[-p for p in penalties]])


def test_the_last_real_token_of_a_mask_with_holes_and_rows_without_tokens():
    zeros = torch.zeros(3, 5)
    rewards = shape_rewards(torch.tensor([2.0, NAN, 3.0]), zeros, zeros, bits("10110 00000 00001"), kl_coef=0.1)
    assert rewards.tolist() == [[0, 0, 0, 2, 0], [0, 0, 0, 0, 0], [0, 0, 0, 0, 3]]


def test_scores_per_token_stay_where_they_are():
    scores = torch.tensor([[1.0, -9.0, 0.5, NAN, INF]])
    rewards = shape_rewards(scores, OLD, REF, THREE, kl_coef=0.1, score_clip=2.0)
    close(rewards, [[0.95, -1.98, 0.47, 0.0, 0.0]])  # −9 is clipped to −2


def test_no_coefficient_no_look_at_the_logprobs():
    rewards = shape_rewards(
        torch.tensor([2.0]), torch.full((1, 2), INF), torch.full((1, 2), INF), bits("11"), kl_coef=0
    )
    assert rewards.tolist() == [[0.0, 2.0]]


@given(st.integers(0, 10_000), st.integers(1, 4))
@settings(deadline=None, derandomize=True, max_examples=25)
def test_padding_and_row_order_change_nothing(seed, pad):
    g = torch.Generator().manual_seed(seed)
    scores, old, ref = torch.randn(3, generator=g), torch.randn(3, 4, generator=g), torch.randn(3, 4, generator=g)
    mask = torch.rand(3, 4, generator=g) > 0.3
    base = shape_rewards(scores, old, ref, mask, kl_coef=0.3, kl="k3")
    wide = [torch.nn.functional.pad(x, (0, pad), value=NAN) for x in (old, ref)]
    padded = shape_rewards(scores, *wide, torch.nn.functional.pad(mask, (0, pad)), kl_coef=0.3, kl="k3")
    assert torch.equal(padded[:, :4], base) and (padded[:, 4:] == 0).all()
    order = torch.randperm(3, generator=g)
    assert torch.equal(
        shape_rewards(scores[order], old[order], ref[order], mask[order], kl_coef=0.3, kl="k3"), base[order]
    )
    # what a row gets in all is its score less its KL (only rows that have a token)
    k1 = shape_rewards(scores, old, ref, mask, kl_coef=0.3).sum(1)
    close(k1, torch.where(mask.any(1), scores - 0.3 * ((old - ref) * mask).sum(1), torch.zeros(3)))


def test_gradient():
    old, ref = OLD.clone().requires_grad_(), REF.clone().requires_grad_()
    assert not shape_rewards(torch.tensor([2.0]), old, ref, THREE, kl_coef=0.1).requires_grad
    scores = torch.tensor([[1.0, 2.0, 3.0, NAN, INF]], requires_grad=True)
    shape_rewards(scores, old, ref, THREE, kl_coef=0.1, score_clip=2.5).sum().backward()
    assert scores.grad is not None and scores.grad.tolist() == [[1.0, 1.0, 0.0, 0.0, 0.0]]
    assert old.grad is None and ref.grad is None


def test_shapes_and_dtypes():
    @jaxtyped(typechecker=beartype)
    def shape(
        scores: Float[Tensor, " B"], old: Float[Tensor, "B T"], ref: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]
    ) -> Float32[Tensor, "B T"]:
        return shape_rewards(scores, old, ref, mask, kl_coef=0.1)

    for dtype in (torch.bfloat16, torch.float32):
        shape(torch.ones(2, dtype=dtype), torch.ones(2, 3, dtype=dtype), torch.ones(2, 3), bits("110 111"))
    # as many rows as tokens: one score a row must not be taken for one a token
    square = shape_rewards(torch.tensor([1.0, 2.0]), torch.zeros(2, 2), torch.zeros(2, 2), bits("10 11"), kl_coef=1.0)
    assert square.tolist() == [[1.0, 0.0], [0.0, 2.0]]


def test_refusals():
    scores = torch.tensor([2.0])
    with pytest.raises(ValueError, match=r"scores \[2\]"):
        shape_rewards(torch.ones(2), OLD, REF, THREE, kl_coef=0.1)
    with pytest.raises(ValueError, match=r"scores \[1, 1\]"):
        shape_rewards(torch.ones(1, 1), OLD, REF, THREE, kl_coef=0.1)
    with pytest.raises(ValueError, match=r"scores \[\]"):
        shape_rewards(torch.tensor(1.0), OLD, REF, THREE, kl_coef=0.1)
    with pytest.raises(ValueError, match=r"ref_logprobs \[1, 1\]"):
        shape_rewards(scores, OLD, REF[:, :1], THREE, kl_coef=0.1)
    with pytest.raises(ValueError, match="bool"):
        shape_rewards(scores, OLD, REF, THREE.float(), kl_coef=0.1)
    with pytest.raises(ValueError, match="'full'"):
        shape_rewards(scores, OLD, REF, THREE, kl_coef=0.1, kl="full")
    with pytest.raises(ValueError, match="score_clip"):
        shape_rewards(scores, OLD, REF, THREE, kl_coef=0.1, score_clip=0.0)
    with pytest.raises(ValueError, match="kl_coef"):
        shape_rewards(scores, OLD, REF, THREE, kl_coef=-0.1)


def test_arguments_are_not_written_to():
    scores, old, ref, mask = torch.tensor([2.0]), OLD.clone(), REF.clone(), THREE.clone()
    shape_rewards(scores, old, ref, mask, kl_coef=0.1, score_clip=1.0)
    assert scores.tolist() == [2.0] and torch.equal(mask, THREE)
    torch.testing.assert_close(old, OLD, equal_nan=True, rtol=0, atol=0)
    torch.testing.assert_close(ref, REF, equal_nan=True, rtol=0, atol=0)


# --------------------------------------------------------------------------------- scores per response and per token

TWO = bits("111 110")
PER_TOKEN = torch.tensor([[1.0, 0.0, 3.0], [2.0, 0.0, NAN]])


def test_scores_per_token_are_added_up():
    assert per_response(PER_TOKEN, TWO).tolist() == [4.0, 2.0]
    assert per_response(torch.tensor([1.0, 2.0]), TWO).tolist() == [1.0, 2.0]


def test_an_amount_is_added_to_the_last_real_token():
    amount = torch.tensor([-0.5, -1.0])
    assert add_at_end(torch.tensor([1.0, 2.0]), amount, TWO).tolist() == [0.5, 1.0]
    found = add_at_end(PER_TOKEN, amount, TWO)
    assert found[0].tolist() == [1.0, 0.0, 2.5] and found[1, :2].tolist() == [2.0, -1.0] and found[1, 2].isnan()
    assert PER_TOKEN[0, 2] == 3.0
    hole = add_at_end(torch.zeros(2, 3), amount, bits("101 000"))
    assert hole.tolist() == [[0.0, 0.0, -0.5], [0.0, 0.0, 0.0]]  # no real token, nothing to add to


@pytest.mark.parametrize(("scores", "amount"), [
    (torch.zeros(3), torch.zeros(2)), (torch.zeros(2, 2), torch.zeros(2)), (torch.zeros(2), torch.zeros(1)),
    (torch.zeros(2, 3), torch.zeros(2, 3)), (torch.zeros(1, 3), torch.zeros(2)),
])  # fmt: skip
def test_shapes_that_differ_are_refused(scores, amount):
    with pytest.raises(ValueError, match="must have the same shape"):
        add_at_end(scores, amount, TWO)
    if amount.shape == (2,) and scores.shape != (2,):
        with pytest.raises(ValueError, match="must have the same shape"):
            per_response(scores, TWO)

"""Policy, value, preference losses."""
# ruff: noqa: F722 (the shapes of jaxtyping are strings that are no Python)

import math

import pytest
import torch
from beartype import beartype
from hypothesis import given, settings, strategies as st
from jaxtyping import Bool, Float, Float32, jaxtyped
from torch import Tensor

from rlhf.algorithms.functional.losses import bradley_terry, clipped_surrogate, clipped_value, dpo
from rlhf.algorithms.functional.masking import last_index

NAN, INF = float("nan"), float("inf")


def bits(text: str) -> Tensor:
    return torch.tensor([[c == "1" for c in row] for row in text.split()])


def close(actual: Tensor, expected, atol: float = 1e-5) -> None:
    expected = torch.as_tensor(expected, dtype=actual.dtype)
    torch.testing.assert_close(actual, expected, atol=atol, rtol=0)


def surrogate(ratio: float, advantage: float, **settings) -> tuple[float, float]:
    """Loss of one token and its gradient with respect to the log-probability."""
    logprobs = torch.tensor([[math.log(ratio)]], dtype=torch.float64, requires_grad=True)
    loss = clipped_surrogate(logprobs, torch.zeros(1, 1), torch.tensor([[advantage]]), bits("1"), **settings)
    loss.sum().backward()
    assert logprobs.grad is not None
    return loss.item(), logprobs.grad.item()


# ---------------------------------------------------------------------------------------- clipped_surrogate


@pytest.mark.parametrize(
    ("ratio", "advantage", "dual_clip", "loss", "gradient"),
    [
        (10.0, -1.0, 3.0, 3.0, 0.0),  # bounded by c |A|
        (10.0, -1.0, None, 10.0, 10.0),
        (10.0, 1.0, 3.0, -1.2, 0.0),  # a positive advantage knows no dual clip
        (10.0, 1.0, None, -1.2, 0.0),
        (0.5, -1.0, 3.0, 0.8, 0.0),
        (1.1, 2.0, 3.0, -2.2, -2.2),
        (0.5, 1.0, None, -0.5, -0.5),  # back towards 1: not clipped
        (1.1, -2.0, None, 2.2, 2.2),
        (10.0, 0.0, 3.0, 0.0, 0.0),
    ],
)
def test_surrogate_by_hand(ratio, advantage, dual_clip, loss, gradient):  # case C3
    value, slope = surrogate(ratio, advantage, dual_clip=dual_clip)
    assert value == pytest.approx(loss, abs=1e-6)
    assert slope == pytest.approx(gradient, abs=1e-6)


def test_each_side_has_its_clip():
    # 1 + 0.28 and 1 − 0.1
    assert surrogate(2.0, 1.0, clip_low=0.1, clip_high=0.28)[0] == pytest.approx(-1.28)
    assert surrogate(0.5, -1.0, clip_low=0.1, clip_high=0.28)[0] == pytest.approx(0.9)
    assert surrogate(50.0, 1.0, clip_high=INF) == pytest.approx((-50.0, -50.0))


@given(st.floats(0.05, 20), st.floats(-5, 5))
@settings(deadline=None, derandomize=True, max_examples=100)
def test_surrogate_is_pessimistic(ratio, advantage):
    loss, gradient = surrogate(ratio, advantage)
    assert loss >= -ratio * advantage - 1e-6 * (1.0 + abs(ratio * advantage))
    # what gradient there is moves the policy towards good tokens and from bad ones
    assert gradient * advantage <= 0


def test_first_step_is_the_plain_policy_gradient():  # case A2
    logprobs = torch.tensor([[-1.0, -2.0, -0.5]], requires_grad=True)
    advantages = torch.tensor([[1.0, -2.0, 0.5]])
    loss = clipped_surrogate(logprobs, logprobs.detach(), advantages, bits("111"), dual_clip=3.0)
    close(loss.detach(), -advantages)
    loss.sum().backward()
    assert logprobs.grad is not None
    close(logprobs.grad, -advantages)


def test_a_ratio_beyond_fp32_is_finite():
    logprobs = torch.tensor([[0.0, 0.0, -INF]], requires_grad=True)
    advantages = torch.tensor([[1.0, 0.0, 1.0]])
    loss = clipped_surrogate(logprobs, torch.tensor([[-200.0, -200.0, -1.0]]), advantages, bits("111"))
    close(loss.detach(), [[-1.2, 0.0, 0.0]])
    loss.sum().backward()
    assert logprobs.grad is not None and logprobs.grad.tolist() == [[0.0, 0.0, 0.0]]


@pytest.mark.parametrize("dual_clip", [None, 3.0])
@pytest.mark.parametrize("poison", [NAN, INF, -INF])
@pytest.mark.parametrize("where", [0, 1, 2])
def test_surrogate_of_masked_slots(dual_clip, poison, where):
    tensors = [torch.tensor([[-1.0, poison if i == where else 2.0]], requires_grad=True) for i in range(3)]
    loss = clipped_surrogate(*tensors, bits("10"), dual_clip=dual_clip)
    close(loss.detach(), [[1.0, 0.0]])  # ratio 1, advantage −1
    loss.sum().backward()
    for x in tensors:
        assert x.grad is not None and x.grad.isfinite().all()
        assert x.grad[0, 1] == 0 and x.grad[0, 0] != 0


def test_surrogate_gradcheck():
    g = torch.Generator().manual_seed(0)
    x = [torch.randn(3, 4, dtype=torch.float64, generator=g, requires_grad=True) for _ in range(3)]
    mask = torch.rand(3, 4, generator=g) > 0.2
    assert torch.autograd.gradcheck(lambda *t: clipped_surrogate(*t, mask, dual_clip=2.0), x)


# -------------------------------------------------------------------------------------------- clipped_value


@pytest.mark.parametrize(
    ("new", "clip", "loss", "gradient"),
    [
        (1.0, 0.2, 40.5, -9.0),  # max(9², 5.2²) / 2: the unclipped one
        (9.0, 0.2, 11.52, 0.0),  # max(1², 4.8²) / 2: the clipped one, which does not move
        (5.1, 0.2, 12.005, -4.9),  # inside the range: 4.9² / 2
        (9.0, None, 0.5, -1.0),
        (1.0, 0.0, 40.5, -9.0),
    ],
)
def test_value_by_hand(new, clip, loss, gradient):  # case C3
    values = torch.tensor([[new]], requires_grad=True)
    out = clipped_value(values, torch.tensor([[5.0]]), torch.tensor([[10.0]]), bits("1"), clip=clip)
    out.sum().backward()
    close(out.detach(), [[loss]], atol=1e-4)
    assert values.grad is not None
    close(values.grad, [[gradient]], atol=1e-4)


@pytest.mark.parametrize("clip", [None, 0.2])
@pytest.mark.parametrize("poison", [NAN, INF, -INF])
@pytest.mark.parametrize("where", [0, 1, 2])
def test_value_of_masked_slots(clip, poison, where):
    columns = [[1.0, 3.0], [1.1, 3.0], [2.0, 3.0]]
    tensors = [torch.tensor([[a, poison if i == where else b]], requires_grad=True) for i, (a, b) in enumerate(columns)]
    loss = clipped_value(*tensors, bits("10"), clip=clip)
    close(loss.detach(), [[0.5, 0.0]])  # (1 − 2)² / 2, inside the range
    loss.sum().backward()
    assert tensors[0].grad is not None and tensors[0].grad.tolist() == [[-1.0, 0.0]]
    for x in tensors:
        assert x.grad is None or (x.grad.isfinite().all() and x.grad[0, 1] == 0)


def test_value_gradcheck():
    g = torch.Generator().manual_seed(0)
    x = [torch.randn(3, 4, dtype=torch.float64, generator=g, requires_grad=True) for _ in range(3)]
    mask = torch.rand(3, 4, generator=g) > 0.2
    assert torch.autograd.gradcheck(lambda *t: clipped_value(*t, mask, clip=0.5), x)


@given(st.integers(0, 10_000), st.integers(1, 4))
@settings(deadline=None, derandomize=True, max_examples=25)
def test_token_losses_ignore_padding_and_other_rows(seed, pad):
    g = torch.Generator().manual_seed(seed)
    x = [torch.randn(3, 4, generator=g) for _ in range(3)]
    mask = torch.rand(3, 4, generator=g) > 0.3
    for loss in (clipped_surrogate, clipped_value):
        base = loss(*x, mask)
        wide = loss(
            *(torch.nn.functional.pad(t, (0, pad), value=NAN) for t in x), torch.nn.functional.pad(mask, (0, pad))
        )
        assert torch.equal(wide[:, :4], base) and (wide[:, 4:] == 0).all()
        assert torch.equal(torch.cat([loss(*(t[i : i + 1] for t in x), mask[i : i + 1]) for i in range(3)]), base)


# -------------------------------------------------------------------------------------------- bradley_terry


def test_bradley_terry_by_hand():
    # log(1 + e^−1), log 2, log(1 + e^2)
    loss = bradley_terry(torch.tensor([2.0, 5.0, -1.0]), torch.tensor([1.0, 5.0, 1.0]))
    close(loss, [0.313262, 0.693147, 2.126928])


def test_the_last_real_token_is_compared():  # case D2
    mask = bits("111100 111111")
    for pad in (9.0, -9.0):
        scores = torch.tensor([[0.0, 0.0, 1.0, 2.0, pad, pad], [0.0, 0.0, 0.5, 0.5, 0.5, 1.0]])
        chosen, rejected = scores.gather(1, last_index(mask)[:, None])
        close(bradley_terry(chosen, rejected), [0.313262])  # log(1 + e^−(2 − 1))


def test_ties_cost_log_two_and_fp32_sees_what_bf16_does_not():  # case D6
    chosen, rejected = torch.tensor([10.03, 3.2, -1.0, 7.0]), torch.tensor([10.01, 1.1, 0.5, 7.0])
    # differences 0.02, 2.1, −1.5, 0
    close(bradley_terry(chosen, rejected), [0.683197, 0.115522, 1.701413, 0.693147])
    low = bradley_terry(chosen.bfloat16(), rejected.bfloat16())
    assert low.dtype == torch.float32
    close(low[[0, 3]], [0.693147, 0.693147])


def test_margin():
    # z = 2 − 1 − 1 = 0; 2 − 1 + 1 = 2
    loss = bradley_terry(torch.tensor([2.0, 2.0]), torch.tensor([1.0, 1.0]), margin=torch.tensor([1, -1]))
    close(loss, [0.693147, 0.126928])


def test_label_smoothing():
    # 0.9 · 0.313262 + 0.1 · 1.313262
    close(bradley_terry(torch.tensor([2.0]), torch.tensor([1.0]), label_smoothing=0.1), [0.413262])
    # its minimum is where σ(z) = 0.9, z = log 9
    z = torch.tensor([math.log(9.0)], requires_grad=True)
    bradley_terry(z, torch.zeros(1), label_smoothing=0.1).sum().backward()
    assert z.grad is not None
    close(z.grad, [0.0], atol=1e-6)


def test_extreme_scores_stay_finite():
    chosen = torch.tensor([1e4, -1e4], requires_grad=True)
    loss = bradley_terry(chosen, torch.zeros(2), label_smoothing=0.1)
    close(loss.detach(), [1e3, 9e3], atol=1e-1)
    loss.sum().backward()
    assert chosen.grad is not None
    close(chosen.grad, [0.1, -0.9])


def test_bradley_terry_gradient():
    g = torch.Generator().manual_seed(0)
    x = [torch.randn(4, dtype=torch.float64, generator=g, requires_grad=True) for _ in range(3)]
    assert torch.autograd.gradcheck(lambda c, r, m: bradley_terry(c, r, margin=m, label_smoothing=0.1), x)
    chosen, rejected = (torch.zeros(2, requires_grad=True) for _ in range(2))
    bradley_terry(chosen, rejected).sum().backward()
    assert chosen.grad is not None and rejected.grad is not None
    assert chosen.grad.tolist() == [-0.5, -0.5] and rejected.grad.tolist() == [0.5, 0.5]


# ------------------------------------------------------------------------------------------------------ dpo


def test_dpo_by_hand():
    # log-ratios to the reference +2 and −1: z = 0.5 · 3 = 1.5; log(1 + e^−1.5) = 0.201413
    loss = dpo(torch.tensor([-10.0]), torch.tensor([-21.0]), torch.tensor([-12.0]), torch.tensor([-20.0]), beta=0.5)
    close(loss, [0.201413])
    # 0.9 · 0.201413 + 0.1 · 1.701413
    smooth = dpo(
        torch.tensor([-10.0]),
        torch.tensor([-21.0]),
        torch.tensor([-12.0]),
        torch.tensor([-20.0]),
        beta=0.5,
        label_smoothing=0.1,
    )
    close(smooth, [0.351413])


@given(st.integers(0, 10_000))
@settings(deadline=None, derandomize=True, max_examples=25)
def test_dpo_identities(seed):
    g = torch.Generator().manual_seed(seed)
    pc, pr, rc, rr = 10 * torch.randn(4, 3, generator=g, dtype=torch.float64)
    # a policy equal to its reference knows nothing
    close(dpo(pc, pr, pc, pr, beta=0.1), [math.log(2.0)] * 3)
    # it is the reward model's loss on implicit rewards
    close(dpo(pc, pr, rc, rr, beta=0.1), bradley_terry(0.1 * (pc - rc), 0.1 * (pr - rr)), atol=1e-10)
    order = torch.tensor([2, 0, 1])
    assert torch.equal(dpo(pc[order], pr[order], rc[order], rr[order], beta=0.1), dpo(pc, pr, rc, rr, beta=0.1)[order])


def test_dpo_gradient():
    g = torch.Generator().manual_seed(0)
    x = [torch.randn(3, dtype=torch.float64, generator=g, requires_grad=True) for _ in range(4)]
    assert torch.autograd.gradcheck(lambda *t: dpo(*t, beta=0.3, label_smoothing=0.1), x)
    pc, pr = (torch.tensor([-5.0], requires_grad=True) for _ in range(2))
    dpo(pc, pr, torch.tensor([-5.0]), torch.tensor([-5.0]), beta=0.2).sum().backward()
    # −β σ(0) for the chosen, + for the rejected
    assert pc.grad is not None and pr.grad is not None
    close(pc.grad, [-0.1])
    close(pr.grad, [0.1])


# ------------------------------------------------------------------------------------------ shapes, purity


def test_shapes_and_dtypes():
    @jaxtyped(typechecker=beartype)
    def tokens(
        a: Float[Tensor, "B T"], b: Float[Tensor, "B T"], c: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]
    ) -> tuple[Float32[Tensor, "B T"], Float32[Tensor, "B T"]]:
        return clipped_surrogate(a, b, c, mask), clipped_value(a, b, c, mask)

    @jaxtyped(typechecker=beartype)
    def pairs(a: Float[Tensor, " B"], b: Float[Tensor, " B"]) -> tuple[Float32[Tensor, " B"], Float32[Tensor, " B"]]:
        return bradley_terry(a, b), dpo(a, b, a, b, beta=0.1)

    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        x = torch.ones(2, 3, dtype=dtype)
        tokens(x, x, torch.ones(2, 3), bits("110 111"))
        pairs(x[:, 0], x[:, 1])


def test_refusals():
    row, column, mask = torch.ones(1, 3), torch.ones(1, 1), bits("111")
    for loss in (clipped_surrogate, clipped_value):
        for i in range(3):
            tensors = [column if i == j else row for j in range(3)]
            with pytest.raises(ValueError, match=r"\[1, 1\]"):
                loss(*tensors, mask)
        with pytest.raises(ValueError, match=r"mask \[1, 1\]"):
            loss(row, row, row, bits("1"))
        with pytest.raises(ValueError, match="bool"):
            loss(row, row, row, mask.float())
    with pytest.raises(ValueError, match="clip_low"):
        clipped_surrogate(row, row, row, mask, clip_low=-0.1)
    with pytest.raises(ValueError, match="dual_clip"):
        clipped_surrogate(row, row, row, mask, dual_clip=1.0)
    with pytest.raises(ValueError, match="clip"):
        clipped_value(row, row, row, mask, clip=-0.1)
    three, one = torch.ones(3), torch.ones(1)
    with pytest.raises(ValueError, match=r"\[3\].*\[1\]"):
        bradley_terry(three, one)
    with pytest.raises(ValueError, match=r"margin \[1\]"):
        bradley_terry(three, three, margin=one)
    with pytest.raises(ValueError, match=r"\[1, 3\]"):
        bradley_terry(row, row)
    with pytest.raises(ValueError, match="label_smoothing"):
        bradley_terry(three, three, label_smoothing=0.6)
    for i in range(4):
        with pytest.raises(ValueError, match=r"\[1\]"):
            dpo(*(one if i == j else three for j in range(4)), beta=0.1)  # pyright: ignore[reportCallIssue]
    with pytest.raises(ValueError, match="beta"):
        dpo(three, three, three, three, beta=0.0)


def test_arguments_are_not_written_to():
    g = torch.Generator().manual_seed(0)
    x = [torch.randn(2, 3, generator=g) for _ in range(4)]
    copies = [t.clone() for t in x]
    clipped_surrogate(x[0], x[1], x[2], bits("110 100"), dual_clip=2.0)
    clipped_value(x[0], x[1], x[2], bits("110 100"))
    bradley_terry(x[0][0], x[1][0], margin=x[2][0], label_smoothing=0.1)
    dpo(x[0][0], x[1][0], x[2][0], x[3][0], beta=0.1)
    assert all(torch.equal(a, b) for a, b in zip(x, copies, strict=True))

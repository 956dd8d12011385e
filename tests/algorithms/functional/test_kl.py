"""Estimators of the divergence from the reference, and the adaptive coefficient."""
# ruff: noqa: F722 (the shapes of jaxtyping are strings that are no Python)

import math

import pytest
import torch
from beartype import beartype
from hypothesis import given, settings, strategies as st
from jaxtyping import Bool, Float, Float32, jaxtyped
from torch import Tensor

from rlhf.algorithms.functional import kl
from rlhf.algorithms.functional.logprobs import log_softmax

NAN, INF = float("nan"), float("inf")


def close(actual: Tensor, expected, atol: float = 1e-5) -> None:
    expected = torch.as_tensor(expected, dtype=actual.dtype)
    torch.testing.assert_close(actual, expected, atol=atol, rtol=0)


LOGPROBS = torch.tensor([[-1.0, -0.5, -2.0]])
REF = torch.tensor([[-1.5, -0.4, -2.0]])
BY_HAND = {
    "k1": ([0.5, -0.1, 0.0], 0.133333),  # log-ratios
    "k2": ([0.125, 0.005, 0.0], 0.043333),  # 0.5² / 2, 0.1² / 2
    "k3": ([0.106531, 0.005171, 0.0], 0.037234),  # e^−0.5 − 1 + 0.5, e^0.1 − 1 − 0.1
}


@pytest.mark.parametrize("name", ["k1", "k2", "k3"])
def test_estimators_by_hand(name):  # case B6
    expected, mean = BY_HAND[name]
    for value in (getattr(kl, name)(LOGPROBS, REF), kl.estimate(name, LOGPROBS, REF)):
        close(value, [expected])
        close(value.mean(), mean)


def test_unknown_estimator():  # case B6
    with pytest.raises(ValueError, match=r"'k4'.*k1, k2, k3"):
        kl.estimate("k4", LOGPROBS, REF)


@pytest.mark.parametrize("name", ["k1", "k2", "k3"])
@pytest.mark.parametrize("poison", [NAN, INF, -INF])
def test_masked_slots(name, poison):  # case I1
    for which in (0, 1):
        tensors = [
            torch.nn.functional.pad(x, (0, 1), value=poison if i == which else -9.0).requires_grad_()
            for i, x in enumerate((LOGPROBS, REF))
        ]
        value = kl.estimate(name, *tensors, mask=torch.tensor([[True, True, True, False]]))
        close(value.detach(), [[*BY_HAND[name][0], 0.0]])
        value.sum().backward()
        for x in tensors:
            assert x.grad is not None and x.grad.isfinite().all() and x.grad[0, 3] == 0 and x.grad[0, 0] != 0


def test_policy_above_the_reference_is_positive():  # case I1
    # −1 − (−1.5) and −2 − (−2.5): 1 nat for the sequence, not −8 with the pad
    value = kl.k1(
        torch.tensor([[-1.0, -2.0, -9.0]]), torch.tensor([[-1.5, -2.5, 0.0]]), mask=torch.tensor([[True, True, False]])
    )
    close(value.sum(), 1.0)


@given(st.floats(-20, 20, width=32), st.floats(-20, 20, width=32))
@settings(deadline=None, derandomize=True, max_examples=200)
def test_k2_and_k3_are_never_negative(a, b):
    logprobs, ref = torch.tensor([a]), torch.tensor([b])
    assert kl.k2(logprobs, ref) >= 0
    assert kl.k3(logprobs, ref) >= -1e-12
    assert (kl.k1(logprobs, ref) == -kl.k1(ref, logprobs)).all()


def test_k3_is_accurate_for_small_differences():
    # x²/2 + x³/6 at x = 1e-3; exp(x) − 1 − x in fp32 is off by up to 6e-8, a tenth of the value
    close(kl.k3(torch.tensor([-1e-3]), torch.tensor([0.0])), [5.001667e-7], atol=1e-9)


def test_exact_by_hand():
    # p = (½, ¼, ¼), q = uniform thirds: ½ log 1.5 + ½ log 0.75 = 0.058892
    p = torch.tensor([[[math.log(2.0), 0.0, 0.0]]])
    close(kl.exact(p, torch.zeros(1, 1, 3)), [[0.058892]])
    # the other direction: ⅓ log ⅔ + ⅔ log 4/3 = 0.056633
    close(kl.exact(torch.zeros(1, 1, 3), p), [[0.056633]])


def test_exact_of_a_copy_is_zero_at_any_temperature():  # case A2
    z = 5 * torch.randn(2, 3, 7, generator=torch.Generator().manual_seed(0))
    for temperature in (0.5, 1.0, 1.5):
        assert (kl.exact(z, z.clone(), temperature=temperature) == 0).all()


def test_exact_with_a_masked_vocabulary():
    policy = torch.tensor([[[0.0, 0.0, -INF]]], requires_grad=True)
    both = torch.tensor([[[math.log(3.0), 0.0, -INF]]])
    # p = ½, ½; q = ¾, ¼: ½ log ⅔ + ½ log 2 = 0.143841
    value = kl.exact(policy, both)
    close(value.detach(), [[0.143841]])
    value.sum().backward()
    assert policy.grad is not None and policy.grad.isfinite().all() and policy.grad[0, 0, 2] == 0
    # q = ½, ¼, ¼ : log 1 / 2 + log 2 / 2 = 0.346574, only the policy excludes the third
    close(kl.exact(policy.detach(), torch.tensor([[[math.log(2.0), 0.0, 0.0]]])), [[0.346574]])
    assert kl.exact(torch.zeros(1, 1, 3), policy.detach()).item() == INF


@given(st.integers(0, 10_000))
@settings(deadline=None, derandomize=True, max_examples=25)
def test_k1_and_k3_are_unbiased(seed):
    g = torch.Generator().manual_seed(seed)
    policy, ref = torch.randn(2, 1, 1, 4, generator=g, dtype=torch.float64)
    logp, logq = log_softmax(policy), log_softmax(ref)
    full = torch.distributions.kl_divergence(
        torch.distributions.Categorical(logits=policy), torch.distributions.Categorical(logits=ref)
    )
    close(kl.exact(policy, ref), full, atol=1e-12)
    close(kl.exact(policy, ref, temperature=2.0), kl.exact(policy / 2, ref / 2), atol=1e-12)
    for name in ("k1", "k3"):
        close((logp.exp() * kl.estimate(name, logp, logq)).sum(-1), full, atol=1e-12)


POLICY = torch.tensor([0.9, -0.3, 0.2], dtype=torch.float64)
REFERENCE = torch.tensor([-0.2, 0.4, 0.1], dtype=torch.float64)


def full_kl(policy: Tensor, reference: Tensor) -> Tensor:
    return kl.exact(policy.view(1, 1, -1), reference.view(1, 1, -1)).sum()


def loss_gradient(name: str) -> Tensor:
    """Gradient of the estimator as a loss, all actions enumerated at the policy's frequencies."""
    logits = POLICY.clone().requires_grad_()
    logp = log_softmax(logits.view(1, 1, -1))
    ref = log_softmax(REFERENCE.view(1, 1, -1))
    (logp.detach().exp() * kl.estimate(name, logp, ref)).sum().backward()
    assert logits.grad is not None
    return logits.grad


@pytest.mark.parametrize("name", ["k2", "k3"])
def test_one_small_step_lowers_the_full_kl(name):  # case B6
    before = full_kl(POLICY, REFERENCE)
    after = full_kl(POLICY - 0.01 * loss_gradient(name), REFERENCE)
    assert before - after > 1e-3


def test_what_each_estimator_descends_as_a_loss():  # case B6
    close(loss_gradient("k1"), [0.0, 0.0, 0.0], atol=1e-12)
    policy = POLICY.clone().requires_grad_()
    full_kl(policy, REFERENCE).backward()
    assert policy.grad is not None
    close(loss_gradient("k2"), policy.grad, atol=1e-12)
    # k3 descends the other direction, whose gradient is p − q
    close(loss_gradient("k3"), POLICY.softmax(-1) - REFERENCE.softmax(-1), atol=1e-12)


@pytest.mark.parametrize("name", ["k1", "k2", "k3"])
def test_gradcheck(name):
    x = torch.randn(2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    y = torch.randn(2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1), requires_grad=True)
    mask = torch.tensor([[True, False, True], [False, True, True]])
    assert torch.autograd.gradcheck(lambda a, b: kl.estimate(name, a, b, mask=mask), (x, y))


def test_exact_gradient():
    g = torch.Generator().manual_seed(0)
    x, y = (torch.randn(2, 2, 3, dtype=torch.float64, generator=g, requires_grad=True) for _ in range(2))
    mask = torch.tensor([[True, False], [True, True]])
    assert torch.autograd.gradcheck(lambda a, b: kl.exact(a, b, mask=mask, temperature=0.7), (x, y))
    poisoned = x.detach().masked_fill(~mask[..., None], NAN).requires_grad_()
    value = kl.exact(poisoned, y.detach().masked_fill(~mask[..., None], INF), mask=mask)
    value.sum().backward()
    assert value[0, 1] == 0
    assert poisoned.grad is not None and poisoned.grad.isfinite().all() and (poisoned.grad[0, 1] == 0).all()


def test_shapes_and_dtypes():
    @jaxtyped(typechecker=beartype)
    def exact(a: Float[Tensor, "B T V"], b: Float[Tensor, "B T V"]) -> Float32[Tensor, "B T"]:
        return kl.exact(a, b)

    @jaxtyped(typechecker=beartype)
    def estimate(
        name: str, a: Float[Tensor, "B T"], b: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]
    ) -> Float32[Tensor, "B T"]:
        return kl.estimate(name, a, b, mask=mask)

    exact(torch.ones(2, 3, 4, dtype=torch.bfloat16), torch.ones(2, 3, 4))
    for name in kl.ESTIMATORS:
        estimate(name, torch.ones(2, 3).bfloat16(), torch.ones(2, 3), torch.ones(2, 3, dtype=torch.bool))


@pytest.mark.parametrize("name", ["k1", "k2", "k3"])
def test_wrong_shapes_are_refused(name):
    with pytest.raises(ValueError, match=r"\[1, 3\].*\[1, 1\]"):
        kl.estimate(name, LOGPROBS, REF[:, :1])
    with pytest.raises(ValueError, match=r"\[1, 3\].*\[3\]"):
        kl.estimate(name, LOGPROBS, REF, mask=torch.tensor([True, True, True]))
    with pytest.raises(ValueError, match="bool"):
        kl.estimate(name, LOGPROBS, REF, mask=torch.ones(1, 3))
    with pytest.raises(ValueError, match=r"\[1, 1, 3\].*\[1, 1, 1\]"):
        kl.exact(LOGPROBS[None], REF[None, :, :1])


def test_arguments_are_not_written_to():
    a, b = LOGPROBS.clone(), REF.clone()
    for name in kl.ESTIMATORS:
        kl.estimate(name, a, b, mask=torch.tensor([[True, False, True]]))
    kl.exact(a[None], b[None])
    assert torch.equal(a, LOGPROBS) and torch.equal(b, REF)


def test_adaptive_coefficient():  # case F3
    coef, seen = 0.2, []
    for observed in (12.0, 12.0, 3.0):
        coef = kl.adaptive_update(coef, observed, target=6.0, horizon=10_000, samples=256)
        seen.append(round(coef, 6))
    # 0.2 · 1.00512, · 1.00512, · 0.99488: errors of +100 % and −50 % both count as 20 %
    assert seen == [0.201024, 0.202053, 0.201019]


def test_adaptive_coefficient_inside_the_clip():
    # error 6.6 / 6 − 1 = 0.1; 0.2 · (1 + 0.1 · 100 / 1000) = 0.202
    assert kl.adaptive_update(0.2, 6.6, target=6, horizon=1000, samples=100) == pytest.approx(0.202, abs=1e-12)
    assert kl.adaptive_update(0.2, 6.0, target=6, horizon=1000, samples=100) == 0.2
    # clip 0.5, error −100 %: 0.2 · (1 − 0.5 · 0.1) = 0.19
    assert kl.adaptive_update(0.2, 0.0, target=6, horizon=1000, samples=100, clip=0.5) == pytest.approx(0.19)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target": 0.0}, "target"),
        ({"horizon": 0.0}, "horizon"),
        ({"samples": -1}, "samples"),
        ({"clip": 0.0}, "clip"),
        ({"observed": NAN}, "NaN"),
        ({"samples": 100_000}, "negative"),
    ],
)
def test_adaptive_coefficient_refuses(change, message):
    settings_ = {"coef": 0.2, "observed": 6.0, "target": 6.0, "horizon": 10_000, "samples": 256} | change
    with pytest.raises(ValueError, match=message):
        kl.adaptive_update(settings_.pop("coef"), settings_.pop("observed"), **settings_)


def test_rising_target():
    # 8 nats over 4 iterations: 2 more after each, and no more behind the last
    assert [kl.rising_target(done, budget=8.0, iterations=4) for done in (1, 2, 3, 4, 5)] == [2.0, 4.0, 6.0, 8.0, 8.0]
    assert kl.rising_target(1, budget=0.5, iterations=1) == 0.5


@pytest.mark.parametrize("change", [{"budget": 0.0}, {"budget": NAN}, {"iterations": 0}, {"done": 0}])
def test_rising_target_refuses(change):
    settings_ = {"done": 1, "budget": 8.0, "iterations": 4} | change
    with pytest.raises(ValueError, match=f"{next(iter(change))}="):
        kl.rising_target(settings_.pop("done"), **settings_)

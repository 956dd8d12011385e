"""Log-probabilities of tokens, entropy, the whole log-distribution."""
# ruff: noqa: F722 (the shapes of jaxtyping are strings that are no Python)

import math

import pytest
import torch
from beartype import beartype
from hypothesis import given, settings, strategies as st
from jaxtyping import Float, Float32, Int, jaxtyped
from torch import Tensor

from rlhf.algorithms.functional.logprobs import collision, entropy, log_softmax, token_logprobs

NAN, INF = float("nan"), float("inf")


def close(actual: Tensor, expected, atol: float = 1e-5) -> None:
    expected = torch.as_tensor(expected, dtype=actual.dtype)
    torch.testing.assert_close(actual, expected, atol=atol, rtol=0)


# log2 and friends make the sums readable: probabilities 1/2, 1/4, 1/4
QUARTERS = torch.tensor([[[math.log(2.0), 0.0, 0.0]]])


@pytest.mark.parametrize(("token", "p"), [(0, 0.5), (1, 0.25), (2, 0.25)])
def test_logprob_by_hand(token, p):
    close(token_logprobs(QUARTERS, torch.tensor([[token]])), [[math.log(p)]])


@pytest.mark.parametrize(("temperature", "expected"), [(1.0, -0.407606), (0.5, -0.142932)])
def test_temperature(temperature, expected):  # case A2
    # T = 1: 2 − log(e² + e + 1) = 2 − 2.407606;  T = 0.5: 4 − log(e⁴ + e² + 1) = 4 − 4.142932
    logits = torch.tensor([[[2.0, 1.0, 0.0]]])
    close(token_logprobs(logits, torch.tensor([[0]]), temperature=temperature), [[expected]])


def test_entropy_by_hand():
    # ½ log 2 + 2 · ¼ log 4 = 1.5 log 2 = 1.039721
    close(entropy(QUARTERS), [[1.039721]])
    # τ = ½ squares the weights 2, 1, 1 to 4, 1, 1: ⅔ log 1.5 + ⅓ log 6 = 0.867563
    close(entropy(QUARTERS, temperature=0.5), [[0.867563]])


def test_entropy_of_a_uniform_and_of_a_certain_distribution():
    close(entropy(torch.full((1, 1, 50), 7.0)), [[math.log(50)]])
    close(entropy(torch.tensor([[[1000.0, 0.0, 0.0]]])), [[0.0]])


def test_collision_by_hand():
    # (1/2)² + 2 · (1/4)² = 0.375; τ = ½ gives 2/3, 1/6, 1/6: 4/9 + 2/36 = 0.5
    close(collision(QUARTERS), [[0.375]])
    close(collision(QUARTERS, temperature=0.5), [[0.5]])
    close(collision(torch.tensor([[[1000.0, 0.0, 0.0]]])), [[1.0]])
    close(collision(QUARTERS, mask=torch.tensor([[False]])), [[0.0]])


def test_collision_gives_the_norm_of_the_gradient():
    logits = torch.randn(1, 1, 7, dtype=torch.float64, requires_grad=True)
    logprob = token_logprobs(logits, torch.tensor([[3]]))
    (slope,) = torch.autograd.grad(logprob.sum(), logits)
    expected = 1 - 2 * logprob.exp() + collision(logits)
    torch.testing.assert_close(slope.square().sum(-1), expected)


def test_a_masked_vocabulary():
    logits = torch.tensor([[[math.log(3.0), -INF, 0.0, -INF]]], requires_grad=True)
    # the two that remain have 3/4 and 1/4
    picked = token_logprobs(logits, torch.tensor([[0]]))
    close(picked.detach(), [[math.log(0.75)]])
    spread = entropy(logits)
    close(spread.detach(), [[0.562335]])  # ¾ log(4/3) + ¼ log 4
    (picked.sum() + spread.sum()).backward()
    assert logits.grad is not None and logits.grad.isfinite().all()
    assert logits.grad[0, 0, 1] == 0 and logits.grad[0, 0, 3] == 0
    assert token_logprobs(logits.detach(), torch.tensor([[1]])).item() == -INF


def test_one_token_left():
    logits = torch.tensor([[[-INF, 2.5, -INF]]], requires_grad=True)
    spread = entropy(logits)
    spread.sum().backward()
    assert spread.item() == 0.0
    assert logits.grad is not None and (logits.grad == 0).all()


def test_bf16_logits_are_scored_in_fp32():  # case E8
    g = torch.Generator().manual_seed(0)
    logits = (3 * torch.randn(1, 64, 32_000, generator=g)).bfloat16()
    tokens = torch.randint(0, 32_000, (1, 64), generator=g)
    exact = logits.double().log_softmax(-1).gather(-1, tokens[..., None])[..., 0]
    ours = token_logprobs(logits, tokens)
    assert ours.dtype == torch.float32
    close(ours.double(), exact)
    assert (logits.log_softmax(-1).gather(-1, tokens[..., None])[..., 0].double() - exact).abs().max() > 0.01


def test_large_logits_keep_their_digits():
    # 30000.5 − log(e^30000.5 + e^30000) = −log(1 + e^−0.5) = −0.474077
    close(token_logprobs(torch.tensor([[[30000.5, 30000.0]]]), torch.tensor([[0]])), [[-0.474077]])


@given(st.integers(0, 10_000), st.sampled_from([0.5, 1.0, 1.5]))
@settings(deadline=None, derandomize=True, max_examples=25)
def test_probabilities_sum_to_one_and_give_the_entropy(seed, temperature):
    g = torch.Generator().manual_seed(seed)
    logits = 4 * torch.randn(2, 3, 5, generator=g)
    each = torch.stack(
        [token_logprobs(logits, torch.full((2, 3), v), temperature=temperature) for v in range(5)], dim=-1
    )
    close(each.exp().sum(-1), torch.ones(2, 3))
    close(log_softmax(logits, temperature=temperature), each)
    spread = entropy(logits, temperature=temperature)
    close(spread, torch.distributions.Categorical(logits=logits / temperature).entropy())
    # adding a constant to the logits changes no distribution, and no row sees another
    close(entropy(logits + 3.0, temperature=temperature), spread)
    close(entropy(logits.flip(0), temperature=temperature).flip(0), spread)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_gradients(temperature):
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 3, 4, generator=g, dtype=torch.float64, requires_grad=True)
    tokens = torch.randint(0, 4, (2, 3), generator=g)
    assert torch.autograd.gradcheck(lambda z: token_logprobs(z, tokens, temperature=temperature), (logits,))
    assert torch.autograd.gradcheck(lambda z: entropy(z, temperature=temperature), (logits,))
    assert torch.autograd.gradcheck(lambda z: log_softmax(z, temperature=temperature), (logits,))


def test_gradient_raises_the_chosen_token_only():
    logits = torch.zeros(1, 1, 4, requires_grad=True)
    token_logprobs(logits, torch.tensor([[2]])).sum().backward()
    # one-hot minus the uniform probabilities
    assert logits.grad is not None
    close(logits.grad, [[[-0.25, -0.25, 0.75, -0.25]]])


@pytest.mark.parametrize("poison", [NAN, INF, -INF])
def test_masked_positions_may_hold_anything(poison):
    logits = torch.cat([QUARTERS, torch.full((1, 1, 3), poison)], dim=1).requires_grad_()
    tokens, mask = torch.tensor([[0, -100]]), torch.tensor([[True, False]])
    picked, spread = token_logprobs(logits, tokens, mask=mask), entropy(logits, mask=mask)
    close(picked.detach(), [[math.log(0.5), 0.0]])
    close(spread.detach(), [[1.039721, 0.0]])
    (picked + spread).sum().backward()
    assert logits.grad is not None
    assert (logits.grad[0, 1] == 0).all() and (logits.grad[0, 0] != 0).any()
    assert logits.grad.isfinite().all()


def test_shapes_and_dtypes():
    @jaxtyped(typechecker=beartype)
    def pick(logits: Float[Tensor, "B T V"], tokens: Int[Tensor, "B T"]) -> Float32[Tensor, "B T"]:
        return token_logprobs(logits, tokens)

    @jaxtyped(typechecker=beartype)
    def spread(logits: Float[Tensor, "B T V"]) -> Float32[Tensor, "B T"]:
        return entropy(logits)

    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        pick(torch.ones(2, 3, 5, dtype=dtype), torch.ones(2, 3, dtype=torch.int32))
        spread(torch.ones(2, 3, 5, dtype=dtype))
    assert entropy(torch.ones(2, 3, 5, dtype=torch.float64)).dtype == torch.float64
    assert pick(torch.ones(2, 0, 5), torch.ones(2, 0, dtype=torch.int64)).shape == (2, 0)


def test_refusals():
    logits, tokens = torch.ones(1, 3, 5), torch.ones(1, 3, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"\[1, 3, 5\].*\[1, 1\]"):
        token_logprobs(logits, tokens[:, :1])
    with pytest.raises(ValueError, match=r"\[3, 5\]"):
        token_logprobs(logits[0], tokens[0])
    with pytest.raises(ValueError, match="integer"):
        token_logprobs(logits, tokens.float())
    with pytest.raises(ValueError, match=r"\[1, 3\].*\[1, 2\]"):
        entropy(logits, mask=torch.tensor([[True, True]]))
    with pytest.raises(ValueError, match="vocabulary"):
        entropy(torch.ones(1, 3, 0))
    for bad in (0.0, -1.0, NAN):
        with pytest.raises(ValueError, match="temperature"):
            token_logprobs(logits, tokens, temperature=bad)
        with pytest.raises(ValueError, match="temperature"):
            entropy(logits, temperature=bad)


def test_arguments_are_not_written_to():
    logits, tokens = QUARTERS.clone(), torch.tensor([[1]])
    token_logprobs(logits, tokens, temperature=2.0), entropy(logits, mask=torch.tensor([[False]]))
    assert torch.equal(logits, QUARTERS) and tokens.tolist() == [[1]]

"""Baselines of single tokens, and the λ of a response."""

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from rlhf.algorithms.functional.advantages import gae, returns
from rlhf.algorithms.functional.baselines import greedy_baseline, length_adaptive_lambda, optimal_token_baseline
from rlhf.algorithms.functional.logprobs import collision, token_logprobs

NAN = float("nan")


def bits(text: str) -> Tensor:
    return torch.tensor([[c == "1" for c in row] for row in text.split()])


def close(actual: Tensor, expected, atol: float = 1e-5) -> None:
    torch.testing.assert_close(actual, torch.as_tensor(expected, dtype=actual.dtype), atol=atol, rtol=0)


# --------------------------------------------------------------------------------------------------------------- λ


def test_lambda_by_hand():
    # lengths 4, 10, 1, 0 with α = 0.5: 1 − 1/2, 1 − 1/5; α l = 0.5 < 1: 0
    mask = torch.arange(10)[None, :] < torch.tensor([4, 10, 1, 0])[:, None]
    close(length_adaptive_lambda(mask, alpha=0.5), [0.5, 0.8, 0.0, 0.0])
    holes = bits("1011001000")
    close(length_adaptive_lambda(holes, alpha=0.5), [0.5])  # its four tokens count, not its width


def test_its_powers_add_up_to_the_share_of_the_response():
    mask = torch.ones(1, 2000, dtype=torch.bool)
    lam = length_adaptive_lambda(mask, alpha=0.05)
    assert sum(lam.item() ** k for k in range(2000)) == pytest.approx(0.05 * 2000, rel=1e-4)


def test_lambda_refusals():
    with pytest.raises(ValueError, match="alpha"):
        length_adaptive_lambda(bits("1"), alpha=0.0)
    with pytest.raises(ValueError, match="bool"):
        length_adaptive_lambda(torch.ones(1, 2), alpha=1.0)
    with pytest.raises(ValueError, match="mask"):
        length_adaptive_lambda(torch.ones(2, dtype=torch.bool), alpha=1.0)


# ---------------------------------------------------------------------------------------------------------- greedy


def test_greedy_baseline_by_hand():
    rewards = torch.tensor([[-0.1, 0.2, 2.0], [1.0, NAN, NAN]])
    # to go 2.1, 2.2, 2.0 less 0.5; 1.0 less 3.0
    found = greedy_baseline(rewards, torch.tensor([0.5, 3.0]), bits("111 100"))
    close(found, [[1.6, 1.7, 1.5], [-2.0, 0.0, 0.0]])


def test_greedy_baseline_is_gae_of_one_value():
    rewards = torch.tensor([[0.3, -0.2, 1.0]])
    values = torch.full((1, 3), 0.7)
    expected, _ = gae(rewards, values, bits("111"), gamma=1.0, lam=1.0)
    close(greedy_baseline(rewards, torch.tensor([0.7]), bits("111")), expected)


def test_greedy_refusals():
    with pytest.raises(ValueError, match=r"greedy \[1\]"):
        greedy_baseline(torch.ones(2, 3), torch.ones(1), bits("111 111"))
    with pytest.raises(ValueError, match=r"rewards \[1, 3\]"):
        greedy_baseline(torch.ones(1, 3), torch.ones(2), bits("111 111"))


# ---------------------------------------------------------------------------------------------------- optimal token


def otb(rewards, probabilities, collisions, mask, groups=None) -> Tensor:
    rewards, p, c = (torch.tensor(x, dtype=torch.float64) for x in (rewards, probabilities, collisions))
    groups = torch.zeros(len(rewards), dtype=torch.int64) if groups is None else torch.tensor(groups)
    return optimal_token_baseline(rewards, p.log(), c, bits(mask), groups)


def test_optimal_token_baseline_by_hand():
    # 1 − 2 π + Σ π²: row 1: 1 − 1 + 0.5 = 0.5, 1 − 0.4 + 0.4 = 1.0 → W 0.5, 1.5; row 2: 1 − 1.6 + 0.7 = 0.1,
    # 1 − 1.2 + 0.6 = 0.4 → W 0.1, 0.5. G: 1, 1 and 4, 3.
    # B_1 = (0.5 · 1 + 0.1 · 4) / 0.6 = 1.5; B_2 = (1.5 · 1 + 0.5 · 3) / 2 = 1.5
    found = otb([[0.0, 1.0], [1.0, 3.0]], [[0.5, 0.2], [0.8, 0.6]], [[0.5, 0.4], [0.7, 0.6]], "11 11")
    close(found, [[-0.5, -0.5], [2.5, 1.5]])


def test_only_responses_that_reach_a_position_count_there():
    # row 3 ends first: at t = 1 all, W 0.5, 0.5, 1, G 1, 2, 4: B = (0.5 + 1 + 4) / 2 = 2.75
    # t = 2: rows 1 and 2, W 1 and 1, G 1, 2: B = 1.5; t = 3: row 2 alone: 0
    p, c = [[0.5] * 3, [0.5] * 3, [0.25, NAN, NAN]], [[0.5] * 3, [0.5] * 3, [0.5, NAN, NAN]]
    found = otb([[0.0, 1.0, NAN], [0.0, 0.0, 2.0], [4.0, NAN, NAN]], p, c, "110 111 100")
    close(found, [[-1.75, -0.5, 0.0], [-0.75, 0.5, 0.0], [1.25, 0.0, 0.0]])


def test_where_nothing_can_be_learned_the_mean_is_plain():
    # both tokens certain: W = 0; G 1 and 2, mean 1.5
    found = otb([[1.0], [2.0]], [[1.0], [1.0]], [[1.0], [1.0]], "1 1")
    close(found, [[-0.5], [0.5]])


def test_a_nan_stays_in_its_group():
    found = otb([[NAN], [1.0], [1.0], [3.0]], [[0.5]] * 4, [[0.5]] * 4, "1 1 1 1", groups=[0, 0, 1, 1])
    assert found[:2].isnan().all()
    close(found[2:], [[-1.0], [1.0]])


def random_group(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rewards, log-probabilities, collisions and mask of four responses, from logits over five tokens."""
    g = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(4, 3, 5, generator=g, dtype=torch.float64)
    tokens = torch.randint(0, 5, (4, 3), generator=g)
    mask = torch.arange(3)[None, :] < torch.randint(1, 4, (4,), generator=g)[:, None]
    rewards = torch.randn(4, 3, generator=g, dtype=torch.float64)
    return rewards, token_logprobs(logits, tokens), collision(logits), mask


@given(st.integers(0, 10_000))
@settings(deadline=None, derandomize=True, max_examples=25)
def test_its_weights_are_the_squared_norms_of_the_gradient(seed):
    """B_t minimises Σ_i ‖∇_z log π(a_1 … a_t)‖² (G_i − B)², with the gradient taken by autograd from the logits."""
    g = torch.Generator().manual_seed(seed)
    logits = torch.randn(4, 3, 5, generator=g, dtype=torch.float64, requires_grad=True)
    tokens = torch.randint(0, 5, (4, 3), generator=g)
    rewards, mask = torch.randn(4, 3, generator=g, dtype=torch.float64), torch.ones(4, 3, dtype=torch.bool)
    logprobs = token_logprobs(logits, tokens)
    (slope,) = torch.autograd.grad(logprobs.sum(), logits)
    weight = slope.square().sum(-1).cumsum(1)
    advantages = optimal_token_baseline(rewards, logprobs, collision(logits), mask, torch.zeros(4, dtype=torch.int64))
    assert not advantages.requires_grad
    close((weight * advantages).sum(0), [0.0] * 3, atol=1e-10)  # where the derivative by B is 0
    close(advantages - advantages[:1], returns(rewards, mask, gamma=1.0) - returns(rewards, mask, gamma=1.0)[:1])


@given(st.integers(0, 10_000))
@settings(deadline=None, derandomize=True, max_examples=25)
def test_a_constant_for_the_prompt_is_no_news(seed):
    rewards, logprobs, collisions, mask = random_group(seed)
    groups = torch.zeros(4, dtype=torch.int64)
    base = optimal_token_baseline(rewards, logprobs, collisions, mask, groups)
    last = mask & ~torch.nn.functional.pad(mask[:, 1:], (0, 1))
    close(optimal_token_baseline(rewards + 5.0 * last, logprobs, collisions, mask, groups), base, atol=1e-10)
    alone = optimal_token_baseline(rewards, logprobs, collisions, mask, torch.arange(4))
    assert (alone == 0).all()


def test_optimal_token_refusals():
    x, mask, groups = torch.zeros(2, 3), bits("111 111"), torch.zeros(2, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"collision \[1, 1\]"):
        optimal_token_baseline(x, x, torch.ones(1, 1), mask, groups)
    with pytest.raises(ValueError, match="groups"):
        optimal_token_baseline(x, x, x, mask, groups[:1])
    with pytest.raises(ValueError, match="integer"):
        optimal_token_baseline(x, x, x, mask, groups.float())

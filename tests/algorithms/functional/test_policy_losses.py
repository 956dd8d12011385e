"""The surrogates other than PPO's clip."""
# ruff: noqa: F722 (the shapes of jaxtyping are strings that are no Python)

import math

import pytest
import torch
from beartype import beartype
from hypothesis import given, settings, strategies as st
from jaxtyping import Bool, Float, Float32, jaxtyped
from torch import Tensor

from rlhf.algorithms.functional import policy_losses as losses
from rlhf.algorithms.functional.losses import clipped_surrogate
from rlhf.algorithms.functional.masking import aggregate

NAN, INF = float("nan"), float("inf")
SURROGATES = {
    "sequence": losses.sequence_surrogate,
    "geometric": losses.geometric_surrogate,
    "detached": losses.detached_surrogate,
    "penalised": lambda *x: losses.penalised_surrogate(*x, coef=0.5),
    "selective": lambda *x: losses.selectively_penalised_surrogate(*x, x[3], coef=0.5),
    "gradient": lambda logprobs, _, advantages, mask: losses.policy_gradient(logprobs, advantages, mask),
}
ALL = pytest.mark.parametrize("surrogate", SURROGATES.values(), ids=SURROGATES)


def bits(text: str) -> Tensor:
    return torch.tensor([[c == "1" for c in row] for row in text.split()])


def close(actual: Tensor, expected, atol: float = 1e-5) -> None:
    torch.testing.assert_close(actual, torch.as_tensor(expected, dtype=actual.dtype), atol=atol, rtol=0)


def of_ratios(surrogate, ratios, advantages, mask=None, **settings) -> tuple[Tensor, Tensor]:
    """Values and the gradient of the mean over each row, summed, for tokens of these ratios and old log-prob −1."""
    old = torch.full((len(ratios), len(ratios[0])), -1.0, dtype=torch.float64)
    logprobs = (old + torch.tensor(ratios, dtype=torch.float64).log()).requires_grad_()
    mask = torch.ones_like(old, dtype=torch.bool) if mask is None else bits(mask)
    value = surrogate(logprobs, old, torch.tensor(advantages, dtype=torch.float64), mask, **settings)
    aggregate(value, mask, mode="sequence", denominator=1.0).backward()
    assert logprobs.grad is not None
    return value.detach(), logprobs.grad


# -------------------------------------------------------------------------------------------------- policy_gradient


def test_policy_gradient_by_hand():
    logprobs = torch.tensor([[-0.5, -2.0, NAN]], requires_grad=True)
    loss = losses.policy_gradient(logprobs, torch.tensor([[2.0, -1.0, INF]]), bits("110"))
    close(loss.detach(), [[1.0, -2.0, 0.0]])  # −2 · −0.5, 1 · −2
    loss.sum().backward()
    assert logprobs.grad is not None
    close(logprobs.grad, [[-2.0, 1.0, 0.0]])


# --------------------------------------------------------------------------------------------------------- sequence


@pytest.mark.parametrize(
    ("advantage", "value", "slope"),
    [
        # ratios 2 and 0.5 · 1.21: s = √1.21 = 1.1; inside (0.8, 1.2): −1.1 A, and −s A / 2 for each token
        (1.0, -1.1, -0.55),
        (-2.0, 2.2, 1.1),
    ],
)
def test_sequence_surrogate_by_hand(advantage, value, slope):
    found, gradient = of_ratios(
        losses.sequence_surrogate, [[2.0, 0.605]], [[advantage] * 2], clip_low=0.2, clip_high=0.2
    )
    close(found, [[value] * 2])
    close(gradient, [[slope] * 2])


def test_a_clipped_response_stops_as_a_whole():
    # s = 1.1 against 1 + 0.05: A > 0 is cut at −1.05, A < 0 is not
    found, gradient = of_ratios(losses.sequence_surrogate, [[2.0, 0.605]] * 2, [[1.0] * 2, [-1.0] * 2], clip_high=0.05)
    close(found, [[-1.05] * 2, [1.1] * 2])
    close(gradient, [[0.0] * 2, [0.55] * 2])


def test_the_published_ranges_are_those_of_the_paper():
    # s = 1 + 3.5e-4 with both tokens alike: inside 4e-4; s = 1 − 3.5e-4 outside 3e-4
    ratios = [[1.00035] * 2, [0.99965] * 2]
    _, gradient = of_ratios(losses.sequence_surrogate, ratios, [[1.0] * 2, [-1.0] * 2])
    close(gradient, [[-0.500175] * 2, [0.0] * 2], atol=1e-9)


def random_rows(seed: int, rows: int = 3, width: int = 4) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Log-probabilities now and before, one advantage a row, and a mask with a token in each row, in float64."""
    g = torch.Generator().manual_seed(seed)
    old = -torch.rand(rows, width, generator=g, dtype=torch.float64) - 0.1
    logprobs = old + 0.3 * torch.randn(rows, width, generator=g, dtype=torch.float64)
    advantages = torch.randn(rows, 1, generator=g, dtype=torch.float64).expand(rows, width)
    mask = torch.rand(rows, width, generator=g) < 0.7
    mask[:, 0] = True
    return logprobs, old, advantages, mask


@given(st.integers(0, 10_000))
@settings(deadline=None, derandomize=True, max_examples=25)
def test_the_mean_over_the_tokens_is_the_objective_of_the_paper(seed):
    """Eq. 5 written with the ratio of sequence likelihoods itself: same value, same gradient."""
    logprobs, old, advantages, mask = random_rows(seed)
    found, expected = logprobs.clone().requires_grad_(), logprobs.clone().requires_grad_()
    loss = losses.sequence_surrogate(found, old, advantages, mask, clip_low=0.1, clip_high=0.1)
    aggregate(loss, mask, mode="sequence", denominator=3.0).backward()

    likelihood = torch.where(mask, expected, 0.0).sum(1).exp() / torch.where(mask, old, 0.0).sum(1).exp()
    s = likelihood ** (1 / mask.double().sum(1))
    a = advantages[:, 0]
    objective = torch.minimum(s * a, s.clamp(0.9, 1.1) * a).mean()
    (-objective).backward()
    assert found.grad is not None and expected.grad is not None
    close(found.grad, expected.grad, atol=1e-12)
    close(aggregate(loss.detach(), mask, mode="sequence", denominator=3.0), -objective.detach(), atol=1e-12)


def test_tokens_may_have_advantages_of_their_own():
    # s = 1.1; token 1 has A = 1, token 2 A = −2: each has the gradient of its own advantage
    found, gradient = of_ratios(losses.sequence_surrogate, [[2.0, 0.605]], [[1.0, -2.0]], clip_low=0.2, clip_high=0.2)
    close(found, [[-1.1, 2.2]])
    close(gradient, [[-0.55, 1.1]])


@given(st.integers(0, 10_000))
@settings(deadline=None, derandomize=True, max_examples=25)
def test_responses_of_one_token_are_those_of_ppo(seed):
    logprobs, old, advantages, _ = random_rows(seed, rows=6, width=1)
    mask, clips = torch.ones_like(logprobs, dtype=torch.bool), {"clip_low": 0.1, "clip_high": 0.2}
    expected = clipped_surrogate(logprobs, old, advantages, mask, **clips)
    close(losses.sequence_surrogate(logprobs, old, advantages, mask, **clips), expected, atol=1e-12)
    in_nats = {"clip_low": -math.log(0.9), "clip_high": math.log(1.2)}
    close(losses.geometric_surrogate(logprobs, old, advantages, mask, **in_nats), expected, atol=1e-12)


# -------------------------------------------------------------------------------------------------------- geometric


def test_geometric_surrogate_by_hand():
    # log-ratios 1 and −0.2, clip ±0.4. A > 0: min(1, 0.4) = 0.4 and −0.2: mean 0.1, e^0.1 = 1.105171; only the second
    # learns, −1.105171 / 2. A < 0: max(1, −0.4) = 1 and −0.2: mean 0.4, e^0.4 = 1.491825; both learn.
    ratios = [[math.e, math.exp(-0.2)]] * 2
    found, gradient = of_ratios(losses.geometric_surrogate, ratios, [[1.0] * 2, [-1.0] * 2])
    close(found, [[-1.105171] * 2, [1.491825] * 2])
    close(gradient, [[0.0, -0.552585], [0.745912, 0.745912]])


def test_below_the_range_a_bad_token_stops_alone():
    # log-ratios −1 and 0, A < 0: max(−1, −0.4) = −0.4: mean −0.2, e^−0.2 = 0.818731
    found, gradient = of_ratios(losses.geometric_surrogate, [[math.exp(-1), 1.0]], [[-1.0] * 2])
    close(found, [[0.818731] * 2])
    close(gradient, [[0.0, 0.409365]])


# --------------------------------------------------------------------------------------------------------- detached


def test_detached_surrogate_by_hand():
    # ratios 10, 2, 0.5, old −1: logprobs 1.302585, −0.306853, −1.693147; weights min(r, 5), A = 1, 1, −1
    found, gradient = of_ratios(losses.detached_surrogate, [[10.0, 2.0, 0.5]], [[1.0, 1.0, -1.0]])
    close(found, [[-6.512925, 0.613706, -0.846574]])
    close(gradient, [[-5 / 3, -2 / 3, 0.5 / 3]])  # none is 0: every token learns
    _, gradient = of_ratios(losses.detached_surrogate, [[0.5]], [[1.0]], clip_low=0.2)
    close(gradient, [[-0.8]])


@given(st.integers(0, 10_000))
@settings(deadline=None, derandomize=True, max_examples=25)
def test_without_bounds_its_gradient_is_that_of_the_ratio(seed):
    logprobs, old, advantages, mask = random_rows(seed)
    found, expected = logprobs.clone().requires_grad_(), logprobs.clone().requires_grad_()
    losses.detached_surrogate(found, old, advantages, mask, clip_high=None).sum().backward()
    torch.where(mask, -(expected - old).exp() * advantages, 0.0).sum().backward()
    assert found.grad is not None and expected.grad is not None
    close(found.grad, expected.grad, atol=1e-12)


# ------------------------------------------------------------------------------------------- penalised, selectively


def test_penalised_surrogate_by_hand():
    # r = 2: −2 + 3 · (2 − 1 − 0.693147) = −1.079442; slope −2 + 3 · (2 − 1) = 1, over two tokens
    # r = 1: −A and −A / 2
    found, gradient = of_ratios(losses.penalised_surrogate, [[2.0, 1.0]], [[1.0, 1.0]], coef=3.0)
    close(found, [[-1.079442, -1.0]])
    close(gradient, [[0.5, -0.5]])


def test_the_penalty_is_in_expectation_the_divergence_from_the_old_policy():
    # all actions of a policy, weighted by the old one's probabilities; A = 0
    old = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64)
    logits = torch.tensor([[0.3, -0.2, 0.5]], dtype=torch.float64, requires_grad=True)
    mask = torch.ones(1, 3, dtype=torch.bool)
    loss = losses.penalised_surrogate(logits.log_softmax(1), old.log(), torch.zeros_like(old), mask, coef=1.0)
    (estimated,) = torch.autograd.grad((old * loss).sum(), logits)
    divergence = (old * (old.log() - logits.log_softmax(1))).sum()
    close((old * loss).sum().detach(), divergence.detach(), atol=1e-12)
    (exact,) = torch.autograd.grad(divergence, logits)
    close(estimated, exact, atol=1e-12)


def test_selectively_penalised_surrogate_by_hand():
    # r = 2, A = 1: −2 + 3 · log 2 = 0.079442, slope −2 + 3 = 1; not selected −2, slope −2; r = 0.5: −0.5 + 3 · log 2 =
    # 1.579442, slope −0.5 − 3
    selected = bits("101")
    found, gradient = of_ratios(
        losses.selectively_penalised_surrogate, [[2.0, 2.0, 0.5]], [[1.0] * 3], selected=selected, coef=3.0
    )
    close(found, [[0.079442, -2.0, 1.579442]])
    close(gradient * 3, [[1.0, -2.0, -3.5]])


# ------------------------------------------------------------------------------------------------------------- all


@ALL
@pytest.mark.parametrize("poison", [NAN, INF, -INF])
def test_masked_slots_are_exactly_zero(surrogate, poison):
    tensors = [torch.tensor([[-0.5, poison, -0.7]], requires_grad=True) for _ in range(3)]
    loss = surrogate(*tensors, bits("101"))
    assert loss[0, 1] == 0 and loss.isfinite().all()
    loss.sum().backward()
    assert tensors[0].grad is not None and tensors[0].grad[0, 1] == 0 and tensors[0].grad.isfinite().all()


@pytest.mark.parametrize("name", ["geometric", "penalised", "selective", "gradient"])
def test_gradcheck(name):
    logprobs, old, advantages, mask = random_rows(4)
    assert torch.autograd.gradcheck(lambda x: SURROGATES[name](x, old, advantages, mask), (logprobs.requires_grad_(),))


def test_gradcheck_of_the_mean_of_the_sequence_surrogate():
    """Its tokens share one ratio by stopping gradients, so that only the sum over a row is differentiated as it is."""
    logprobs, old, advantages, mask = random_rows(4)
    call = lambda x: losses.sequence_surrogate(x, old, advantages, mask, clip_low=0.05, clip_high=0.05).sum(1)  # noqa: E731
    assert torch.autograd.gradcheck(call, (logprobs.requires_grad_(),))


@ALL
def test_shapes_and_dtypes(surrogate):
    @jaxtyped(typechecker=beartype)
    def run(
        a: Float[Tensor, "B T"], b: Float[Tensor, "B T"], c: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]
    ) -> Float32[Tensor, "B T"]:
        return surrogate(a, b, c, mask)

    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        x = torch.full((2, 3), -1.0, dtype=dtype)
        run(x, x, torch.ones(2, 3), bits("110 111"))
    run(*[torch.ones(2, 0)] * 3, torch.ones(2, 0, dtype=torch.bool))


@ALL
def test_wrong_shapes_are_refused(surrogate):
    row, column, mask = torch.ones(1, 3), torch.ones(1, 1), bits("111")
    for i in (0, 2):
        with pytest.raises(ValueError, match=r"\[1, 1\]"):
            surrogate(*[column if i == j else row for j in range(3)], mask)
    with pytest.raises(ValueError, match=r"mask \[1, 1\]"):
        surrogate(row, row, row, bits("1"))
    with pytest.raises(ValueError, match="bool"):
        surrogate(row, row, row, mask.float())


def test_settings_out_of_range_are_refused():
    row, mask = torch.ones(1, 3), bits("111")
    for name in ("sequence_surrogate", "geometric_surrogate", "detached_surrogate"):
        for clip in ("clip_low", "clip_high"):
            with pytest.raises(ValueError, match=clip):
                getattr(losses, name)(row, row, row, mask, **{clip: -0.1})
    with pytest.raises(ValueError, match="coef"):
        losses.penalised_surrogate(row, row, row, mask, coef=-1.0)
    with pytest.raises(ValueError, match="coef"):
        losses.selectively_penalised_surrogate(row, row, row, mask, mask, coef=-1.0)
    with pytest.raises(ValueError, match="bool"):
        losses.selectively_penalised_surrogate(row, row, row, mask, row, coef=1.0)

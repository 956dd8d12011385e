"""GAE, returns, group normalisation, leave-one-out."""
# ruff: noqa: F722 (the shapes of jaxtyping are strings that are no Python)

import pytest
import torch
from beartype import beartype
from hypothesis import given, settings, strategies as st
from jaxtyping import Bool, Float, Float32, Int, jaxtyped
from torch import Tensor

from rlhf.algorithms.functional.advantages import gae, group_norm, leave_one_out, returns

NAN, INF = float("nan"), float("inf")


def bits(text: str) -> Tensor:
    return torch.tensor([[c == "1" for c in row] for row in text.split()])


def close(actual: Tensor, expected, atol: float = 1e-5) -> None:
    expected = torch.as_tensor(expected, dtype=actual.dtype)
    torch.testing.assert_close(actual, expected, atol=atol, rtol=0)


def random_rollout(seed: int, rows: int = 3, width: int = 5) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rewards, values, a right-padded mask and a bootstrap, in float64."""
    g = torch.Generator().manual_seed(seed)
    rewards, values = torch.randn(2, rows, width, generator=g, dtype=torch.float64)
    lengths = torch.randint(0, width + 1, (rows,), generator=g)
    mask = torch.arange(width)[None, :] < lengths[:, None]
    return rewards, values, mask, torch.randn(rows, generator=g, dtype=torch.float64)


REWARDS = torch.tensor([[-0.1, -0.2, 1.7, 0.0, 0.0]])
VALUES = torch.tensor([[0.5, 0.4, 0.3, 7.0, -3.0]])
THREE = bits("11100")

# ------------------------------------------------------------------------------------------------------ gae


@pytest.mark.parametrize("pads", [(7.0, -3.0), (NAN, INF), (0.0, 0.0)])
def test_gae_by_hand(pads):  # case B1
    values = VALUES.clone()
    values[0, 3:] = torch.tensor(pads)
    rewards = REWARDS.clone()
    rewards[0, 3:] = torch.tensor(pads)
    # δ = 1.7 − 0.3 = 1.4; −0.2 + 0.3 − 0.4 = −0.3; −0.1 + 0.4 − 0.5 = −0.2
    # A = 1.4; −0.3 + 0.95 · 1.4 = 1.03; −0.2 + 0.95 · 1.03 = 0.7785
    adv, ret = gae(rewards, values, THREE, gamma=1.0, lam=0.95)
    close(adv, [[0.7785, 1.03, 1.4, 0.0, 0.0]])
    close(ret, [[1.2785, 1.43, 1.7, 0.0, 0.0]])
    # γ = 0.9, λ = 0.8: δ = 1.4, −0.33, −0.24; A = 1.4; −0.33 + 0.72 · 1.4 = 0.678; −0.24 + 0.72 · 0.678 = 0.24816
    adv, _ = gae(rewards, values, THREE, gamma=0.9, lam=0.8)
    close(adv, [[0.24816, 0.678, 1.4, 0.0, 0.0]])


def test_bootstrap_by_hand():
    # δ of the last: 1.7 + 0.9 · 2 − 0.3 = 3.2; A = 3.2; −0.33 + 0.72 · 3.2 = 1.974; −0.24 + 0.72 · 1.974 = 1.18128
    adv, ret = gae(REWARDS, VALUES, THREE, gamma=0.9, lam=0.8, bootstrap=torch.tensor([2.0]))
    close(adv, [[1.18128, 1.974, 3.2, 0.0, 0.0]])
    close(ret, [[1.68128, 2.374, 3.5, 0.0, 0.0]])


def test_bootstrap_of_a_full_row():
    # width 1: 1 + 0.5 · 4 − 0.25
    adv, _ = gae(
        torch.tensor([[1.0]]), torch.tensor([[0.25]]), bits("1"), gamma=0.5, lam=0.9, bootstrap=torch.tensor([4.0])
    )
    close(adv, [[2.75]])


def test_bootstrap_belongs_to_its_row():
    rewards, values, mask = REWARDS.repeat(2, 1), VALUES.repeat(2, 1), THREE.repeat(2, 1)
    adv, _ = gae(rewards, values, mask, gamma=0.9, lam=0.8, bootstrap=torch.tensor([0.0, 2.0]))
    close(adv, [[0.24816, 0.678, 1.4, 0.0, 0.0], [1.18128, 1.974, 3.2, 0.0, 0.0]])


def test_a_lambda_for_each_row():
    rewards, values, mask = REWARDS.repeat(2, 1), VALUES.repeat(2, 1), THREE.repeat(2, 1)
    adv, _ = gae(rewards, values, mask, gamma=1.0, lam=torch.tensor([0.95, 0.0]))
    close(adv, [[0.7785, 1.03, 1.4, 0.0, 0.0], [-0.2, -0.3, 1.4, 0.0, 0.0]])


def test_holes_are_stepped_over():
    # the three real tokens of the case above, with slots in between that hold rubbish
    mask = bits("0101100")
    rewards = torch.full((1, 7), NAN).masked_scatter(mask, REWARDS[THREE])
    values = torch.full((1, 7), INF).masked_scatter(mask, VALUES[THREE])
    adv, ret = gae(rewards, values, mask, gamma=0.9, lam=0.8, bootstrap=torch.tensor([2.0]))
    close(adv, [[0.0, 1.18128, 0.0, 1.974, 3.2, 0.0, 0.0]])
    close(ret, [[0.0, 1.68128, 0.0, 2.374, 3.5, 0.0, 0.0]])


@given(st.integers(0, 10_000), st.sampled_from([1.0, 0.9]), st.booleans())
@settings(deadline=None, derandomize=True, max_examples=40)
def test_gae_with_lambda_one_is_returns_minus_values(seed, gamma, cut):
    rewards, values, mask, bootstrap = random_rollout(seed)
    adv, ret = gae(rewards, values, mask, gamma=gamma, lam=1.0, bootstrap=bootstrap if cut else None)
    for i in range(3):
        n = int(mask[i].sum())
        for t in range(n):
            total = sum(gamma ** (s - t) * rewards[i, s].item() for s in range(t, n))
            if cut:
                total += gamma ** (n - t) * bootstrap[i].item()
            assert ret[i, t].item() == pytest.approx(total, abs=1e-10)
            assert adv[i, t].item() == pytest.approx(total - values[i, t].item(), abs=1e-10)


@given(st.integers(0, 10_000))
@settings(deadline=None, derandomize=True, max_examples=25)
def test_gae_with_lambda_zero_is_the_td_error(seed):
    rewards, values, mask, bootstrap = random_rollout(seed)
    adv, _ = gae(rewards, values, mask, gamma=0.9, lam=0.0, bootstrap=bootstrap)
    for i in range(3):
        n = int(mask[i].sum())
        after = [*values[i, 1:n].tolist(), bootstrap[i].item()]
        for t in range(n):
            assert adv[i, t].item() == pytest.approx(rewards[i, t].item() + 0.9 * after[t] - values[i, t].item())


def test_right_values_leave_no_advantage():
    rewards, _, mask, _ = random_rollout(3)
    values = returns(rewards, mask, gamma=0.9)
    adv, _ = gae(rewards, values, mask, gamma=0.9, lam=0.7)
    close(adv, torch.zeros_like(adv), atol=1e-12)


@given(st.integers(0, 10_000), st.integers(1, 4))
@settings(deadline=None, derandomize=True, max_examples=25)
def test_gae_ignores_padding_row_order_and_other_rows(seed, pad):
    rewards, values, mask, bootstrap = random_rollout(seed)
    both = torch.stack(gae(rewards, values, mask, gamma=0.9, lam=0.8, bootstrap=bootstrap))
    wide = [torch.nn.functional.pad(x, (0, pad), value=NAN) for x in (rewards, values)]
    padded = torch.stack(gae(*wide, torch.nn.functional.pad(mask, (0, pad)), gamma=0.9, lam=0.8, bootstrap=bootstrap))
    assert torch.equal(padded[..., :5], both) and (padded[..., 5:] == 0).all()
    order = torch.tensor([2, 0, 1])
    permuted = gae(rewards[order], values[order], mask[order], gamma=0.9, lam=0.8, bootstrap=bootstrap[order])
    assert torch.equal(torch.stack(permuted), both[:, order])
    alone = gae(rewards[:1], values[:1], mask[:1], gamma=0.9, lam=0.8, bootstrap=bootstrap[:1])
    assert torch.equal(torch.stack(alone), both[:, :1])


def test_gae_gradient():
    rewards, values, _, bootstrap = random_rollout(5, rows=2, width=4)
    mask = bits("1011 0100")
    inputs = [x.requires_grad_() for x in (rewards, values, bootstrap, torch.tensor([0.9, 0.3], dtype=torch.float64))]

    def call(r, v, b, lam):
        return gae(r, v, mask, gamma=0.9, lam=lam, bootstrap=b)

    assert torch.autograd.gradcheck(call, inputs)
    poisoned = [x.detach().masked_fill(~mask, NAN).requires_grad_() for x in (rewards, values)]
    empty_row = torch.tensor([[True, False, True, True], [False] * 4])
    adv, ret = gae(*poisoned, empty_row & mask, gamma=0.9, lam=0.8, bootstrap=torch.tensor([1.0, NAN]))
    assert adv.isfinite().all() and (adv[1] == 0).all()
    (adv + ret).sum().backward()
    for x in poisoned:
        assert x.grad is not None and x.grad.isfinite().all() and (x.grad[~(empty_row & mask)] == 0).all()
    assert poisoned[0].grad is not None and (poisoned[0].grad[0][mask[0]] > 0).all()


# -------------------------------------------------------------------------------------------------- returns


def test_returns_by_hand():  # case B4
    rewards = torch.tensor([[-0.05, 0.02, 1.97, NAN, INF]])
    close(returns(rewards, THREE, gamma=1.0), [[1.94, 1.99, 1.97, 0.0, 0.0]])
    # 0.02 + 0.9 · 1.97 = 1.793; −0.05 + 0.9 · 1.793 = 1.5637
    close(returns(rewards, THREE, gamma=0.9), [[1.5637, 1.793, 1.97, 0.0, 0.0]])


def test_returns_step_over_holes():
    # 2 + 0.5 · 4 = 4; 1 + 0.5 · 4 = 3: the slot between them is no step in time
    close(returns(torch.tensor([[1.0, NAN, 2.0, 4.0]]), bits("1011"), gamma=0.5), [[3.0, 0.0, 4.0, 4.0]])


# ----------------------------------------------------------------------------------------------- group_norm

SCORES = torch.tensor([1.0, 0.0, 1.0, 0.0, 5.0, 5.0, 5.0, 5.0])
GROUPS = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])


@pytest.mark.parametrize(
    ("scale", "expected"),
    [
        ("group", 0.865875),  # 0.5 / (√(4 · 0.25 / 3) + 1e-4) = 0.5 / 0.577450
        ("batch", 0.205342),  # 0.5 / (√(41.5 / 7) + 1e-4) = 0.5 / 2.434966
        ("none", 0.5),
    ],
)
@pytest.mark.parametrize("seed", [None, 0, 1, 2])
def test_group_norm_by_hand_in_any_order(scale, expected, seed):  # case B8
    order = torch.arange(8) if seed is None else torch.randperm(8, generator=torch.Generator().manual_seed(seed))
    adv = group_norm(SCORES[order], GROUPS[order], scale=scale)
    close(adv, torch.tensor([expected, -expected, expected, -expected, 0, 0, 0, 0])[order])
    assert (adv[SCORES[order] == 5] == 0).all()


def test_unequal_groups_and_any_ids():
    # ids 7 and −3: (1, 3) has mean 2, deviation √2; (2, 4, 9) has mean 5, deviation √13; no eps
    adv = group_norm(torch.tensor([2.0, 1.0, 4.0, 3.0, 9.0]), torch.tensor([-3, 7, -3, 7, -3]), eps=0.0)
    close(adv, [-0.832050, -0.707107, -0.277350, 0.707107, 1.109400])


@given(
    st.lists(st.tuples(st.floats(-1e4, 1e4, width=32), st.integers(1, 9)), min_size=1, max_size=4),
    st.sampled_from(["group", "batch", "none"]),
    st.sampled_from([1e-4, 0.0]),
)
@settings(deadline=None, derandomize=True, max_examples=100)
def test_constant_groups_give_exactly_zero(groups, scale, eps):  # case B8
    # such as three times 0.1, whose mean in fp32 is not 0.1; and singletons
    scores = torch.tensor([value for value, n in groups for _ in range(n)], dtype=torch.float32)
    ids = torch.tensor([i for i, (_, n) in enumerate(groups) for _ in range(n)])
    assert (group_norm(scores, ids, scale=scale, eps=eps) == 0).all()
    assert (leave_one_out(scores, ids) == 0).all()


def test_a_nan_stays_in_its_group():
    adv = group_norm(torch.tensor([1.0, 0.0, NAN, 2.0]), torch.tensor([0, 0, 1, 1]), scale="none")
    assert adv[:2].tolist() == [0.5, -0.5] and adv[2:].isnan().all()


@given(st.integers(0, 10_000), st.sampled_from(["group", "batch", "none"]))
@settings(deadline=None, derandomize=True, max_examples=25)
def test_group_norm_invariances(seed, scale):
    g = torch.Generator().manual_seed(seed)
    scores, groups = torch.randn(12, generator=g, dtype=torch.float64), torch.randint(0, 4, (12,), generator=g)
    base = group_norm(scores, groups, scale=scale)
    order = torch.randperm(12, generator=g)
    close(group_norm(scores[order], groups[order], scale=scale), base[order], atol=1e-12)
    close(group_norm(scores, 5 - groups * 3, scale=scale), base, atol=1e-12)
    for i in groups.unique():
        assert base[groups == i].sum().abs() < 1e-10
    if scale != "batch":  # an offset for one prompt is no news
        close(group_norm(scores + 10.0 * groups, groups, scale=scale), base, atol=1e-9)


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_group_norm_gradient(scale):
    scores = torch.tensor([1.0, 0.3, 2.0, -1.0, 0.0], dtype=torch.float64, requires_grad=True)
    groups = torch.tensor([0, 1, 0, 1, 2])
    assert torch.autograd.gradcheck(lambda s: group_norm(s, groups, scale=scale), (scores,))
    constant = torch.full((3,), 0.1, requires_grad=True)
    group_norm(constant, torch.zeros(3, dtype=torch.int64), scale=scale).square().sum().backward()
    assert constant.grad is not None and constant.grad.isfinite().all()


# -------------------------------------------------------------------------------------------- leave_one_out


def test_leave_one_out_by_hand():  # case B9
    # others' means 4/3, 5/3, 5/3, 1/3
    adv = leave_one_out(torch.tensor([1.0, 0.0, 0.0, 4.0]), torch.zeros(4, dtype=torch.int64))
    close(adv, [-1 / 3, -5 / 3, -5 / 3, 11 / 3])


def test_leave_one_out_singletons_and_mixed_groups():  # case B9
    adv = leave_one_out(torch.tensor([7.0, 1.0, 3.0]), torch.tensor([4, 2, 2]))
    assert adv.tolist() == [0.0, -2.0, 2.0]


@given(st.integers(0, 10_000))
@settings(deadline=None, derandomize=True, max_examples=25)
def test_leave_one_out_is_the_mean_of_the_others(seed):
    g = torch.Generator().manual_seed(seed)
    scores, groups = torch.randn(10, generator=g, dtype=torch.float64), torch.randint(0, 3, (10,), generator=g)
    adv = leave_one_out(scores, groups).tolist()
    for i in range(10):
        others = [scores[j].item() for j in range(10) if j != i and groups[j] == groups[i]]
        expected = scores[i].item() - sum(others) / len(others) if others else 0.0
        assert adv[i] == pytest.approx(expected, abs=1e-10)


def test_leave_one_out_gradcheck():
    scores = torch.tensor([1.0, 0.3, 2.0, -1.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda s: leave_one_out(s, torch.tensor([0, 1, 0, 0])), (scores,))


# ------------------------------------------------------------------------------------------ shapes, purity


def test_shapes_and_dtypes():
    @jaxtyped(typechecker=beartype)
    def run_gae(
        r: Float[Tensor, "B T"],
        v: Float[Tensor, "B T"],
        mask: Bool[Tensor, "B T"],
        lam: Float[Tensor, " B"],
        b: Float[Tensor, " B"],
    ) -> tuple[Float32[Tensor, "B T"], Float32[Tensor, "B T"]]:
        return gae(r, v, mask, gamma=1.0, lam=lam, bootstrap=b)

    @jaxtyped(typechecker=beartype)
    def run_returns(r: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> Float32[Tensor, "B T"]:
        return returns(r, mask, gamma=1.0)

    @jaxtyped(typechecker=beartype)
    def run_groups(s: Float[Tensor, " B"], groups: Int[Tensor, " B"]) -> tuple[Float32[Tensor, " B"], ...]:
        return *(group_norm(s, groups, scale=x) for x in ("group", "batch", "none")), leave_one_out(s, groups)

    for dtype in (torch.bfloat16, torch.float32):
        for width in (0, 1, 3):
            x, mask = torch.ones(2, width, dtype=dtype), torch.ones(2, width, dtype=torch.bool)
            run_gae(x, x, mask, torch.ones(2), torch.ones(2, dtype=dtype))
            run_returns(x, mask)
        for rows in (0, 1, 3):
            run_groups(torch.ones(rows, dtype=dtype), torch.zeros(rows, dtype=torch.int32))
    assert gae(REWARDS.double(), VALUES, THREE, gamma=1.0, lam=1.0)[0].dtype == torch.float64


def test_refusals():
    with pytest.raises(ValueError, match=r"values \[1, 1\]"):
        gae(REWARDS, VALUES[:, :1], THREE, gamma=1.0, lam=1.0)
    with pytest.raises(ValueError, match=r"mask \[1, 1\]"):
        gae(REWARDS, VALUES, THREE[:, :1], gamma=1.0, lam=1.0)
    with pytest.raises(ValueError, match="bool"):
        gae(REWARDS, VALUES, THREE.float(), gamma=1.0, lam=1.0)
    for bad in (torch.ones(5), torch.ones(1, 1), torch.tensor(1.0)):
        with pytest.raises(ValueError, match="lam"):
            gae(REWARDS, VALUES, THREE, gamma=1.0, lam=bad)
        with pytest.raises(ValueError, match="bootstrap"):
            gae(REWARDS, VALUES, THREE, gamma=1.0, lam=1.0, bootstrap=bad)
    with pytest.raises(ValueError, match=r"rewards \[1, 5\], mask \[1, 1\]"):
        returns(REWARDS, THREE[:, :1], gamma=1.0)
    for call in (group_norm, leave_one_out):
        with pytest.raises(ValueError, match=r"\[8\].*\[1\]"):
            call(SCORES, GROUPS[:1])
        with pytest.raises(ValueError, match=r"\[2, 4\]"):
            call(SCORES.view(2, 4), GROUPS.view(2, 4))
        with pytest.raises(ValueError, match="integer"):
            call(SCORES, GROUPS.float())
    with pytest.raises(ValueError, match=r"'std'.*group, batch, none"):
        group_norm(SCORES, GROUPS, scale="std")
    with pytest.raises(ValueError, match="eps"):
        group_norm(SCORES, GROUPS, eps=-1.0)


def test_arguments_are_not_written_to():
    rewards, values, mask = REWARDS.clone(), VALUES.clone(), THREE.clone()
    bootstrap, scores, groups = torch.tensor([2.0]), SCORES.clone(), GROUPS.clone()
    gae(rewards, values, mask, gamma=0.9, lam=0.8, bootstrap=bootstrap)
    group_norm(scores, groups), group_norm(scores, groups, scale="batch"), leave_one_out(scores, groups)
    assert torch.equal(rewards, REWARDS) and torch.equal(values, VALUES) and torch.equal(mask, THREE)
    assert bootstrap.tolist() == [2.0] and torch.equal(scores, SCORES) and torch.equal(groups, GROUPS)

"""The adapters from scored rollouts to advantages."""

import pytest
import torch

from rlhf.algorithms.advantages import GAE, GroupNorm, LeaveOneOut, Returns
from rlhf.types import Scored

NAN = float("nan")


def scored(rewards, mask, *, values=None, bootstrap=None, groups=None) -> Scored:
    rewards, mask = torch.tensor(rewards), torch.tensor(mask).bool()
    return Scored(
        rewards=rewards,
        scores=torch.full((len(rewards),), NAN),  # the estimators read the rewards
        values=None if values is None else torch.tensor(values),
        bootstrap=None if bootstrap is None else torch.tensor(bootstrap),
        mask=mask,
        groups=torch.arange(len(rewards)) if groups is None else torch.tensor(groups),
    )


B1 = scored([[-0.1, -0.2, 1.7, 0.0, 0.0]], [[1, 1, 1, 0, 0]], values=[[0.5, 0.4, 0.3, NAN, NAN]])


def test_gae_by_hand():  # case B1
    advantages, returns = GAE(gamma=1.0, lam=0.95, whiten=False)(B1)
    torch.testing.assert_close(advantages, torch.tensor([[0.7785, 1.03, 1.4, 0, 0]]))
    torch.testing.assert_close(returns, torch.tensor([[1.2785, 1.43, 1.7, 0, 0]]))
    advantages, _ = GAE(gamma=0.9, lam=0.8, whiten=False)(B1)
    torch.testing.assert_close(advantages, torch.tensor([[0.24816, 0.678, 1.4, 0, 0]]))


def test_gae_whitens_the_advantages_and_not_the_returns():  # case B2
    plain, returns = GAE(whiten=False)(B1)
    white, same = GAE()(B1)
    assert returns is not None and same is not None and torch.equal(returns, same)
    real = white[0, :3]
    assert real.mean().item() == pytest.approx(0, abs=1e-6)
    assert real.var(unbiased=False).item() == pytest.approx(1, abs=1e-5)
    assert white[0, 3:].tolist() == [0, 0]
    torch.testing.assert_close(real, (plain[0, :3] - plain[0, :3].mean()) / plain[0, :3].std(unbiased=False))


def test_gae_goes_on_with_the_bootstrap_of_a_cut_response():
    # γ = 0.5: the last δ is 1 + 0.5 · bootstrap − 0
    cut = scored([[0.0, 1.0]] * 2, [[1, 1]] * 2, values=[[0.0, 0.0]] * 2, bootstrap=[4.0, 0.0])
    advantages, _ = GAE(gamma=0.5, lam=1.0, whiten=False)(cut)
    torch.testing.assert_close(advantages, torch.tensor([[1.5, 3.0], [0.5, 1.0]]))


def test_gae_needs_values():
    assert GAE.needs_critic and not GAE.needs_groups
    with pytest.raises(ValueError, match="needs a critic"):
        GAE()(scored([[1.0]], [[1]]))


def test_returns_by_hand():
    reinforce = Returns(gamma=0.5, whiten=False)
    advantages, returns = reinforce(scored([[1.0, 2.0, 4.0, NAN]], [[1, 1, 1, 0]]))
    torch.testing.assert_close(advantages, torch.tensor([[3.0, 4.0, 4.0, 0.0]]))
    assert returns is None and not reinforce.needs_critic
    white = Returns(gamma=0.5)(scored([[1.0, 2.0, 4.0, NAN]], [[1, 1, 1, 0]])).advantages
    torch.testing.assert_close(white, torch.tensor([[-1.4142135, 0.7071068, 0.7071068, 0.0]]))


GROUPS = scored(
    [[1.0, 0.0], [0.0, NAN], [0.5, 0.5], [0.0, 0.0], [2.0, 3.0], [5.0, NAN], [5.0, 0.0], [4.0, 1.0]],
    [[1, 1], [1, 0], [1, 1], [1, 1], [1, 1], [1, 0], [1, 1], [1, 1]],
    groups=[0, 0, 0, 0, 7, 7, 7, 7],
)


@pytest.mark.parametrize(("scale", "size"), [("group", 0.865875), ("batch", 0.205342), ("none", 0.5)])
def test_group_norm_by_hand(scale, size):  # case B8: totals [1, 0, 1, 0] and [5, 5, 5, 5]
    advantages, returns = GroupNorm(scale=scale)(GROUPS)
    expected = torch.tensor([[size, size], [-size, 0], [size, size], [-size, -size], *[[0.0, 0.0]] * 4])
    torch.testing.assert_close(advantages, expected, atol=1e-6, rtol=0)
    assert advantages[4:].eq(0).all() and returns is None and GroupNorm.needs_groups


def test_leave_one_out_by_hand():  # case B9: totals [1, 0, 0, 4]
    rows = scored([[1.0, 0.0], [0.0, 0.0], [0.0, NAN], [1.0, 3.0]], [[1, 1], [1, 1], [1, 0], [1, 1]], groups=[3] * 4)
    advantages, returns = LeaveOneOut()(rows)
    third = 1 / 3
    expected = [[-third, -third], [-5 * third, -5 * third], [-5 * third, 0], [11 * third, 11 * third]]
    torch.testing.assert_close(advantages, torch.tensor(expected))
    assert returns is None and LeaveOneOut.needs_groups

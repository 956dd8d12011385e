"""The adapters from scored rollouts to advantages; what all of them hold to is in ``test_invariances.py``."""

import dataclasses

import pytest
import torch

from rlhf.algorithms.advantages import GAE, GreedyBaseline, GroupNorm, LeaveOneOut, OptimalTokenBaseline, Returns
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


def test_the_critic_may_have_a_lambda_of_its_own():
    # targets with λ = 1: rewards to go; the advantages stay those of λ = 0.95
    advantages, returns = GAE(lam=0.95, critic_lam=1.0, whiten=False)(B1)
    torch.testing.assert_close(advantages, torch.tensor([[0.7785, 1.03, 1.4, 0, 0]]))
    torch.testing.assert_close(returns, torch.tensor([[1.4, 1.5, 1.7, 0, 0]]))


def test_lambda_may_follow_the_length():
    # three tokens, α = 2/3: λ = 1 − 1/2; α = 1/3: λ = 0, the TD errors −0.2, −0.3, 1.4
    advantages, returns = GAE(length_alpha=2 / 3, whiten=False)(B1)
    expected, targets = GAE(lam=0.5, whiten=False)(B1)
    torch.testing.assert_close(advantages, expected)
    torch.testing.assert_close(returns, targets)  # the critic's λ is the same where it has none of its own
    advantages, returns = GAE(length_alpha=1 / 3, critic_lam=1.0, whiten=False)(B1)
    torch.testing.assert_close(advantages, torch.tensor([[-0.2, -0.3, 1.4, 0, 0]]))
    torch.testing.assert_close(returns, torch.tensor([[1.4, 1.5, 1.7, 0, 0]]))


@pytest.mark.parametrize("settings", [{"critic_lam": 1.1}, {"length_alpha": 0.0}, {"lam": -0.1}, {"gamma": 2.0}])
def test_settings_of_gae_are_checked(settings):
    (name,) = settings
    with pytest.raises(ValueError, match=f"{name} is"):
        GAE(**settings)


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


def test_group_norm_whitens_what_it_has_centred():  # REINFORCE++-baseline
    # totals 1 and 3, 0 and 4 with means 2: −1 (2 tokens), 1 (1), −2 (1), 2 (2): sum 1 over 6, mean 1/6,
    # squares 2 + 1 + 4 + 8 = 15, variance 15/6 − 1/36 = 2.472222, deviation 1.572330
    rows = scored(
        [[1.0, 0.0], [3.0, NAN], [0.0, NAN], [1.0, 3.0]], [[1, 1], [1, 0], [1, 0], [1, 1]], groups=[0, 0, 1, 1]
    )
    found = GroupNorm(scale="none", whiten=True)(rows).advantages
    expected = [[-0.742003, -0.742003], [0.529998, 0.0], [-1.378003, 0.0], [1.165998, 1.165998]]
    torch.testing.assert_close(found, torch.tensor(expected), atol=1e-5, rtol=0)


def test_greedy_baseline_by_hand():
    rows = scored([[0.5, 1.0, NAN], [0.0, 0.0, 2.0]], [[1, 1, 0], [1, 1, 1]])
    advantages, returns = GreedyBaseline()(dataclasses.replace(rows, greedy=torch.tensor([1.0, 3.0])))
    torch.testing.assert_close(advantages, torch.tensor([[0.5, 0.0, 0.0], [-1.0, -1.0, -1.0]]))
    assert returns is None and GreedyBaseline.needs_greedy and not GreedyBaseline.needs_groups
    with pytest.raises(ValueError, match="GreedyBaseline needs"):
        GreedyBaseline()(rows)


def test_optimal_token_baseline_by_hand():
    # 1 − 2 π + Σ π²: 0.5, 1.0 → W 0.5, 1.5; 0.1, 0.4 → W 0.1, 0.5; G: 1, 1 and 4, 3: B = 0.9 / 0.6, 3 / 2
    rows = dataclasses.replace(
        scored([[0.0, 1.0], [1.0, 3.0]], [[1, 1], [1, 1]], groups=[4, 4]),
        old_logprobs=torch.tensor([[0.5, 0.2], [0.8, 0.6]]).log(),
        collision=torch.tensor([[0.5, 0.4], [0.7, 0.6]]),
    )
    advantages, returns = OptimalTokenBaseline()(rows)
    torch.testing.assert_close(advantages, torch.tensor([[-0.5, -0.5], [2.5, 1.5]]))
    assert returns is None and OptimalTokenBaseline.needs_groups and OptimalTokenBaseline.needs_collision
    for name in ("old_logprobs", "collision"):
        with pytest.raises(ValueError, match="OptimalTokenBaseline needs"):
            OptimalTokenBaseline()(dataclasses.replace(rows, **{name: None}))


def test_leave_one_out_by_hand():  # case B9: totals [1, 0, 0, 4]
    rows = scored([[1.0, 0.0], [0.0, 0.0], [0.0, NAN], [1.0, 3.0]], [[1, 1], [1, 1], [1, 0], [1, 1]], groups=[3] * 4)
    advantages, returns = LeaveOneOut()(rows)
    third = 1 / 3
    expected = [[-third, -third], [-5 * third, -5 * third], [-5 * third, 0], [11 * third, 11 * third]]
    torch.testing.assert_close(advantages, torch.tensor(expected))
    assert returns is None and LeaveOneOut.needs_groups

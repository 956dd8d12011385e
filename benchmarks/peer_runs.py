"""Our losses and estimators and those of published implementations on the same tensors: how far they are apart."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import peer_code
import torch
from peer_code import actor_config, sb3_gae, trl_loss
from torch import Tensor

from rlhf.algorithms import advantages as estimators, policy_losses as losses
from rlhf.algorithms.functional import kl, losses as functional
from rlhf.algorithms.functional.masking import aggregate
from rlhf.interfaces import AdvantageEstimator, PolicyLoss, SamplerCorrection
from rlhf.types import Batch, Scored, Sequences

ROWS, WIDTH, GROUP = 12, 20, 4


class Found(NamedTuple):
    """How far two implementations are apart.

    Attributes:
        difference: Largest absolute difference.
        remainder: What is left of it once the reason given is undone; None where they mean the same.
    """

    difference: float
    remainder: float | None = None


# ------------------------------------------------------------------------------------------------------ the tensors


def _normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@cache
def scored(full: bool = False) -> Scored:
    """Three prompts with four responses each, of different lengths unless ``full``."""
    lengths = torch.randint(1, WIDTH + 1, (ROWS,), generator=torch.Generator().manual_seed(0))
    mask = torch.arange(WIDTH)[None, :] < (torch.full_like(lengths, WIDTH) if full else lengths)[:, None]
    last = torch.arange(WIDTH)[None, :] == mask.sum(1)[:, None] - 1
    old = torch.where(mask, -_normal(ROWS, WIDTH, seed=1).abs() - 0.05, 0.0)
    rewards = torch.where(last, 2 * _normal(ROWS, 1, seed=2), 0.0) + 0.05 * _normal(ROWS, WIDTH, seed=3)
    return Scored(
        rewards=torch.where(mask, rewards, 0.0),
        scores=torch.zeros(ROWS),
        values=torch.where(mask, _normal(ROWS, WIDTH, seed=4), 0.0),
        bootstrap=torch.zeros(ROWS, dtype=torch.float64),
        mask=mask,
        groups=torch.arange(ROWS) // GROUP,
        greedy=_normal(ROWS // GROUP, seed=5).repeat_interleave(GROUP),
        old_logprobs=old,
        collision=torch.where(mask, old.exp().square() + 0.1 * _normal(ROWS, WIDTH, seed=6).abs(), 0.0),
    )


@cache
def batch() -> Batch:
    """The same responses with an advantage each."""
    given = scored()
    assert given.old_logprobs is not None
    ids = torch.randint(0, 999, (ROWS, WIDTH + 1), generator=torch.Generator().manual_seed(7))
    attention = torch.cat([torch.ones(ROWS, 1, dtype=torch.bool), given.mask], dim=1)
    return Batch(
        sequences=Sequences(ids, attention, 1),
        mask=given.mask,
        rollout_logprobs=torch.where(given.mask, given.old_logprobs + 0.4 * _normal(ROWS, WIDTH, seed=8), 0.0),
        old_logprobs=given.old_logprobs,
        ref_logprobs=torch.where(given.mask, given.old_logprobs + 0.3 * _normal(ROWS, WIDTH, seed=9), 0.0),
        advantages=torch.where(given.mask, _normal(ROWS, 1, seed=10), 0.0),
        returns=None,
        values=None,
    )


def moved() -> Tensor:
    """The policy some steps later: ratios from 0.3 to 3."""
    return batch().old_logprobs + torch.where(batch().mask, 0.4 * _normal(ROWS, WIDTH, seed=11), 0.0)


def shifted() -> Tensor:
    """A policy whose log-probabilities have all moved alike: centred, they are the old ones."""
    return batch().old_logprobs + torch.where(batch().mask, 0.05, 0.0)


# --------------------------------------------------------------------------------------------------------- the ways


def apart(one: Tensor, other: Tensor) -> float:
    """Largest absolute difference."""
    return float((one.double() - other.double()).abs().max())


def slope(loss: Callable[[Tensor], Tensor], at: Tensor) -> tuple[Tensor, Tensor]:
    """A scalar loss and its gradient."""
    at = at.clone().requires_grad_()
    value = loss(at)
    (gradient,) = torch.autograd.grad(value, at)
    return value.detach(), gradient


def compare_losses(ours: Callable[[Tensor], Tensor], theirs: Callable[[Tensor], Tensor], at: Tensor) -> Found:
    """Value and gradient of two scalars."""
    return Found(max(apart(a, b) for a, b in zip(slope(ours, at), slope(theirs, at), strict=True)))


def scalar(loss: PolicyLoss) -> Callable[[Tensor], Tensor]:
    """What our engine makes of a policy loss on the whole batch."""
    prepared = loss.prepare(batch())
    denominator = {
        "token": float(prepared.mask.sum()),
        "sequence": float(len(prepared)),
        "constant": float(len(prepared) * WIDTH),
    }[loss.aggregation]
    return lambda logprobs: aggregate(
        loss(logprobs, prepared), prepared.mask, mode=loss.aggregation, denominator=denominator
    )


def trl(loss: PolicyLoss, trainer: str = "trainer.grpo_trainer.GRPOTrainer", **settings: Any) -> Found:
    """A policy loss against one of TRL's trainers."""
    inputs = {
        "completion_mask": batch().mask.double(),
        "advantages": batch().advantages[:, 0],
        "old_per_token_logps": batch().old_logprobs,
    }
    return compare_losses(scalar(loss), lambda x: trl_loss(trainer, x, inputs, **settings), moved())


def trl_with_kl() -> Found:
    """GRPO's loss with its KL term."""
    beta, given = 0.04, batch()
    assert given.ref_logprobs is not None
    inputs = {
        "completion_mask": given.mask.double(),
        "advantages": given.advantages[:, 0],
        "old_per_token_logps": given.old_logprobs,
        "ref_per_token_logps": given.ref_logprobs,
    }
    surrogate, reference = scalar(losses.Clip(aggregation="sequence")), given.ref_logprobs

    def ours(logprobs: Tensor) -> Tensor:
        penalty = kl.k3(logprobs, reference, mask=given.mask)
        return surrogate(logprobs) + beta * aggregate(penalty, given.mask, mode="sequence", denominator=ROWS)

    theirs = lambda x: trl_loss("trainer.grpo_trainer.GRPOTrainer", x, inputs, beta=beta)  # noqa: E731
    return compare_losses(ours, theirs, moved())


def trl_rloo() -> Found:
    """The gradient of TRL's RLOO, when the policy has moved and at the old policy."""
    given = batch()
    inputs = {
        "completion_mask": given.mask.double(),
        "advantages": given.advantages[:, 0],
        "old_logps": given.old_logprobs.sum(1),
    }
    ours = scalar(losses.PolicyGradient(aggregation="constant"))

    def gap(at: Tensor) -> float:
        _, one = slope(ours, at)
        _, other = slope(lambda x: trl_loss("trainer.rloo_trainer.RLOOTrainer", x, inputs), at)
        return apart(one * WIDTH, other)  # "constant" divides by the longest allowed response too

    return Found(gap(moved()), gap(given.old_logprobs))


@cache
def verl() -> Any:
    """Losses and estimators of verl."""
    return peer_code.verl_modules()[0]


def verl_loss(loss: PolicyLoss, name: str, mode: str, config: Any, at: Tensor | None = None) -> Found:
    """A policy loss against one of verl's."""
    given = batch()

    def theirs(logprobs: Tensor) -> Tensor:
        function = getattr(verl(), f"compute_policy_loss_{name}")
        return function(given.old_logprobs, logprobs, given.advantages, given.mask.double(), mode, config)[0]

    return compare_losses(scalar(loss), theirs, moved() if at is None else at)


def verl_covariance(loss: PolicyLoss, name: str, **settings: float) -> Found:
    """Those that choose tokens, when the policy has moved and where its covariances are those of before."""
    config = actor_config(**settings)
    found = [verl_loss(loss, name, "token-mean", config, at).difference for at in (moved(), shifted())]
    return Found(*found)


def compare_estimates(estimator: AdvantageEstimator, theirs: tuple[Tensor, Tensor], *, factor: float = 1.0) -> Found:
    """Advantages, and returns where there is a critic, on real tokens; ours times a factor for the remainder."""
    mask, ours = scored().mask, estimator(scored())
    difference = apart(ours.advantages[mask], theirs[0][mask])
    returns = 0.0 if ours.returns is None else apart(ours.returns[mask], theirs[1][mask])
    if factor == 1.0:
        return Found(max(difference, returns))
    return Found(max(difference, returns), max(apart(ours.advantages[mask] * factor, theirs[0][mask]), returns))


def verl_estimate(estimator: AdvantageEstimator, name: str, *, whitened: bool = False, **settings: Any) -> Found:
    """An estimator against one of verl's."""
    given = scored()
    shared = {"token_level_rewards": given.rewards.clone(), "response_mask": given.mask.double()}
    theirs = getattr(verl(), f"compute_{name}")(**shared, **settings)
    tokens = int(given.mask.sum())
    return compare_estimates(estimator, theirs, factor=math.sqrt((tokens - 1) / tokens) if whitened else 1.0)


def verl_token_baseline(*, zero_tail: bool) -> Found:
    """The optimal token baseline; where verl zeroes it, ours is 0 there, and the rest is compared."""
    given, ours = scored(), estimators.OptimalTokenBaseline()(scored()).advantages
    theirs, _ = verl().compute_optimal_token_baseline_advantage(
        given.rewards,
        given.mask.double(),
        given.groups.numpy(),
        given.old_logprobs,
        given.collision,
        handle_zero_tail=zero_tail,
    )
    difference = apart(ours[given.mask], theirs[given.mask])
    reached = given.mask.view(-1, GROUP, WIDTH).sum(1).repeat_interleave(GROUP, 0) > 1
    rest = given.mask & reached
    return Found(difference, apart(ours[rest], theirs[rest])) if zero_tail else Found(difference)


def verl_weights(correction: SamplerCorrection, level: str, threshold: float | str) -> Found:
    """A sampler correction against verl's."""
    given = batch()
    weights, _ = peer_code.verl_modules()[1].compute_rollout_correction_weights(
        given.old_logprobs - given.rollout_logprobs, given.mask.double(), level, threshold
    )
    return Found(apart(correction(given), weights))


def verl_kl(name: str) -> Found:
    """A KL estimate per token."""
    given = batch()
    assert given.ref_logprobs is not None
    ours = kl.estimate(name, moved(), given.ref_logprobs)
    return Found(apart(ours, verl().kl_penalty(moved(), given.ref_logprobs, name)))


def verl_value() -> Found:
    """The critic's loss."""
    given = scored()
    assert given.values is not None
    old, returns, mask = given.values, given.values + _normal(ROWS, WIDTH, seed=12), given.mask
    ours = lambda v: aggregate(functional.clipped_value(v, old, returns, mask), mask, mode="token", denominator=count)  # noqa: E731
    theirs = lambda v: verl().compute_value_loss(v, returns, old, mask.double(), 0.2)[0]  # noqa: E731
    count = float(mask.sum())
    return compare_losses(ours, theirs, old + 0.4 * _normal(ROWS, WIDTH, seed=13))


def sb3() -> Found:
    """GAE of rows that go on after their end."""
    given = dataclasses.replace(scored(full=True), bootstrap=_normal(ROWS, seed=14))
    assert given.values is not None and given.bootstrap is not None
    ours = estimators.GAE(gamma=0.99, lam=0.9, whiten=False)(given)
    theirs = sb3_gae(given.rewards, given.values, given.bootstrap, gamma=0.99, lam=0.9)
    assert ours.returns is not None
    return Found(max(apart(ours.advantages, theirs[0]), apart(ours.returns, theirs[1])))

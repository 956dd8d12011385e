"""Our losses and estimators against published implementations, on the same tensors: prints the table of docs/peers.md.

    pip install -c constraints.txt -e '.[peers]' && pip install --no-deps verl==0.9.1
    python benchmarks/peers.py

A loss is compared by its value and by its gradient with respect to the log-probabilities, an estimator by all it
answers on real tokens, both in double precision where the peer computes in it. Where a peer means something else, the
last column says what, and what is left once that is undone.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))  # its neighbour, wherever it is started from

import peer_code
from peer_code import HINT, VERSIONS, MissingPeer, actor_config, sb3_gae, trl_loss

from rlhf.algorithms import advantages as estimators, policy_losses as losses
from rlhf.algorithms.corrections import MaskedIS, TruncatedIS
from rlhf.algorithms.covariance_losses import ClipCov, KLCov
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


@dataclass(frozen=True)
class Comparison:
    """One line of the table.

    Attributes:
        ours: The component or function.
        peer: Name of the distribution.
        theirs: What is called of it.
        run: Compares the two.
        why: Why they differ; "" where they do not.
    """

    ours: str
    peer: str
    theirs: str
    run: Callable[[], Found]
    why: str = ""

    def cells(self) -> tuple[str, str, str]:
        """The first three of its line."""
        return f"`{self.ours}`", f"{self.peer} {VERSIONS[self.peer]}", self.theirs


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


# -------------------------------------------------------------------------------------------------------- the table

BESSEL = "its whitening takes the sample variance, ours the population's: a factor √((n − 1) / n) over n tokens"
COVARIANCES = (
    "it takes the covariances of the policy as it is trained, from each micro-batch; ours, those before the update, "
    "from the optimiser step. Undone: a policy for which the two are the same"
)
_GROUPS = {"index": np.arange(ROWS) // GROUP}
_P, _E = losses, estimators


def _trl(ours: PolicyLoss, theirs: str, **settings: Any) -> Comparison:
    return Comparison(_shown(ours), "trl", f"GRPOTrainer, {theirs}", lambda: trl(ours, **settings))


def _verl(ours: PolicyLoss, name: str, mode: str, **settings: Any) -> Comparison:
    run = lambda: verl_loss(ours, name, mode, actor_config(**settings))  # noqa: E731
    return Comparison(_shown(ours), "verl", f"compute_policy_loss_{name}, {mode}", run)


def _covariance(ours: PolicyLoss, name: str, **settings: float) -> Comparison:
    run = lambda: verl_covariance(ours, name, **settings)  # noqa: E731
    return Comparison(_shown(ours), "verl", f"compute_policy_loss_{name}", run, COVARIANCES)


def _estimate(ours: AdvantageEstimator, name: str, *, whitened: bool = False, **settings: Any) -> Comparison:
    run = lambda: verl_estimate(ours, name, whitened=whitened, **settings)  # noqa: E731
    return Comparison(_shown(ours), "verl", f"compute_{name}", run, BESSEL if whitened else "")


def _weights(ours: SamplerCorrection, level: str, threshold: float | str) -> Comparison:
    theirs = f"compute_rollout_correction_weights, {level}, {threshold}"
    return Comparison(_shown(ours), "verl", theirs, lambda: verl_weights(ours, level, threshold))


def _shown(component: Any) -> str:
    """As in Python, with the settings that are not the defaults."""
    settings = {f.name: getattr(component, f.name) for f in dataclasses.fields(component) if _chosen(component, f)}
    return f"{type(component).__name__}({', '.join(f'{name}={value!r}' for name, value in settings.items())})"


def _chosen(component: Any, field: dataclasses.Field[Any]) -> bool:
    return getattr(component, field.name) != field.default


COMPARISONS = [
    _trl(_P.Clip(), "bnpo", loss_type="bnpo"),
    _trl(_P.Clip(aggregation="sequence"), "grpo"),
    Comparison("Clip(aggregation='sequence') + 0.04 k3", "trl", "GRPOTrainer, grpo, beta 0.04", trl_with_kl),
    _trl(_P.Clip(high=0.28), "dapo", loss_type="dapo", epsilon_high=0.28),
    _trl(_P.Clip(aggregation="constant"), "dr_grpo", loss_type="dr_grpo"),
    _trl(_P.DualClip(dual=1.5), "bnpo, delta 1.5", loss_type="bnpo", delta=1.5),
    _trl(
        _P.SequenceClip(low=0.05, high=0.1),
        "grpo, sequence",
        importance_sampling_level="sequence",
        epsilon_low=0.05,
        epsilon_high=0.1,
    ),
    _trl(_P.DetachedClip(high=0.5), "cispo", loss_type="cispo", epsilon_high=1.5),
    Comparison(
        "GeometricMean()",
        "trl",
        "experimental GMPOTrainer",
        lambda: trl(_P.GeometricMean(), "experimental.gmpo.GMPOTrainer", epsilon_low=0.4, epsilon_high=0.4),
    ),
    Comparison(
        "PolicyGradient(aggregation='constant')",
        "trl",
        "RLOOTrainer, gradient",
        trl_rloo,
        "it clips the ratio of the whole response, which is the product of its tokens'; ours has no ratio. Undone: the "
        "first step, where all ratios are 1",
    ),
    _verl(_P.DualClip(dual=1.5), "vanilla", "token-mean", dual=1.5),
    _verl(_P.SequenceClip(low=0.05, high=0.1), "gspo", "seq-mean-token-mean", low=0.05, high=0.1),
    _verl(_P.DetachedClip(low=0.2, high=0.28), "cispo", "token-mean", high=0.28),
    _verl(_P.GeometricMean(), "geo_mean", "seq-mean-token-mean", low=0.4, high=0.4),
    _verl(_P.PolicyGradient(), "gpg", "token-mean"),
    _covariance(ClipCov(fraction=1.0, cov_low=0.2), "clip_cov", clip_cov_ratio=1.0, clip_cov_lb=0.2),
    _covariance(KLCov(fraction=0.1, coef=0.5), "kl_cov", kl_cov_ratio=0.1, ppo_kl_coef=0.5),
    Comparison("losses.clipped_value", "verl", "compute_value_loss", verl_value),
    *(
        Comparison(f"kl.{name}", "verl", f"kl_penalty, {name}", lambda name=name: verl_kl(name))
        for name in kl.ESTIMATORS
    ),
    Comparison("GAE(gamma=0.99, lam=0.9, whiten=False)", "stable-baselines3", "RolloutBuffer (single precision)", sb3),
    _estimate(
        _E.GAE(gamma=0.99, lam=0.9), "gae_advantage_return", whitened=True, values=scored().values, gamma=0.99, lam=0.9
    ),
    _estimate(_E.GroupNorm(eps=1e-6), "grpo_outcome_advantage", **_GROUPS),
    _estimate(_E.GroupNorm(scale="none"), "grpo_outcome_advantage", norm_adv_by_std_in_grpo=False, **_GROUPS),
    _estimate(_E.LeaveOneOut(), "rloo_outcome_advantage", **_GROUPS),
    _estimate(
        _E.Returns(), "reinforce_plus_plus_outcome_advantage", whitened=True, config=peer_code.ActorConfig(gamma=1.0)
    ),
    _estimate(
        _E.GroupNorm(scale="none", whiten=True),
        "reinforce_plus_plus_baseline_outcome_advantage",
        whitened=True,
        **_GROUPS,
    ),
    _estimate(_E.GreedyBaseline(), "remax_outcome_advantage", reward_baselines=scored().greedy),
    Comparison(
        "OptimalTokenBaseline()",
        "verl",
        "compute_optimal_token_baseline_advantage, handle_zero_tail off",
        lambda: verl_token_baseline(zero_tail=False),
    ),
    Comparison(
        "OptimalTokenBaseline()",
        "verl",
        "compute_optimal_token_baseline_advantage",
        lambda: verl_token_baseline(zero_tail=True),
        "by default it has no baseline where the longest response is alone, ours no advantage. Undone: elsewhere",
    ),
    _weights(TruncatedIS(), "token", 2.0),
    _weights(TruncatedIS(level="sequence"), "sequence", 2.0),
    _weights(MaskedIS(low=0.8, high=1.25), "token", "0.8_1.25"),
    _weights(MaskedIS(low=0.5, high=2.0, level="sequence"), "sequence", "0.5_2.0"),
]


def table() -> list[str]:
    """Markdown, a line a comparison."""
    lines = [
        "| ours | implementation | what is called | largest difference | why it differs, and what is left without it |",
        "|---|---|---|---|---|",
    ]
    for comparison in COMPARISONS:
        try:
            found = comparison.run()
        except MissingPeer:
            lines.append(f"| {' | '.join((*comparison.cells(), 'not installed', comparison.why))} |")
            continue
        rest = "" if found.remainder is None else f"{comparison.why}: {_digits(found.remainder)}"
        lines.append(f"| {' | '.join((*comparison.cells(), _digits(found.difference), rest))} |")
    return lines


def _digits(difference: float) -> str:
    """0 for what is exactly equal, else one digit and its power of ten."""
    return "0" if difference == 0 else f"{difference:.0e}"


if __name__ == "__main__":
    lines = table()
    print("\n".join(lines))
    if any("| not installed |" in line for line in lines):
        print(f"What is not installed was not compared: {HINT}", file=sys.stderr)

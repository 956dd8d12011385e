"""The KL penalty against the reference: estimator, place and weight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from rlhf import interfaces
from rlhf.algorithms.functional import kl
from rlhf.algorithms.schedules import LinearDecay
from rlhf.errors import UserError, require
from rlhf.interfaces import KLController, LiveController
from rlhf.types import Batch, Outputs


class _FixedCoefficient(LiveController):
    def __init__(self, coef: float) -> None:
        self.coef = coef

    def update(self, observed: float, samples: int) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return {"coef": self.coef}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.coef = state["coef"]


@dataclass(frozen=True, kw_only=True)
class Fixed(KLController):
    """A constant KL coefficient.

    Args:
        coef: The coefficient β.
    """

    coef: float = 0.05

    def __post_init__(self) -> None:
        require(at_least=0, coef=self.coef)

    def build(self, *, iterations: int) -> LiveController:
        return _FixedCoefficient(self.coef)


def _too_fast(horizon: int, clip: float, responses: int) -> str | None:
    """Why one iteration could turn the coefficient negative; None where it cannot."""
    if clip * responses < horizon:
        return None
    return (
        f"horizon: {horizon}, but an iteration of {responses} responses and clip {clip:g} could turn the coefficient "
        f"negative; set it above {clip * responses:g}"
    )


class _AdaptiveCoefficient(_FixedCoefficient):
    def __init__(self, settings: Adaptive) -> None:
        super().__init__(settings.coef)
        self.settings = settings

    def update(self, observed: float, samples: int) -> None:
        rule = self.settings
        self.coef = kl.adaptive_update(
            self.coef, observed, target=rule.target, horizon=rule.horizon, samples=samples, clip=rule.clip
        )


@dataclass(frozen=True, kw_only=True)
class Adaptive(KLController):
    """A coefficient that follows the observed KL towards a target.

    β ← β (1 + clip(KL / target − 1, ±clip) · samples / horizon).   Source: arXiv:1909.08593, section 2.2.

    Args:
        coef: β before the first iteration.
        target: KL to hold, in nats per response.
        horizon: Samples over which the error takes full effect.
        clip: Bound of the proportional error.
    """

    coef: float = 0.1
    target: float = 6.0
    horizon: int = 10_000
    clip: float = 0.2

    def __post_init__(self) -> None:
        require(at_least=0, coef=self.coef)
        require(above=0, target=self.target, horizon=self.horizon, clip=self.clip)

    def check(self, *, responses: int) -> str | None:
        return _too_fast(self.horizon, self.clip, responses)

    def build(self, *, iterations: int) -> LiveController:
        return _AdaptiveCoefficient(self)


class _ScheduledCoefficient(LiveController):
    def __init__(self, settings: Schedule, iterations: int) -> None:
        self.settings, self.iterations = settings, iterations
        self._reach(0)

    def _reach(self, done: int) -> None:
        self.done = done
        self.coef = self.settings.coef * self.settings.shape.factor(done, self.iterations)

    def update(self, observed: float, samples: int) -> None:
        self._reach(self.done + 1)

    def state_dict(self) -> dict[str, Any]:
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._reach(state["done"])


@dataclass(frozen=True, kw_only=True)
class Schedule(KLController):
    """A coefficient that follows a shape over the run, whatever is observed.

    β_i = coef · shape(i, n) in iteration i = 0 … n − 1 of n. An iteration of which no step was made does not count.

    Args:
        coef: β where the shape is 1.
        shape: Its factor over the iterations, as of a learning rate; its ``warmup`` counts iterations.
    """

    coef: float = 0.05
    shape: interfaces.Schedule = LinearDecay()

    def __post_init__(self) -> None:
        require(at_least=0, coef=self.coef)

    def build(self, *, iterations: int) -> LiveController:
        return _ScheduledCoefficient(self, iterations)


class _BudgetedCoefficient(LiveController):
    def __init__(self, settings: Budget, iterations: int) -> None:
        self.settings, self.iterations = settings, iterations
        self.coef, self.done = settings.coef, 0

    def update(self, observed: float, samples: int) -> None:
        rule = self.settings
        self.done += 1
        self.coef = kl.adaptive_update(
            self.coef,
            observed,
            target=kl.rising_target(self.done, budget=rule.budget, iterations=self.iterations),
            horizon=rule.horizon,
            samples=samples,
            clip=rule.clip,
        )

    def state_dict(self) -> dict[str, Any]:
        return {"coef": self.coef, "done": self.done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.coef, self.done = state["coef"], state["done"]


@dataclass(frozen=True, kw_only=True)
class Budget(KLController):
    """A budget of KL for the whole run: the coefficient follows the observed KL towards a target that rises to it.

    target_i = budget · i / n after iteration i = 1 … n of n,
    β ← β (1 + clip(KL_i / target_i − 1, ±clip) · samples / horizon).
    The rule of β is that of ``Adaptive`` (arXiv:1909.08593, section 2.2); the rising target is ours. The policy is held
    as tightly at the start as at the end, where a fixed target leaves it alone until all of it is spent.

    Args:
        coef: β before the first iteration.
        budget: KL that the run may end with, in nats per response.
        horizon: Samples over which the error takes full effect; a run of few samples wants fewer.
        clip: Bound of the proportional error.
    """

    coef: float = 0.1
    budget: float = 10.0
    horizon: int = 10_000
    clip: float = 0.2

    def __post_init__(self) -> None:
        require(at_least=0, coef=self.coef)
        require(above=0, budget=self.budget, horizon=self.horizon, clip=self.clip)

    def check(self, *, responses: int) -> str | None:
        return _too_fast(self.horizon, self.clip, responses)

    def build(self, *, iterations: int) -> LiveController:
        return _BudgetedCoefficient(self, iterations)


@dataclass(frozen=True, kw_only=True)
class KL:
    """How the policy is held near the reference.

    In the reward the penalty −β·KL_t is added to each token's reward; in the loss β·KL_t is a term of its own, for k2
    weighted after the first mini-batch by the detached importance ratio. k1 as a loss is refused: its gradient's
    expectation is zero. k3 as a loss is allowed for parity with GRPO; its gradient is that of the reverse divergence,
    KL(reference ‖ policy). The exact KL is of the two whole distributions of the next token: no sampling noise of the
    token drawn, and memory for [responses, tokens, vocabulary] at a time, of a mini-batch in the loss and of a
    micro-batch in the reward.

    Args:
        estimator: Per token: k1, k2 or k3 (Schulman 2020, "Approximating KL divergence"), or "exact".
        where: Whether the penalty enters the "reward" or the "loss".
        controller: The coefficient over time.
    """

    estimator: Literal["k1", "k2", "k3", "exact"] = "k1"
    where: Literal["reward", "loss"] = "reward"
    controller: KLController = Fixed()

    def __post_init__(self) -> None:
        if self.where == "loss" and self.estimator == "k1":
            raise UserError(
                "estimator is k1 and where is loss: the gradient of k1 as a loss has expectation zero; "
                "set estimator k2, or where: reward"
            )

    def penalty(self, outputs: Outputs, batch: Batch) -> Tensor:
        """KL per token [B, T] as a loss, with gradient."""
        if self.estimator == "exact":  # of the state, whichever token was drawn in it: no importance weight
            assert outputs.distribution is not None and batch.ref_distribution is not None
            return kl.exact(outputs.distribution, batch.ref_distribution, mask=batch.mask)
        assert outputs.logprobs is not None and batch.ref_logprobs is not None
        return self.estimated(outputs.logprobs, batch.old_logprobs, batch.ref_logprobs, batch.mask)

    def estimated(self, logprobs: Tensor, old_logprobs: Tensor, ref_logprobs: Tensor, mask: Tensor) -> Tensor:
        """The penalty from the log-probabilities of the tokens that were drawn."""
        values = kl.estimate(self.estimator, logprobs, ref_logprobs, mask=mask)
        if self.estimator == "k3":  # as published: no importance weight
            return values
        ratio = (logprobs.detach() - old_logprobs).masked_fill(~mask, 0.0).exp()
        return ratio * values

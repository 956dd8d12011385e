"""The models of an on-policy stage in the hands of their engines: policy, critic and reference."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from torch import Tensor, nn

from rlhf.algorithms.ppo import PPO
from rlhf.interfaces import LanguageModel, LiveEngine, WeightAverage
from rlhf.loops.context import StageContext
from rlhf.models.lora import adapters_off, starts_as_base
from rlhf.models.modules import PolicyModel
from rlhf.models.tokenizer import check_same_vocabulary
from rlhf.types import Outputs, Selectable, Stateful


class Reference(Stateful, Protocol):
    """The frozen model that the KL is measured against: what is asked of it."""

    def evaluate(
        self, batches: Iterable[Selectable], *, temperature: float = 1.0, want: Sequence[str]
    ) -> Iterator[Outputs]: ...


class WithoutAdapters:
    """A policy with its adapters switched off: what it started from, without a second model.

    Args:
        policy: Its engine.
    """

    def __init__(self, policy: LiveEngine) -> None:
        self.policy = policy

    def evaluate(
        self, batches: Iterable[Selectable], *, temperature: float = 1.0, want: Sequence[str]
    ) -> Iterator[Outputs]:
        """All answers at once, so that the adapters are on again whatever is done between two of them."""
        with adapters_off(self.policy.model):
            return iter(list(self.policy.evaluate(batches, temperature=temperature, want=want)))

    def state_dict(self) -> dict[str, Any]:
        """Nothing: the policy's own says which weights lie under its adapters."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to load."""


class AveragedPolicy:
    """A policy with a running average of its weights in the place of its own, without a second model.

    Args:
        policy: Its engine.
        average: How the weights are averaged; it starts from those of now.
    """

    def __init__(self, policy: LiveEngine, average: WeightAverage) -> None:
        self.policy = policy
        self.live = average.build(policy.master())

    @property
    def shards(self) -> list[Tensor]:
        """This rank's part of the averaged weights, as the engine has them."""
        return self.live.shards

    def update(self) -> None:
        """Takes in the policy's weights after an optimiser step."""
        self.live.update(self.policy.master())

    def evaluate(
        self, batches: Iterable[Selectable], *, temperature: float = 1.0, want: Sequence[str]
    ) -> Iterator[Outputs]:
        """All answers at once, so that the policy's own weights are back whatever is done between two of them."""
        with self.policy.substituted(self.shards):
            return iter(list(self.policy.evaluate(batches, temperature=temperature, want=want)))

    def state_dict(self) -> dict[str, Any]:
        """Whole weights by name, the same for every engine and number of processes."""
        return {**self.live.state_dict(), "shards": self.policy.whole(self.shards)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from :meth:`state_dict`."""
        self.live.load_state_dict({**state, "shards": self.policy.cut(state["shards"])})


class Actors(NamedTuple):
    """Policy, a critic with a trunk of its own, and reference, of those that the settings ask for."""

    policy: LiveEngine
    critic: LiveEngine | None
    reference: Reference | None


def build_actors(settings: PPO, policy: LanguageModel, context: StageContext) -> Actors:
    """Puts the policy into an engine's hands, and all models that are made from its start.

    The reference is the policy without its adapters where that is what it starts from. A policy that goes on training
    an adapter starts from both, and has a frozen copy of both. A reference that follows the policy is an average of its
    weights.
    """
    follows = settings.reference_average is not None
    own = not follows and settings.kl is not None and settings.reference is None and starts_as_base(policy.module)
    model = None if own or follows else _reference_model(settings, policy, context)
    reference = None if model is None else settings.engine.build(model)
    learner, critic = _build_learners(settings, policy, context)
    if settings.reference_average is not None:
        return Actors(learner, critic, AveragedPolicy(learner, settings.reference_average))
    return Actors(learner, critic, WithoutAdapters(learner) if own else reference)


def _reference_model(settings: PPO, policy: LanguageModel, context: StageContext) -> nn.Module | None:
    """A model of its own, or a copy of the policy's start."""
    if settings.kl is None:
        return None
    if settings.reference is None:
        return PolicyModel(copy.deepcopy(policy.module))
    reference = settings.reference.build(lambda: (), seed=context.seed_for("reference"))
    check_same_vocabulary("reference: its model", reference.tokenizer, policy.tokenizer)
    return PolicyModel(reference.module)


def _build_learners(
    settings: PPO, policy: LanguageModel, context: StageContext
) -> tuple[LiveEngine, LiveEngine | None]:
    """The policy, with a shared critic's head on it, and the critic that has a trunk of its own."""
    critic = settings.used_critic
    value_model = None if critic is None else critic.build(policy, seed=context.seed_for("critic"))
    per_iteration = settings.epochs * (settings.learnt // settings.mini_batch_size)
    total = settings.iterations * per_iteration
    waiting = 0 if critic is None or critic.shared else min(critic.warmup_iterations, settings.iterations)
    policy_engine = settings.engine.build(
        PolicyModel(policy.module, value_model if critic is not None and critic.shared else None),
        optimizer=settings.optimizer,
        schedule=settings.schedule,
        total_steps=total - waiting * per_iteration,
        max_grad_norm=settings.max_grad_norm,
    )
    if critic is None or critic.shared or value_model is None:
        return policy_engine, None
    critic_engine = settings.engine.build(
        value_model,
        optimizer=critic.optimizer,
        schedule=critic.schedule,
        total_steps=total,
        max_grad_norm=critic.max_grad_norm,
    )
    return policy_engine, critic_engine

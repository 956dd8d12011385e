"""The models of an on-policy stage in the hands of their engines: reference, policy and critic."""

from __future__ import annotations

import copy

from rlhf.algorithms.ppo import PPO
from rlhf.interfaces import LanguageModel, LiveEngine
from rlhf.loops.context import StageContext
from rlhf.models.modules import PolicyModel
from rlhf.models.tokenizer import check_same_vocabulary


def build_reference(settings: PPO, policy: LanguageModel, context: StageContext) -> LiveEngine | None:
    """The frozen model that the KL is measured against: of its own, or a copy of the policy's start."""
    if settings.kl is None:
        return None
    if settings.reference is None:
        return settings.engine.build(PolicyModel(copy.deepcopy(policy.module)))
    reference = settings.reference.build(lambda: (), seed=context.seed_for("reference"))
    check_same_vocabulary("reference: its model", reference.tokenizer, policy.tokenizer)
    return settings.engine.build(PolicyModel(reference.module))


def build_learners(settings: PPO, policy: LanguageModel, context: StageContext) -> tuple[LiveEngine, LiveEngine | None]:
    """The policy, with a shared critic's head on it, and the critic that has a trunk of its own."""
    critic = settings.used_critic
    value_model = None if critic is None else critic.build(policy, seed=context.seed_for("critic"))
    per_iteration = settings.epochs * (settings.batch_size // settings.mini_batch_size)
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

"""The models of an on-policy stage in the hands of their engines: reference, policy and critic."""

from __future__ import annotations

import copy
from collections.abc import Mapping

from torch import Tensor

from rlhf.algorithms.ppo import PPO
from rlhf.engines.checkpoint import identity
from rlhf.errors import UserError
from rlhf.interfaces import LanguageModel, LiveEngine
from rlhf.loops.context import StageContext
from rlhf.models.modules import PolicyModel
from rlhf.models.tokenizer import check_same_vocabulary


class ReferenceIdentity:
    """Which weights the KL is measured against: the same from the first step to the last, whatever comes between.

    A checkpoint holds this and no copy of the weights. What has changed on the disk since the start, or a policy that
    has moved on, is never taken for the reference.

    Args:
        weights: As they are given to the engine, before it casts or shards them.
    """

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        self.identity = identity(weights)

    def state_dict(self) -> dict[str, str]:
        """Who it is."""
        return {"identity": self.identity}

    def load_state_dict(self, state: dict[str, str]) -> None:
        """Refuses another one.

        Raises:
            UserError: the weights are not those that the checkpoint's KL was measured against.
        """
        if state["identity"] != self.identity:
            raise UserError(
                "reference: its weights are not those of the run that the checkpoint is from, so the KL would be "
                "measured against another model; put the model back that the stage started from (the policy's, where "
                "reference is null), or begin the stage anew with --resume never"
            )


def build_reference(
    settings: PPO, policy: LanguageModel, context: StageContext
) -> tuple[LiveEngine | None, ReferenceIdentity | None]:
    """The frozen model that the KL is measured against: its own or a copy of the policy's start, and which it is."""
    if settings.kl is None:
        return None, None
    if settings.reference is None:
        module = copy.deepcopy(policy.module)
    else:
        own = settings.reference.build(lambda: (), seed=context.seed_for("reference"))
        check_same_vocabulary("reference: its model", own.tokenizer, policy.tokenizer)
        module = own.module
    which = ReferenceIdentity(module.state_dict())
    return settings.engine.build(PolicyModel(module)), which


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

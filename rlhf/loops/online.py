"""The loop of algorithms that learn from their own samples: prompts → rollout → scores → update."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import torch
from torch import Tensor

from rlhf.algorithms.functional.rewards import per_response
from rlhf.algorithms.objectives import Mixture
from rlhf.algorithms.ppo import PPO
from rlhf.interfaces import LiveEngine
from rlhf.loops.actors import AveragedPolicy
from rlhf.loops.context import StageContext
from rlhf.loops.experience import Collector
from rlhf.loops.figures import compare_gradients, mean_of
from rlhf.loops.streams import next_texts
from rlhf.loops.update import Update, step_together
from rlhf.models.modules import PolicyModel
from rlhf.types import Batch, Experience, Labelled, LossTerm, Outputs, Tally

STATEFUL = ("policy", "critic", "average", "reference", "stream", "mixture", "controller", "normalization")


class OnlineTrainer(Collector):
    """Everything an on-policy stage holds: models, data positions, coefficients.

    Usable by hand, at the grain of a custom loop::

        experience = trainer.generate_experience()
        metrics = trainer.train_rlhf(experience)

    :class:`rlhf.loops.stage.OnlineStage` is these in a row with evaluation, metrics and checkpoints.
    """

    def __init__(self, algorithm: PPO, context: StageContext) -> None:
        super().__init__(algorithm, context)
        self.steps = 0
        """Optimiser steps made, those of a critic that warms up alone included."""
        self.average = None if algorithm.averaging is None else AveragedPolicy(self.policy, algorithm.averaging)
        self.update: Update | None = None
        """The update that an iteration is in the middle of."""

    # ------------------------------------------------------------------------------------------------------- update

    @property
    def warming_up(self) -> bool:
        """Whether only the critic learns in this iteration."""
        critic = self.algorithm.used_critic
        return critic is not None and self.iteration < critic.warmup_iterations

    def train_rlhf(
        self, experience: Experience, on_step: Callable[[dict[str, float]], None] | None = None
    ) -> dict[str, float]:
        """Several epochs of mini-batch updates on one iteration's experience.

        Args:
            experience: From :meth:`generate_experience`.
            on_step: Told the figures of each optimiser step, after which :meth:`state_dict` can be taken.

        Returns:
            The iteration's figures: those of the experience and the means over its optimiser steps.
        """
        self.update = Update(experience)
        return self.continue_update(on_step)

    def continue_update(self, on_step: Callable[[dict[str, float]], None] | None = None) -> dict[str, float]:
        """What is left of :meth:`train_rlhf` where a checkpoint was taken in the middle of it."""
        update = self.update
        assert update is not None, "no update was begun"
        batch, limit = update.experience.batch, self.algorithm.target_kl
        for rows in itertools.islice(self._mini_batches(len(batch)), len(update.steps), None):
            if limit is not None and update.steps and update.steps[-1].get("policy/approx_kl", 0.0) > limit:
                break
            start, part, before = time.perf_counter(), batch.select(rows), self.steps
            figures = self._optimiser_step(part)
            update.add(figures, part, time.perf_counter() - start, made=self.steps > before)
            if on_step is not None:
                on_step(figures)
        return self._conclude(update)

    def _conclude(self, update: Update) -> dict[str, float]:
        """The end of an iteration: what follows from its observations, and its figures."""
        experience, batch = update.experience, update.experience.batch
        tally = update.tally()
        if self.controller is not None:
            tally.sum("kl/coef", self.controller.coef)
            total, count = experience.metrics.means["kl/sequence"]
            if learnt := len(batch) * update.made // len(update.steps):  # steps that were skipped do not count
                self.controller.update(total / count, learnt)
        if self.normalization is not None:
            tally.sum("normalisation/mean", self.normalization.mean)
            tally.sum("normalisation/std", self.normalization.std)
            self.normalization.observe(per_response(experience.raw.total, experience.rollout.mask))
        for name, constraint in self.constraints.items():
            total, count = experience.metrics.means[f"constraint/{name}/cost"]
            tally.sum(f"constraint/{name}/multiplier", constraint.multiplier)
            constraint.observe(total / count)
        self.iteration, self.update = self.iteration + 1, None
        return {"step": self.steps, "iteration": self.iteration, **tally.compute(), **mean_of(update.steps)}

    def _mini_batches(self, count: int) -> Iterator[Tensor]:
        """Rows of each optimiser step; every epoch another order."""
        for epoch in range(self.algorithm.epochs):
            seed = self.context.seed_for(f"minibatches/{self.iteration}/{epoch}")
            order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
            yield from order.split(self.algorithm.mini_batch_size)

    def _optimiser_step(self, batch: Batch) -> dict[str, float]:
        batch = self._prepared(batch)
        denominators = self.algorithm.denominators(batch)
        tally, figures, learners = Tally(), {}, {}
        if self.critic is not None or self.warming_up:
            learners["value"] = self.critic or self.policy
            self._accumulate_values(learners["value"], batch, denominators, tally)
        if not self.warming_up:
            learners["policy"] = self.policy
            figures = self._accumulate_policy(batch, denominators, tally)
        made, step = step_together(learners)
        if made:
            self.steps += 1
            if "policy" in learners:
                self._follow()
        figures = {**figures, **step} if made else step
        return {"step": self.steps, "iteration": self.iteration + 1, **tally.compute(), **figures}

    def _prepared(self, batch: Batch) -> Batch:
        """With what is found out of the whole batch of an optimiser step, before it is cut."""
        if self.algorithm.exact_in_loss:
            assert self.reference is not None
            distribution = self.answers(self.reference, batch, ("distribution",))["distribution"]
            batch = dataclasses.replace(batch, ref_distribution=distribution)
        return self.algorithm.policy_loss.prepare(batch)

    def _follow(self) -> None:
        """What follows the policy moves a step behind it."""
        followers = [self.average, self.reference if isinstance(self.reference, AveragedPolicy) else None]
        for follower in followers:
            if follower is not None:
                follower.update()

    def _accumulate_values(
        self, learner: LiveEngine, batch: Batch, denominators: Mapping[str, float], tally: Tally
    ) -> None:
        """The gradient of the critic alone: its own model's, or the head's on the policy's trunk while it warms up."""
        parts, loss = batch.split(self.algorithm.engine.rows_at_once), self.algorithm.value_loss
        with contextlib.nullcontext() if self.critic is not None else _trunk_detached(self.policy):
            tally.merge(learner.accumulate(parts, loss, denominators, want=("values",)))

    def _accumulate_policy(self, batch: Batch, denominators: Mapping[str, float], tally: Tally) -> dict[str, float]:
        """The gradient of the policy, the mixture's and a shared critic's in it; how the two compare."""
        settings = self.algorithm
        loss = functools.partial(settings.loss, kl_coef=self.kl_coef)
        parts, temperature = batch.split(settings.engine.rows_at_once), settings.sampling.temperature
        tally.merge(self.policy.accumulate(parts, loss, denominators, want=settings.want, temperature=temperature))
        return {} if self.mixture is None else self._accumulate_mixture(tally)

    def _accumulate_mixture(self, tally: Tally) -> dict[str, float]:
        mixture, engine = self.algorithm.mixture, self.algorithm.engine
        assert mixture is not None and self.mixture is not None
        texts = next_texts(self.algorithm, self.mixture, pad_id=self.pad_id)
        count = float(texts.mask.sum())
        compare = mixture.gradient_every > 0 and self.policy.steps % mixture.gradient_every == 0
        before = self.policy.gradient() if compare else []

        parts, loss = texts.split(engine.rows_at_once), functools.partial(_mixture_loss, mixture)
        tally.merge(self.policy.accumulate(parts, loss, {"mixture": count}, want=("logprobs",)))
        return compare_gradients(self.policy, before) if compare else {}

    # -------------------------------------------------------------------------------------------------------- state

    def state_dict(self) -> dict[str, Any]:
        """All that continues the stage exactly, but for the global random state."""
        parts = {name: getattr(self, name) for name in STATEFUL}
        states = {name: part.state_dict() for name, part in parts.items() if part is not None}
        constraints = {name: constraint.state_dict() for name, constraint in self.constraints.items()}
        counts = {"iteration": self.iteration, "steps": self.steps, "responses": self.responses}
        return {**counts, **states, "constraints": constraints, "update": self.update}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from :meth:`state_dict`."""
        self.iteration, self.steps, self.responses = state["iteration"], state["steps"], state["responses"]
        self.update = state["update"]
        for name in STATEFUL:
            if (part := getattr(self, name)) is not None:
                part.load_state_dict(state[name])
        for name, constraint in self.constraints.items():
            constraint.load_state_dict(state["constraints"][name])


def _mixture_loss(mixture: Mixture, outputs: Outputs, batch: Labelled) -> tuple[list[LossTerm], Tally]:
    return [mixture.term(outputs, batch)], Tally()


@contextlib.contextmanager
def _trunk_detached(policy: LiveEngine) -> Iterator[None]:
    """The value head's gradient stops before the trunk inside the context."""
    model = cast(PolicyModel, policy.model)
    before, model.detach_trunk = model.detach_trunk, True
    try:
        yield
    finally:
        model.detach_trunk = before

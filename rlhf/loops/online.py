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

from rlhf.algorithms.functional.rewards import add_at_end, per_response
from rlhf.algorithms.objectives import Mixture
from rlhf.algorithms.ppo import PPO
from rlhf.data.collate import collate_prompts
from rlhf.data.stream import Stream
from rlhf.engines.frozen import kept_once
from rlhf.engines.inference.sampling import Sampling
from rlhf.interfaces import LiveEngine
from rlhf.loops.actors import Reference, build_actors
from rlhf.loops.checks import check_data
from rlhf.loops.context import StageContext
from rlhf.loops.figures import check_scores, compare_gradients, describe, mean_of
from rlhf.loops.replay import open_replay
from rlhf.loops.sources import mean_by_source
from rlhf.loops.streams import mixture_stream, next_prompts, next_texts, prompt_stream
from rlhf.loops.update import Update, step_together
from rlhf.models.modules import PolicyModel, ValueModel
from rlhf.models.tokenizer import pad_id
from rlhf.types import (
    Batch,
    Experience,
    Labelled,
    LossTerm,
    Outputs,
    Prompts,
    Rollout,
    Scored,
    Scores,
    Selectable,
    Tally,
)

STATEFUL = ("policy", "critic", "average", "reference", "stream", "mixture", "controller", "normalization")


class OnlineTrainer:
    """Everything an on-policy stage holds: models, data positions, coefficients.

    Usable by hand, at the grain of a custom loop::

        experience = trainer.generate_experience()
        metrics = trainer.train_rlhf(experience)

    :class:`rlhf.loops.stage.OnlineStage` is these in a row with evaluation, metrics and checkpoints.
    """

    def __init__(self, algorithm: PPO, context: StageContext) -> None:
        self.algorithm, self.context = algorithm, context
        self.iteration = 0
        self.steps = 0
        """Optimiser steps made, those of a critic that warms up alone included."""
        self.responses = 0
        """Responses sampled so far: the global rollout counter that keys the sampler's random numbers."""
        phase = algorithm.data.phase or algorithm.phase
        torch.manual_seed(context.seed_for("torch"))
        built = algorithm.policy.build(lambda: algorithm.data.corpus(phase), seed=context.seed_for("weights"))
        self.tokenizer = built.tokenizer
        self.pad_id = pad_id(self.tokenizer)
        with kept_once():
            self.policy, self.critic, self.reference = build_actors(algorithm, built, context)
            self.scorer = algorithm.reward.build(algorithm.engine, self.tokenizer)
        normalization = algorithm.score_normalization
        self.normalization = None if normalization is None else normalization.build()
        self.controller = (
            None if algorithm.kl is None else algorithm.kl.controller.build(iterations=algorithm.iterations)
        )
        self.average = None if algorithm.averaging is None else algorithm.averaging.build(self.policy.master())
        self.data = algorithm.data.prepare(self.tokenizer, form="prompt", phase=phase, cache_dir=context.cache_dir)
        self.stream = self._stream("order")
        mixed = None if algorithm.mixture is None else mixture_stream(algorithm, self.tokenizer, context)
        self.mixture_data, self.mixture = mixed or (None, None)
        check_data(algorithm, cast(PolicyModel, self.policy.model), self.data, self.mixture_data)
        self.stored = open_replay(algorithm, self.policy, self.tokenizer, context)
        self.update: Update | None = None
        """The update that an iteration is in the middle of."""
        self.measured: Rollout | None = None
        """The rollouts that the normalisation of scores was measured on, once they are."""
        context.part_dropout()

    def _stream(self, purpose: str) -> Stream[Any]:
        return prompt_stream(self.algorithm, self.data, seed=self.context.seed_for(purpose))

    # --------------------------------------------------------------------------------------------------- experience

    def next_prompts(self) -> Prompts:
        """The next iteration's prompts, one per group."""
        return next_prompts(self.algorithm, self.stream)

    def sample(
        self, prompts: Prompts, *, seed: int, first_counter: int = 0, sampling: Sampling | None = None
    ) -> Rollout:
        """One response to each prompt, keyed by ``seed`` and consecutive counters; drawn as in training by default."""
        sampling = sampling or self.algorithm.sampling
        return self.policy.generate(
            prompts,
            sampling,
            self.tokenizer,
            seed=seed,
            counters=range(first_counter, first_counter + len(prompts)),
            stop_ids=sampling.stop_ids(self.tokenizer, *self.algorithm.data.end_ids(self.tokenizer)),
        )

    def score(self, rollout: Rollout) -> tuple[Tensor, Scores, Tally]:
        """Scores [B] or [B, T] as the update sees them, before clipping; what the reward model said; figures of it."""
        raw, mask = self.scorer(rollout), rollout.mask
        check_scores(rollout, raw)
        tally = Tally()
        found = per_response(raw.total, mask)
        tally.mean("reward/score", found)
        if len(self.data.train.sizes) > 1:
            mean_by_source(tally, "reward/score", found, rollout.prompts.source)
        for name, values in raw.parts.items():
            tally.mean(f"reward/{name}", values)
        scores = raw.total if self.normalization is None else self.normalization(raw.total, mask)
        if penalty := self.algorithm.missing_end_penalty:
            scores = add_at_end(scores, -penalty * (~rollout.ended).to(scores.dtype), mask)
        return scores, raw, tally

    def _measure_scores(self) -> None:
        """Mean and deviation of the starting policy's scores, once, where the settings ask for them."""
        if self.normalization is None or self.normalization.measured:
            return
        if self.stored is not None:
            rollout = self.stored.normalization(self.normalization.samples)
        else:
            prompts = collate_prompts(self._stream("normalization").next(self.normalization.samples))
            rollout = self.sample(prompts, seed=self.context.seed_for("normalization"))
        self.measured = rollout
        raw = self.scorer(rollout)
        check_scores(rollout, raw)
        self.normalization.measure(per_response(raw.total, rollout.mask))
        critic = self.algorithm.used_critic
        if self.critic is not None and critic is not None and critic.starts_as_reward_model:
            # Left in the reward model's units, its first errors would be one large constant at every end token.
            answers = self.infer(self.critic, rollout, ("scores",))["scores"].double()
            cast(ValueModel, self.critic.model).standardise(float(answers.mean()), float(answers.std()))

    def infer(
        self, engine: Reference, rollout: Rollout, want: tuple[str, ...], *, temperature: float | None = None
    ) -> dict[str, Tensor]:
        """The wanted fields of :class:`Outputs` for a rollout, by an engine's model; no gradient, no dropout.

        Args:
            engine: The policy's, the reference's or the critic's.
            rollout: B responses.
            want: Names of fields.
            temperature: Of the log-probabilities; None takes that of the training's sampling.
        """
        batches = Selectable(rollout.sequences, rollout.mask).split(self.algorithm.engine.rows_at_once)
        temperature = self.algorithm.sampling.temperature if temperature is None else temperature
        outputs = list(engine.evaluate(batches, temperature=temperature, want=want))
        return {name: _joined([getattr(output, name) for output in outputs], rollout.mask) for name in want}

    def values(self, rollout: Rollout) -> tuple[Tensor | None, Tensor | None]:
        """The critic's values [B, T], and its value [B] after the last token of the responses that were cut."""
        if self.algorithm.used_critic is None:
            return None, None
        found = self.infer(self.critic or self.policy, rollout, ("values", "scores"))
        return found["values"], found["scores"].masked_fill(rollout.ended, 0.0)

    def generate_experience(self, prompts: Prompts | None = None) -> Experience:
        """Samples responses (or replays stored ones), scores them and computes advantages; the weights do not move.

        Args:
            prompts: One per group; each is answered ``samples_per_prompt`` times. None takes the next of the data.
        """
        self._measure_scores()
        start = time.perf_counter()
        replayed = self.stored is not None and prompts is None
        rollout = (
            self._next_stored() if replayed else self._respond(self.next_prompts() if prompts is None else prompts)
        )
        self.responses += len(rollout)
        seconds = time.perf_counter() - start
        experience = self.assess(rollout)
        experience.metrics.sum("time/rollout", seconds)
        if not replayed:
            experience.metrics.sum("throughput/rollout_tokens_per_s", float(rollout.mask.sum()) / seconds)
            for name, value in self.policy.sampling_figures().items():
                experience.metrics.sum(name, value)
        return experience

    def _respond(self, prompts: Prompts) -> Rollout:
        """A group of responses to each prompt."""
        group = self.algorithm.samples_per_prompt
        seed = self.context.seed_for("rollouts")
        rollout = self.sample(prompts.repeat(group), seed=seed, first_counter=self.responses)
        return dataclasses.replace(rollout, groups=torch.arange(len(prompts)).repeat_interleave(group))

    def _next_stored(self) -> Rollout:
        assert self.stored is not None
        return self.stored.iteration(self.iteration + 1, self.algorithm.batch_size)

    def assess(self, rollout: Rollout) -> Experience:
        """Scores, log-probabilities, values and advantages of a rollout."""
        settings, start = self.algorithm, time.perf_counter()
        scores, raw, tally = self.score(rollout)
        old_logprobs, mask = rollout.rollout_logprobs, rollout.mask
        if settings.rescore:
            found = self.infer(self.policy, rollout, ("logprobs", "entropy"))
            old_logprobs = found["logprobs"]
            tally.mean("policy/entropy", found["entropy"], mask)
            tally.mean("rollout/logprob_gap", (old_logprobs - rollout.rollout_logprobs).abs(), mask)
        ref_logprobs = None
        if self.reference is not None:
            ref_logprobs = self.infer(self.reference, rollout, ("logprobs",))["logprobs"]
        values, bootstrap = self.values(rollout)
        rewards = settings.rewards(scores, old_logprobs, ref_logprobs, mask, kl_coef=self.kl_coef)
        scored = Scored(rewards, per_response(scores, mask), values, bootstrap, mask, rollout.groups)
        advantages, returns = settings.advantages(scored)
        batch = Batch(
            sequences=rollout.sequences,
            mask=mask,
            rollout_logprobs=rollout.rollout_logprobs,
            old_logprobs=old_logprobs,
            ref_logprobs=ref_logprobs,
            advantages=advantages,
            returns=returns,
            values=values,
        )
        describe(tally, rollout, scored, batch)
        tally.sum("time/score", time.perf_counter() - start)
        return Experience(rollout, raw, scored, batch, tally)

    # ------------------------------------------------------------------------------------------------------- update

    @property
    def kl_coef(self) -> float:
        """β of the KL penalty now; 0 without one."""
        return 0.0 if self.controller is None else self.controller.coef

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
        self.iteration, self.update = self.iteration + 1, None
        return {"step": self.steps, "iteration": self.iteration, **tally.compute(), **mean_of(update.steps)}

    def _mini_batches(self, count: int) -> Iterator[Tensor]:
        """Rows of each optimiser step; every epoch another order."""
        for epoch in range(self.algorithm.epochs):
            seed = self.context.seed_for(f"minibatches/{self.iteration}/{epoch}")
            order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
            yield from order.split(self.algorithm.mini_batch_size)

    def _optimiser_step(self, batch: Batch) -> dict[str, float]:
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
            if self.average is not None and "policy" in learners:
                self.average.update(self.policy.master())
        figures = {**figures, **step} if made else step
        return {"step": self.steps, "iteration": self.iteration + 1, **tally.compute(), **figures}

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
        if self.average is not None:
            states["average"] = {**states["average"], "shards": self.policy.whole(self.average.shards)}
        counts = {"iteration": self.iteration, "steps": self.steps, "responses": self.responses}
        return {**counts, **states, "update": self.update}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from :meth:`state_dict`."""
        self.iteration, self.steps, self.responses = state["iteration"], state["steps"], state["responses"]
        self.update = state["update"]
        for name in STATEFUL:
            part = getattr(self, name)
            if part is None:
                continue
            saved = state[name]
            if name == "average":
                saved = {**saved, "shards": self.policy.cut(saved["shards"])}
            part.load_state_dict(saved)


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


def _joined(parts: list[Tensor], mask: Tensor) -> Tensor:
    """Micro-batches [b] to [B], or [b, t, …] of different widths to [B, T, …] with zeros where they were cut."""
    if parts[0].ndim == 1:
        return torch.cat(parts)
    joined, row = parts[0].new_zeros(*mask.shape, *parts[0].shape[2:]), 0
    for part in parts:
        joined[row : row + len(part), : part.shape[1]] = part
        row += len(part)
    return joined

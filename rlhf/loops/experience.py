"""Prompts → rollout → scores → experience: all of an on-policy stage that happens before its weights move."""

from __future__ import annotations

import dataclasses
import time
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from rlhf.algorithms.constraints import charged
from rlhf.algorithms.functional.kl import exact
from rlhf.algorithms.functional.rewards import add_at_end, per_response
from rlhf.algorithms.ppo import PPO
from rlhf.data.collate import collate_prompts
from rlhf.data.stream import Stream
from rlhf.engines.frozen import kept_once
from rlhf.engines.inference.rollouts import join_rollouts
from rlhf.engines.inference.sampling import Sampling
from rlhf.loops.actors import Reference, build_actors
from rlhf.loops.checks import check_data
from rlhf.loops.context import StageContext
from rlhf.loops.figures import check_scores, describe
from rlhf.loops.replay import check_groups, open_replay
from rlhf.loops.sources import mean_by_source
from rlhf.loops.streams import mixture_stream, next_prompts, prompt_stream
from rlhf.models.modules import PolicyModel, ValueModel
from rlhf.models.tokenizer import pad_id
from rlhf.types import Batch, Experience, Prompts, Rollout, Scored, Scores, Selectable, Tally


class Judged(NamedTuple):
    """A rollout and what its responses are worth.

    Attributes:
        rollout: B responses.
        scores: [B] or [B, T] as the update sees them, before clipping.
        raw: What the reward model said, before normalisation, costs and penalties.
    """

    rollout: Rollout
    scores: Tensor
    raw: Scores

    def select(self, rows: Tensor) -> Judged:
        """The given rows."""
        rollout = self.rollout.select(rows)
        width = rollout.mask.shape[1]

        def cut(values: Tensor) -> Tensor:
            return values[rows] if values.ndim == 1 else values[rows, :width]

        raw = Scores(cut(self.raw.total), {name: part[rows] for name, part in self.raw.parts.items()})
        return Judged(rollout, cut(self.scores), raw)


def joined(parts: list[Judged], *, pad_id: int) -> Judged:
    """Several as one, with group numbers of their own."""
    if len(parts) == 1:
        return parts[0]
    rollouts = [part.rollout for part in parts]
    prompts = Prompts(
        ids=[ids for rollout in rollouts for ids in rollout.prompts.ids],
        text=[text for rollout in rollouts for text in rollout.prompts.text],
        source=[source for rollout in rollouts for source in rollout.prompts.source],
        columns={
            name: [value for rollout in rollouts for value in rollout.prompts.columns[name]]
            for name in rollouts[0].prompts.columns
        },
    )
    groups, first = [], 0
    for rollout in rollouts:
        numbers = torch.unique(rollout.groups, return_inverse=True)[1]
        groups.append(numbers + first)
        first += int(numbers.max()) + 1
    whole = join_rollouts(prompts, [(rollout, len(rollout)) for rollout in rollouts], pad_id=pad_id)
    whole = dataclasses.replace(whole, groups=torch.cat(groups))
    raw = Scores(
        widened([part.raw.total for part in parts], whole.mask),
        {name: torch.cat([part.raw.parts[name] for part in parts]) for name in parts[0].raw.parts},
    )
    return Judged(whole, widened([part.scores for part in parts], whole.mask), raw)


class Collector:
    """The models of an on-policy stage, its prompts, and how responses are sampled and assessed."""

    def __init__(self, algorithm: PPO, context: StageContext) -> None:
        self.algorithm, self.context = algorithm, context
        self.iteration = 0
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
            self.constraints = {
                name: constraint.build(algorithm.engine, self.tokenizer)
                for name, constraint in algorithm.constraints.items()
            }
        normalization, kl = algorithm.score_normalization, algorithm.kl
        self.normalization = None if normalization is None else normalization.build()
        self.controller = None if kl is None else kl.controller.build(iterations=algorithm.iterations)
        self.data = algorithm.data.prepare(self.tokenizer, form="prompt", phase=phase, cache_dir=context.cache_dir)
        self.stream = self._stream("order")
        mixed = None if algorithm.mixture is None else mixture_stream(algorithm, self.tokenizer, context)
        self.mixture_data, self.mixture = mixed or (None, None)
        check_data(algorithm, cast(PolicyModel, self.policy.model), self.data, self.mixture_data)
        self.stored = open_replay(algorithm, self.policy, self.tokenizer, context)
        self.measured: Rollout | None = None
        """The rollouts that the normalisation of scores was measured on, once they are."""
        context.part_dropout()

    def _stream(self, purpose: str) -> Stream[Any]:
        return prompt_stream(self.algorithm, self.data, seed=self.context.seed_for(purpose))

    @property
    def kl_coef(self) -> float:
        """β of the KL penalty now; 0 without one."""
        return 0.0 if self.controller is None else self.controller.coef

    # ----------------------------------------------------------------------------------------------------- sampling

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

    def _respond(self, prompts: Prompts) -> Rollout:
        """A group of responses to each prompt."""
        group = self.algorithm.samples_per_prompt
        seed = self.context.seed_for("rollouts")
        rollout = self.sample(prompts.repeat(group), seed=seed, first_counter=self.responses)
        self.responses += len(rollout)
        return dataclasses.replace(rollout, groups=torch.arange(len(prompts)).repeat_interleave(group))

    # ------------------------------------------------------------------------------------------------------- scores

    def judge(self, rollout: Rollout) -> tuple[Judged, Tally]:
        """What a rollout's responses are worth, and figures of it."""
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
        if self.constraints:
            costs = {name: constraint.cost(rollout) for name, constraint in self.constraints.items()}
            for name, cost in costs.items():
                tally.mean(f"constraint/{name}/cost", cost)
            scores = charged(scores, costs, self.constraints, mask)
        if penalty := self.algorithm.missing_end_penalty:
            scores = add_at_end(scores, -penalty * (~rollout.ended).to(scores.dtype), mask)
        return Judged(rollout, scores, raw), tally

    def _greedy_scores(self, rollout: Rollout) -> Tensor:
        """[B] score of the greedy response to each one's prompt, clipped as the rewards are."""
        _, number = torch.unique(rollout.groups, return_inverse=True)
        first = [int((number == group).nonzero()[0]) for group in range(int(number.max()) + 1)]
        sampling = dataclasses.replace(self.algorithm.sampling, greedy=True)
        greedy = self.sample(rollout.prompts.select(first), seed=self.context.seed_for("greedy"), sampling=sampling)
        judged, _ = self.judge(greedy)
        rewards = self.algorithm.rewards(judged.scores, greedy.rollout_logprobs, None, greedy.mask, kl_coef=0.0)
        return rewards.sum(1)[number]

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

    # -------------------------------------------------------------------------------------------------- experience

    def generate_experience(self, prompts: Prompts | None = None) -> Experience:
        """Samples responses (or replays stored ones), scores them and computes advantages; the weights do not move.

        Args:
            prompts: One per group; each is answered ``samples_per_prompt`` times. None takes the next of the data.
        """
        self._measure_scores()
        if self.stored is not None and prompts is None:
            start = time.perf_counter()
            rollout = self.stored.iteration(self.iteration + 1, self.algorithm.batch_size)
            check_groups(rollout, self.algorithm.samples_per_prompt)
            self.responses += len(rollout)
            seconds = time.perf_counter() - start
            experience = self.assess(rollout)
            experience.metrics.sum("time/rollout", seconds)
            return experience
        return self._collect(prompts)

    def _collect(self, prompts: Prompts | None) -> Experience:
        """Samples until the responses that the filter keeps fill an iteration, or it has had its attempts."""
        settings, tally, kept, latest = self.algorithm, Tally(), [], None
        for _ in range(1 if settings.filter is None else settings.filter.attempts()):
            start = time.perf_counter()
            rollout = self._respond(self.next_prompts() if prompts is None else prompts)
            middle = time.perf_counter()
            latest, figures = self.judge(rollout)
            tally.merge(figures)
            tally.sum("time/rollout", middle - start)
            tally.sum("time/score", time.perf_counter() - middle)
            tally.ratio("throughput/rollout_tokens_per_s", float(rollout.mask.sum()), middle - start)
            if settings.filter is None:
                kept = [latest]
                break
            kept += self._worth_learning(latest, tally)
            if prompts is not None or sum(len(part.rollout) for part in kept) >= settings.learnt:
                break
        assert latest is not None, "a filter that makes no attempt"
        whole = joined(kept or [latest], pad_id=self.pad_id)
        if settings.filter is not None and len(whole.rollout) > settings.learnt:
            whole = whole.select(torch.arange(settings.learnt))
        start = time.perf_counter()
        experience = self._assess(whole, tally)
        if not kept:  # nothing is worth learning from: the last responses stand there, and teach the policy nothing
            nothing = torch.zeros_like(experience.batch.advantages)
            experience = dataclasses.replace(
                experience, batch=dataclasses.replace(experience.batch, advantages=nothing)
            )
        tally.sum("time/score", time.perf_counter() - start)
        for name, value in self.policy.sampling_figures().items():
            tally.sum(name, value)
        return experience

    def _worth_learning(self, judged: Judged, tally: Tally) -> list[Judged]:
        """The responses that the filter keeps; nothing where it keeps none."""
        assert self.algorithm.filter is not None
        rollout = judged.rollout
        chosen = self.algorithm.filter(per_response(judged.scores, rollout.mask), rollout.groups)
        tally.mean("rollout/kept_fraction", chosen)
        tally.sum("rollout/attempts", 1)
        return [judged.select(chosen.nonzero().squeeze(1))] if chosen.any() else []

    def assess(self, rollout: Rollout) -> Experience:
        """Scores, log-probabilities, values and advantages of a rollout."""
        start = time.perf_counter()
        judged, tally = self.judge(rollout)
        experience = self._assess(judged, tally)
        tally.sum("time/score", time.perf_counter() - start)
        return experience

    def _assess(self, judged: Judged, tally: Tally) -> Experience:
        """What an update reads, from what the responses are worth."""
        settings, rollout, scores = self.algorithm, judged.rollout, judged.scores
        old_logprobs, mask, collision = rollout.rollout_logprobs, rollout.mask, None
        if settings.rescore:
            more = ("collision",) if settings.advantage.needs_collision else ()
            answers = self.infer(self.policy, rollout, ("logprobs", "entropy", *more))
            old_logprobs, collision = answers["logprobs"], answers.get("collision")
            tally.mean("policy/entropy", answers["entropy"], mask)
            tally.mean("rollout/logprob_gap", (old_logprobs - rollout.rollout_logprobs).abs(), mask)
        ref_logprobs = None
        if self.reference is not None:
            ref_logprobs = self.infer(self.reference, rollout, ("logprobs",))["logprobs"]
        values, bootstrap = self.values(rollout)
        penalty = {"divergence": self._exact_kl(rollout)} if settings.exact_in_reward else {}
        rewards = settings.rewards(scores, old_logprobs, ref_logprobs, mask, kl_coef=self.kl_coef, **penalty)
        scored = Scored(
            rewards=rewards,
            scores=per_response(scores, mask),
            values=values,
            bootstrap=bootstrap,
            mask=mask,
            groups=rollout.groups,
            greedy=self._greedy_scores(rollout) if settings.advantage.needs_greedy else None,
            old_logprobs=old_logprobs,
            collision=collision,
        )
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
            scores=scored.scores,
        )
        describe(tally, rollout, scored, batch)
        return Experience(rollout, judged.raw, scored, batch, tally)

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
        return self.answers(engine, Selectable(rollout.sequences, rollout.mask), want, temperature=temperature)

    def answers(
        self, engine: Reference, batch: Selectable, want: tuple[str, ...], *, temperature: float | None = None
    ) -> dict[str, Tensor]:
        """As :meth:`infer`, for a batch."""
        parts = batch.split(self.algorithm.engine.rows_at_once)
        temperature = self.algorithm.sampling.temperature if temperature is None else temperature
        outputs = list(engine.evaluate(parts, temperature=temperature, want=want))
        return {name: widened([getattr(output, name) for output in outputs], batch.mask) for name in want}

    def values(self, rollout: Rollout) -> tuple[Tensor | None, Tensor | None]:
        """The critic's values [B, T], and its value [B] after the last token of the responses that were cut."""
        if self.algorithm.used_critic is None:
            return None, None
        found = self.infer(self.critic or self.policy, rollout, ("values", "scores"))
        return found["values"], found["scores"].masked_fill(rollout.ended, 0.0)

    def _exact_kl(self, rollout: Rollout) -> Tensor:
        """[B, T] KL of the policy's whole distribution from the reference's, some rows at a time."""
        assert self.reference is not None
        found = []
        for part in Selectable(rollout.sequences, rollout.mask).split(self.algorithm.engine.rows_at_once):
            policy = self.answers(self.policy, part, ("distribution",))["distribution"]
            reference = self.answers(self.reference, part, ("distribution",))["distribution"]
            found.append(exact(policy, reference, mask=part.mask))
        return widened(found, rollout.mask)


def widened(parts: list[Tensor], mask: Tensor) -> Tensor:
    """Micro-batches [b] to [B], or [b, t, …] of different widths to [B, T, …] with zeros where they were cut."""
    if parts[0].ndim == 1:
        return torch.cat(parts)
    whole, row = parts[0].new_zeros(*mask.shape, *parts[0].shape[2:]), 0
    for part in parts:
        whole[row : row + len(part), : part.shape[1]] = part
        row += len(part)
    return whole

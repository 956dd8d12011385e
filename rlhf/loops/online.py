"""The loop of algorithms that learn from their own samples: prompts → rollout → scores → update."""

from __future__ import annotations

import copy
import dataclasses
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rlhf.algorithms.functional import kl as kl_functions
from rlhf.algorithms.functional.statistics import explained_variance
from rlhf.algorithms.ppo import PPO
from rlhf.data.collate import collate_labelled, collate_prompts
from rlhf.data.stream import Stream
from rlhf.interfaces import LiveEngine
from rlhf.loops.context import StageContext
from rlhf.models.modules import PolicyModel
from rlhf.models.tokenizer import pad_id
from rlhf.types import Batch, Experience, Labelled, LossTerm, Outputs, Prompts, Rollout, Scored, Selectable, Tally


class OnlineTrainer:
    """Everything an on-policy stage holds: models, data positions, coefficients.

    Usable by hand, at the grain of a custom loop::

        experience = trainer.generate_experience()
        metrics = trainer.train_rlhf(experience)

    ``rlhf.loops.stage.fit_online`` is these in a row with evaluation, metrics and checkpoints.
    """

    def __init__(self, algorithm: PPO, context: StageContext) -> None:
        self.algorithm, self.context = algorithm, context
        self.iteration = 0
        self.steps = 0
        """Optimiser steps made, those of a critic that warms up alone included."""
        self.responses = 0
        """Responses sampled so far: the global rollout counter that keys the sampler's random numbers."""
        phase = algorithm.data.phase or algorithm.phase
        torch.manual_seed(context.seed_for("dropout"))
        built = algorithm.policy.build(lambda: algorithm.data.corpus(phase), seed=context.seed_for("weights"))
        self.tokenizer = built.tokenizer
        self.pad_id = pad_id(self.tokenizer)
        self.reference = self._build_reference(built.module)
        self._build_trained(built)
        self.scorer = algorithm.reward.build(algorithm.engine, self.tokenizer)
        self.normalization = None if algorithm.score_normalization is None else algorithm.score_normalization.build()
        self.controller = None if algorithm.kl is None else algorithm.kl.controller.build()
        self.average = None if algorithm.averaging is None else algorithm.averaging.build(self.policy.master())
        self.data = algorithm.data.prepare(self.tokenizer, form="prompt", phase=phase)
        self.stream = Stream(self.data.train, algorithm.data.blender, seed=context.seed_for("order"))
        self.mixture = self._build_mixture()
        end = algorithm.data.template.end_id(self.tokenizer)
        self.stop_ids = algorithm.sampling.stop_ids(self.tokenizer, end)

    # ------------------------------------------------------------------------------------------------------- models

    @property
    def total_steps(self) -> int:
        """Optimiser steps of the whole stage, where no iteration stops early."""
        settings = self.algorithm
        return settings.iterations * settings.epochs * (settings.batch_size // settings.mini_batch_size)

    def _build_reference(self, policy: Any) -> LiveEngine | None:
        settings = self.algorithm
        if settings.kl is None:
            return None
        if settings.reference is None:
            module = copy.deepcopy(policy)
        else:
            built = settings.reference.build(lambda: (), seed=self.context.seed_for("reference"))
            if built.tokenizer.get_vocab() != self.tokenizer.get_vocab():
                raise ValueError("reference: its vocabulary differs from the policy's; the KL would compare other tokens")
            module = built.module
        return settings.engine.build(PolicyModel(module))

    def _build_trained(self, built: Any) -> None:
        settings, critic = self.algorithm, self.algorithm.used_critic
        value_model = None if critic is None else critic.build(built, seed=self.context.seed_for("critic"))
        shared = critic is not None and critic.shared
        self.policy = settings.engine.build(
            PolicyModel(built.module, value_model if shared else None),
            optimizer=settings.optimizer,
            schedule=settings.schedule,
            total_steps=self.total_steps,
            max_grad_norm=settings.max_grad_norm,
        )
        self.critic: LiveEngine | None = None
        if critic is not None and not critic.shared and value_model is not None:
            self.critic = settings.engine.build(
                value_model,
                optimizer=critic.optimizer,
                schedule=critic.schedule,
                total_steps=self.total_steps,
                max_grad_norm=critic.max_grad_norm,
            )

    def _build_mixture(self) -> Stream | None:
        mixture = self.algorithm.mixture
        if mixture is None:
            return None
        texts = mixture.data.prepare(self.tokenizer, form="text", phase=mixture.data.phase or self.algorithm.phase)
        return Stream(texts.train, mixture.data.blender, seed=self.context.seed_for("mixture"))

    # --------------------------------------------------------------------------------------------------- experience

    def next_prompts(self) -> Prompts:
        """The next iteration's prompts, one per group."""
        return collate_prompts(self.stream.next(self.algorithm.batch_size // self.algorithm.samples_per_prompt))

    def sample(self, prompts: Prompts, *, seed: int, first_counter: int) -> Rollout:
        """One response to each prompt, keyed by ``seed`` and consecutive counters."""
        counters = range(first_counter, first_counter + len(prompts))
        sampling = self.algorithm.sampling
        return self.policy.generate(
            prompts, sampling, self.tokenizer, seed=seed, counters=counters, stop_ids=self.stop_ids
        )

    def score(self, rollout: Rollout) -> tuple[Tensor, Tally]:
        """Scores [B] or [B, T] as the update sees them, before clipping, and the raw figures."""
        raw = self.scorer(rollout)
        tally = Tally()
        per_response = raw.total if raw.total.ndim == 1 else raw.total.masked_fill(~rollout.mask, 0.0).sum(1)
        tally.mean("reward/score", per_response)
        for name, values in raw.parts.items():
            tally.mean(f"reward/{name}", values)
        scores = raw.total if self.normalization is None else self.normalization(raw.total)
        if self.algorithm.missing_end_penalty:
            cut = (~rollout.ended).to(scores.dtype) * self.algorithm.missing_end_penalty
            if scores.ndim == 1:
                scores = scores - cut
            else:
                rows = torch.arange(len(rollout))
                last = rollout.sequences.last_index() - rollout.sequences.prompt_width
                scores = scores.index_put((rows, last), scores[rows, last] - cut)
        return scores, tally

    def logprobs(self, engine: LiveEngine, rollout: Rollout, *, entropy: bool = False) -> tuple[Tensor, Tensor | None]:
        """Log-probabilities [B, T] of the sampled tokens, and entropies where asked for; no gradient, no dropout."""
        want = ("logprobs", "entropy") if entropy else ("logprobs",)
        outputs = self._evaluate(engine, rollout, want)
        return _columns(outputs, "logprobs", rollout), _columns(outputs, "entropy", rollout) if entropy else None

    def _evaluate(self, engine: LiveEngine, rollout: Rollout, want: tuple[str, ...]) -> list[Outputs]:
        batches = Selectable(rollout.sequences, rollout.mask).split(self.algorithm.engine.rows_at_once)
        return list(engine.evaluate(batches, temperature=self.algorithm.sampling.temperature, want=want))

    def generate_experience(self, prompts: Prompts | None = None) -> Experience:
        """Samples responses, scores them and computes advantages; the weights do not move.

        Args:
            prompts: One per group; each is answered ``samples_per_prompt`` times. None takes the next of the data.
        """
        settings, start = self.algorithm, time.perf_counter()
        prompts = self.next_prompts() if prompts is None else prompts
        group, count = settings.samples_per_prompt, len(prompts)
        rollout = self.sample(
            prompts.repeat(group), seed=self.context.seed_for("rollouts"), first_counter=self.responses
        )
        rollout = dataclasses.replace(rollout, groups=torch.arange(count).repeat_interleave(group))
        self.responses += len(rollout)
        sampled = time.perf_counter()
        scores, tally = self.score(rollout)
        if settings.rescore:
            old_logprobs, entropy = self.logprobs(self.policy, rollout, entropy=True)
            assert entropy is not None
            tally.mean("policy/entropy", entropy, rollout.mask)
            tally.mean("rollout/logprob_gap", (old_logprobs - rollout.rollout_logprobs).abs(), rollout.mask)
        else:
            old_logprobs = rollout.rollout_logprobs
        ref_logprobs = None if self.reference is None else self.logprobs(self.reference, rollout)[0]
        values, bootstrap = self.values(rollout)
        coefficient = 0.0 if self.controller is None else self.controller.coef
        rewards = settings.rewards(scores, old_logprobs, ref_logprobs, rollout.mask, kl_coef=coefficient)
        per_response = scores if scores.ndim == 1 else scores.masked_fill(~rollout.mask, 0.0).sum(1)
        scored = Scored(rewards, per_response, values, bootstrap, rollout.mask, rollout.groups)
        advantages, returns = settings.advantages(scored)
        batch = Batch(
            rollout.sequences,
            rollout.mask,
            rollout.rollout_logprobs,
            old_logprobs,
            ref_logprobs,
            advantages,
            returns,
            values,
        )
        _describe(tally, rollout, scored, batch)
        done = time.perf_counter()
        tally.sum("time/rollout", sampled - start)
        tally.sum("time/score", done - sampled)
        tally.sum("throughput/rollout_tokens_per_s", float(rollout.mask.sum()) / (sampled - start))
        return Experience(rollout, scored, batch, tally)

    def values(self, rollout: Rollout) -> tuple[Tensor | None, Tensor | None]:
        """The critic's values [B, T], and its value [B] after the last token of the responses that were cut."""
        critic = self.algorithm.used_critic
        if critic is None:
            return None, None
        outputs = self._evaluate(self.critic or self.policy, rollout, ("values", "scores"))
        after_end = torch.cat([output.scores for output in outputs if output.scores is not None])
        return _columns(outputs, "values", rollout), after_end.masked_fill(rollout.ended, 0.0)

    # ------------------------------------------------------------------------------------------------------- update

    def train_rlhf(self, experience: Experience, on_step: Callable[[dict[str, float]], None] | None = None) -> dict[str, float]:
        """Several epochs of mini-batch updates on one iteration's experience.

        Args:
            experience: From :meth:`generate_experience`.
            on_step: Told the figures of each optimiser step.

        Returns:
            The iteration's figures: those of the experience and the means over its optimiser steps.
        """
        settings, start, batch = self.algorithm, time.perf_counter(), experience.batch
        steps: list[dict[str, float]] = []
        for epoch in range(settings.epochs):
            order = self._order(len(batch), epoch)
            for rows in order.split(settings.mini_batch_size):
                steps.append(self._optimiser_step(batch.select(rows)))
                if on_step is not None:
                    on_step(steps[-1])
                if settings.target_kl is not None and steps[-1].get("policy/approx_kl", 0.0) > settings.target_kl:
                    break
            else:
                continue
            break
        seconds = time.perf_counter() - start
        tally = Tally()
        tally.merge(experience.metrics)
        if self.controller is not None:
            tally.sum("kl/coef", self.controller.coef)
            total, count = experience.metrics.means["kl/sequence"]
            self.controller.update(total / count, len(batch))
        self.iteration += 1
        tally.sum("time/train", seconds)
        tally.sum("throughput/train_tokens_per_s", settings.epochs * float(batch.mask.sum()) / seconds)
        tally.sum("update/steps", len(steps))
        return {"step": self.steps, "iteration": self.iteration, **tally.compute(), **_mean_of(steps)}

    def _order(self, count: int, epoch: int) -> Tensor:
        generator = torch.Generator().manual_seed(self.context.seed_for(f"minibatches/{self.iteration}/{epoch}"))
        return torch.randperm(count, generator=generator)

    @property
    def warming_up(self) -> bool:
        """Whether only the critic learns in this iteration."""
        critic = self.algorithm.used_critic
        return critic is not None and self.iteration < critic.warmup_iterations

    def _optimiser_step(self, batch: Batch) -> dict[str, float]:
        settings, engine = self.algorithm, self.algorithm.engine
        temperature = settings.sampling.temperature
        denominators = {name: engine.total(count) for name, count in settings.denominators(batch).items()}
        tally, figures = Tally(), {}
        if self.critic is not None:
            tally.merge(
                self.critic.accumulate(
                    batch.split(engine.rows_at_once), settings.value_loss, denominators, want=("values",)
                )
            )
            step = self.critic.step()
            figures |= {"grad_norm/value": step["grad_norm"], "lr/value": step["lr"]}
        if not (self.critic is not None and self.warming_up):
            tally.merge(
                self.policy.accumulate(
                    batch.split(engine.rows_at_once),
                    self._policy_loss,
                    denominators,
                    want=settings.want,
                    temperature=temperature,
                )
            )
            if self.mixture is not None and not self.warming_up:
                figures |= self._accumulate_mixture(tally)
            step = self.policy.step()
            figures |= {"grad_norm/policy": step["grad_norm"], "lr/policy": step["lr"]}
            if self.average is not None:
                self.average.update(self.policy.master())
        self.steps += 1
        return {"step": self.steps, "iteration": self.iteration + 1, **engine.reduce(tally).compute(), **figures}

    def _policy_loss(self, outputs: Outputs, batch: Batch) -> tuple[list[LossTerm], Tally]:
        coefficient = 0.0 if self.controller is None else self.controller.coef
        terms, tally = self.algorithm.loss(outputs, batch, kl_coef=coefficient)
        if self.warming_up:  # a shared critic: its head learns, the policy waits
            terms = [term for term in terms if term.name == "value"]
        return terms, tally

    def _accumulate_mixture(self, tally: Tally) -> dict[str, float]:
        mixture, engine = self.algorithm.mixture, self.algorithm.engine
        assert mixture is not None and self.mixture is not None
        rows = self.mixture.next(mixture.batch_size or self.algorithm.mini_batch_size)
        texts = collate_labelled(rows, pad_id=self.pad_id)
        count = engine.total(float(texts.mask.sum()))
        compare = mixture.gradient_every > 0 and self.policy.steps % mixture.gradient_every == 0
        before = self.policy.gradient() if compare else []

        def loss(outputs: Outputs, batch: Labelled) -> tuple[list[LossTerm], Tally]:
            return [mixture.term(outputs, batch)], Tally()

        tally.merge(
            self.policy.accumulate(
                texts.split(engine.rows_at_once), loss, {"mixture": count}, want=("logprobs",)
            )
        )
        return _compare_gradients(self.policy, before) if compare else {}

    # -------------------------------------------------------------------------------------------------------- state

    def state_dict(self) -> dict[str, Any]:
        """All that continues the stage exactly, but for the global random state."""
        parts = {
            "policy": self.policy,
            "critic": self.critic,
            "reference": self.reference,
            "stream": self.stream,
            "mixture": self.mixture,
            "controller": self.controller,
            "average": self.average,
            "normalization": self.normalization,
        }
        states = {name: part.state_dict() for name, part in parts.items() if part is not None}
        counts = {"iteration": self.iteration, "steps": self.steps, "responses": self.responses}
        return {**counts, **states}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from :meth:`state_dict`."""
        self.iteration, self.steps, self.responses = state["iteration"], state["steps"], state["responses"]
        for name in ("policy", "critic", "reference", "stream", "mixture", "controller", "average", "normalization"):
            part = getattr(self, name)
            if part is not None:
                part.load_state_dict(state[name])


def _columns(outputs: list[Outputs], name: str, rollout: Rollout) -> Tensor:
    """Joins micro-batches [b, t] of different widths to [B, T], zero where they were cut."""
    joined = torch.zeros(rollout.mask.shape)
    row = 0
    for output in outputs:
        values = getattr(output, name)
        joined[row : row + len(values), : values.shape[1]] = values
        row += len(values)
    return joined


def _mean_of(steps: list[dict[str, float]]) -> dict[str, float]:
    """Mean over optimiser steps; the largest for ``…_max``."""
    names = Counter(name for step in steps for name in step)
    means = {}
    for name in names:
        if name in ("step", "iteration"):
            continue
        values = [step[name] for step in steps if name in step]
        means[name] = max(values) if name.endswith("_max") else sum(values) / len(values)
    return means


def _compare_gradients(engine: LiveEngine, before: list[Tensor]) -> dict[str, float]:
    """Norms of the policy's and the mixture's gradient and their cosine."""
    added = [after - earlier for after, earlier in zip(engine.gradient(), before, strict=True)]
    policy, mixture = engine.inner(before, before) ** 0.5, engine.inner(added, added) ** 0.5
    cosine = engine.inner(before, added) / (policy * mixture) if policy * mixture > 0 else float("nan")
    return {"gradient/policy_norm": policy, "gradient/mixture_norm": mixture, "gradient/cosine": cosine}


def _describe(tally: Tally, rollout: Rollout, scored: Scored, batch: Batch) -> None:
    """Figures of an iteration's rollouts."""
    mask = rollout.mask
    tally.mean("reward/total", scored.rewards.masked_fill(~mask, 0.0).sum(1))
    tally.mean("rollout/length", mask.sum(1))
    tally.mean("rollout/truncated_fraction", ~rollout.ended)
    tally.mean("advantage/mean", batch.advantages, mask)
    spread = batch.advantages[mask].double()
    tally.sum("advantage/std", float(spread.std(unbiased=False)) if len(spread) else 0.0)
    if batch.ref_logprobs is not None:
        k1 = kl_functions.k1(batch.old_logprobs, batch.ref_logprobs, mask=mask)
        tally.mean("kl/ref_k1", k1, mask)
        tally.mean("kl/ref_k3", kl_functions.k3(batch.old_logprobs, batch.ref_logprobs, mask=mask), mask)
        tally.mean("kl/sequence", k1.sum(1))
    if batch.values is not None and batch.returns is not None:
        tally.sum("value/explained_variance", float(explained_variance(batch.values, batch.returns, mask)))

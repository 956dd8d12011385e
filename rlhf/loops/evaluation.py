"""Sampling from fixed held-out prompts: the policy and its average beside it, by the reward and by other judges."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from rlhf.algorithms.evaluation import named
from rlhf.algorithms.functional import kl as kl_functions
from rlhf.algorithms.functional.evaluation import distinct_n
from rlhf.algorithms.functional.rewards import per_response
from rlhf.data.collate import collate_labelled, collate_prompts
from rlhf.engines.checkpoint import restore_rng, rng_state
from rlhf.errors import UserError, telling
from rlhf.interfaces import RewardModel, Scorer
from rlhf.loops.held_out import HeldOut, Responses
from rlhf.loops.rollout_files import rollout_rows, write_rows
from rlhf.loops.sources import mean_by_source
from rlhf.types import Rollout, Tally

if TYPE_CHECKING:
    from rlhf.loops.online import OnlineTrainer


class Evaluator:
    """Evaluates an on-policy trainer on fixed prompts with fixed random numbers, so that evaluations are paired."""

    def __init__(self, trainer: OnlineTrainer) -> None:
        self.trainer = trainer
        settings = trainer.algorithm.evaluation
        self.settings = settings
        examples = trainer.data.heldout
        if settings.every and not len(examples):
            raise UserError(
                f"evaluation.every: {settings.every}, but data holds out no prompt; raise data.eval_rows or "
                "data.eval_fraction, whichever is set, or set evaluation.every to 0"
            )
        texts = () if trainer.mixture_data is None or not settings.every else trainer.mixture_data.heldout
        held = list(itertools.islice(texts, settings.prompts))
        self.texts = collate_labelled(held, pad_id=trainer.pad_id) if held else None
        """Held-out texts of the mixture, as many as there are prompts."""
        count = min(settings.prompts, len(examples)) if settings.every else 0
        rows = list(itertools.islice(examples, count))
        self.prompts = collate_prompts(rows) if rows else None
        self.setup = None if self.prompts is None else HeldOut(trainer, self.prompts)
        self.judges = {name: self._judge(reward) for name, reward in settings.rewards.items()}
        self.metrics = {}
        if self.setup is not None and settings.metrics:
            state = rng_state()  # a model that is built may draw, and the training goes on as without it
            for name, metric in settings.metrics.items():
                with telling(f"evaluation.metrics.{name}"):
                    self.metrics[name] = metric.build(self.setup)
            restore_rng(state)

    def _judge(self, reward: RewardModel) -> Scorer:
        trainer = self.trainer
        if self.setup is None:
            return reward.build(trainer.algorithm.engine, trainer.tokenizer)
        return self.setup.judge(reward)

    def due(self) -> bool:
        """Whether this iteration is one to evaluate at."""
        every, done = self.settings.every, self.trainer.iteration
        return every > 0 and (done % every == 0 or done == self.trainer.algorithm.iterations)

    def __call__(self, samples_to: Path | None = None) -> dict[str, float]:
        """Figures ``eval/…`` of the policy and ``eval/ema/…`` of its average; writes the samples where asked."""
        trainer = self.trainer
        figures, rows = self._evaluate()
        metrics = {f"eval/{name}": value for name, value in figures.items()}
        if samples_to is not None:
            write_rows(samples_to, rows)
        if trainer.average is not None and trainer.iteration:
            with trainer.policy.substituted(trainer.average.shards):
                figures, rows = self._evaluate()
            metrics |= {f"eval/ema/{name}": value for name, value in figures.items()}
            if samples_to is not None:
                write_rows(samples_to.with_name(f"{samples_to.stem}_ema.jsonl"), rows)
        return {"step": trainer.steps, "iteration": trainer.iteration, **metrics}

    def _evaluate(self) -> tuple[dict[str, float], list[dict[str, Any]]]:
        """Figures of the policy as it is, and its samples with their scores."""
        trainer = self.trainer
        assert self.setup is not None
        responses = Responses(self.setup)
        (rollout,) = responses.samples()
        scores = {"score": trainer.scorer(rollout)}
        scores |= {f"{name}_score": judge(rollout) for name, judge in self.judges.items()}
        tally, rows = Tally(), rollout_rows(rollout)
        figures = {}
        totals: dict[str, Tensor] = {}
        for name, found in scores.items():
            total = totals[name] = per_response(found.total, rollout.mask)
            if len(trainer.data.heldout.sizes) > 1:
                mean_by_source(tally, name, total, rollout.prompts.source)
            figures[f"{name}_std"] = float(total.double().std()) if len(total) > 1 else 0.0
            for key, values in {name: total, **{f"{name}/{part}": v for part, v in found.parts.items()}}.items():
                tally.mean(key, values)
                for row, value in zip(rows, values.tolist(), strict=True):
                    row[key] = value
        self._of_models(tally, rollout)
        tally.mean("length", rollout.mask.sum(1))
        tally.mean("truncated_fraction", ~rollout.ended)
        figures["distinct_2"] = float(distinct_n(rollout.sequences.response_ids, rollout.mask, n=2))
        return {**tally.compute(), **figures, **self._measure(responses, totals)}, rows

    def _of_models(self, tally: Tally, rollout: Rollout) -> None:
        """What the policy and the reference say of the responses, and the policy of the mixture's texts."""
        trainer = self.trainer
        if trainer.reference is not None:
            temperature = (self.settings.sampling or trainer.algorithm.sampling).temperature
            policy, reference = (
                trainer.infer(engine, rollout, ("logprobs",), temperature=temperature)["logprobs"]
                for engine in (trainer.policy, trainer.reference)
            )
            tally.mean("kl", kl_functions.k1(policy, reference, mask=rollout.mask).sum(1))
        if self.texts is not None:
            batches = list(self.texts.split(trainer.algorithm.engine.rows_at_once))
            outputs = trainer.policy.evaluate(batches, want=("logprobs",))
            for batch, output in zip(batches, outputs, strict=True):
                assert output.logprobs is not None
                tally.mean("mixture_loss", -output.logprobs, batch.mask)

    def _measure(self, responses: Responses, totals: Mapping[str, Tensor]) -> dict[str, float]:
        """Figures of the metrics, which need not score again what has been scored."""
        scorers = {"score": self.trainer.scorer, **{f"{name}_score": judge for name, judge in self.judges.items()}}
        for name, total in totals.items():
            responses.note(scorers[name], total)
        found: dict[str, float] = {}
        state = rng_state() if self.metrics else {}
        for name, metric in self.metrics.items():
            with telling(f"evaluation.metrics.{name}"):
                found |= named(name, metric(responses))
        if state:
            restore_rng(state)
        return found

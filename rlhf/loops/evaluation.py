"""Sampling from fixed held-out prompts: the policy and its average beside it, by the reward and by other judges."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf.algorithms.functional import kl as kl_functions
from rlhf.algorithms.functional.rewards import per_response
from rlhf.data.collate import collate_labelled, collate_prompts
from rlhf.errors import UserError
from rlhf.loops.rollout_files import rollout_rows, write_rows
from rlhf.loops.sources import mean_by_source
from rlhf.types import Rollout, Tally

if TYPE_CHECKING:
    from rlhf.loops.online import OnlineTrainer


def distinct(responses: Sequence[Sequence[int]], n: int) -> float:
    """Different n-grams over all n-grams of the responses' token ids; 0 where there are none.

    Source: arXiv:1510.03055, section 5.
    """
    grams = [tuple(ids[start : start + n]) for ids in responses for start in range(len(ids) - n + 1)]
    return len(set(grams)) / len(grams) if grams else 0.0


def response_ids(rollout: Rollout) -> list[list[int]]:
    """The sampled ids of each response, end token included."""
    ids = rollout.sequences.response_ids
    return [row[mask].tolist() for row, mask in zip(ids, rollout.mask, strict=True)]


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
        engine, tokenizer = trainer.algorithm.engine, trainer.tokenizer
        self.judges = {name: judge.build(engine, tokenizer) for name, judge in settings.rewards.items()}

    def due(self) -> bool:
        """Whether this iteration is one to evaluate at."""
        every, done = self.settings.every, self.trainer.iteration
        return every > 0 and (done % every == 0 or done == self.trainer.algorithm.iterations)

    def __call__(self, samples_to: Path | None = None) -> dict[str, float]:
        """Figures ``eval/…`` of the policy and ``eval/ema/…`` of its average; writes the samples where asked."""
        trainer = self.trainer
        figures, rows = self._judge()
        metrics = {f"eval/{name}": value for name, value in figures.items()}
        if samples_to is not None:
            write_rows(samples_to, rows)
        if trainer.average is not None and trainer.iteration:
            with trainer.policy.substituted(trainer.average.shards):
                figures, rows = self._judge()
            metrics |= {f"eval/ema/{name}": value for name, value in figures.items()}
            if samples_to is not None:
                write_rows(samples_to.with_name(f"{samples_to.stem}_ema.jsonl"), rows)
        return {"step": trainer.steps, "iteration": trainer.iteration, **metrics}

    def _judge(self) -> tuple[dict[str, float], list[dict[str, Any]]]:
        trainer = self.trainer
        assert self.prompts is not None
        sampling = self.settings.sampling or trainer.algorithm.sampling
        rollout = trainer.sample(self.prompts, seed=trainer.context.seed_for("evaluation"), sampling=sampling)
        scores = {"score": trainer.scorer(rollout)}
        scores |= {f"{name}_score": judge(rollout) for name, judge in self.judges.items()}
        tally, rows = Tally(), rollout_rows(rollout)
        figures = {}
        for name, found in scores.items():
            total = per_response(found.total, rollout.mask)
            if len(trainer.data.heldout.sizes) > 1:
                mean_by_source(tally, name, total, rollout.prompts.source)
            figures[f"{name}_std"] = float(total.double().std()) if len(total) > 1 else 0.0
            for key, values in {name: total, **{f"{name}/{part}": v for part, v in found.parts.items()}}.items():
                tally.mean(key, values)
                for row, value in zip(rows, values.tolist(), strict=True):
                    row[key] = value
        if trainer.reference is not None:
            policy, reference = (
                trainer.infer(engine, rollout, ("logprobs",), temperature=sampling.temperature)["logprobs"]
                for engine in (trainer.policy, trainer.reference)
            )
            tally.mean("kl", kl_functions.k1(policy, reference, mask=rollout.mask).sum(1))
        if self.texts is not None:
            batches = list(self.texts.split(trainer.algorithm.engine.rows_at_once))
            outputs = trainer.policy.evaluate(batches, want=("logprobs",))
            for batch, output in zip(batches, outputs, strict=True):
                assert output.logprobs is not None
                tally.mean("mixture_loss", -output.logprobs, batch.mask)
        tally.mean("length", rollout.mask.sum(1))
        tally.mean("truncated_fraction", ~rollout.ended)
        figures["distinct_2"] = distinct(response_ids(rollout), 2)
        return {**tally.compute(), **figures}, rows

"""Runs an on-policy stage from start, or from its newest checkpoint, to the saved model."""

from __future__ import annotations

import resource
import time
from typing import Any

import torch

from rlhf.algorithms.ppo import PPO
from rlhf.data.collate import collate_prompts
from rlhf.engines.checkpoint import Checkpoints, restore_rng, rng_state
from rlhf.loops.context import StageContext
from rlhf.loops.evaluation import Evaluator
from rlhf.loops.online import OnlineTrainer
from rlhf.loops.rollout_files import experience_rows, write_rows
from rlhf.metrics import MetricsFile
from rlhf.models.storage import save_language_model
from rlhf.progress import StageProgress, brief
from rlhf.types import Experience

SHOWN = ("reward/score", "kl/sequence", "policy/entropy", "rollout/length", "eval/score", "eval/gold_score")


class OnlineStage:
    """An on-policy stage: trainer, evaluator, metrics, rollout files and checkpoints."""

    def __init__(self, algorithm: PPO, context: StageContext) -> None:
        self.algorithm, self.context = algorithm, context
        self.trainer = OnlineTrainer(algorithm, context)
        self.evaluator = Evaluator(self.trainer)
        self.checkpoints = Checkpoints(context.directory / "checkpoints")
        self.rollouts = context.directory / "rollouts"

    def fit(self) -> dict[str, float]:
        """All iterations, then the export. Returns the last figures."""
        trainer, name = self.trainer, self.context.name
        state = self.checkpoints.load()
        metrics = MetricsFile(self.context.directory, self.context.sinks)
        if state is not None:
            trainer.load_state_dict(state["trainer"])
            restore_rng(state["rng"])
        metrics.rewind(0 if state is None else state["metrics"])
        last: dict[str, float] = {}
        with StageProgress(name, self.algorithm.iterations, console=self.context.console) as progress:
            for line in trainer.data.describe():
                progress.say(f"{name}: {line}")
            if trainer.algorithm.critic is not None and trainer.algorithm.used_critic is None:
                estimator = type(trainer.algorithm.advantage).__name__
                progress.say(f"{name}: {estimator} reads no values, so the critic is not built")
            if state is not None:
                progress.say(f"{name}: continues from iteration {trainer.iteration}")
            else:
                self._measure_scores()
                last |= self._evaluate(metrics)
            while trainer.iteration < self.algorithm.iterations:
                last |= self._iterate(metrics)
                last |= self._evaluate(metrics)
                progress.update(trainer.iteration, brief(last, SHOWN))
                every = self.algorithm.save_every
                if every and trainer.iteration % every == 0 and trainer.iteration < self.algorithm.iterations:
                    self._save_checkpoint(metrics)
            self.save()
        metrics.close()
        return last

    def _measure_scores(self) -> None:
        """Mean and deviation of the starting policy's scores, where the settings ask for them."""
        trainer, settings = self.trainer, self.algorithm.score_normalization
        if settings is None or trainer.normalization is None:
            return
        examples = list(trainer.data.train)
        rows = [examples[row % len(examples)] for row in range(settings.samples)]
        seed = self.context.seed_for("normalization")
        rollout = trainer.sample(collate_prompts(rows), seed=seed, first_counter=0)
        scores = trainer.scorer(rollout).total
        trainer.normalization.set(scores if scores.ndim == 1 else scores.masked_fill(~rollout.mask, 0.0).sum(1))

    def _iterate(self, metrics: MetricsFile) -> dict[str, float]:
        trainer = self.trainer
        start = time.perf_counter()
        experience = trainer.generate_experience()
        steps: list[dict[str, float]] = []
        figures = trainer.train_rlhf(experience, steps.append)
        seconds = time.perf_counter() - start
        figures["throughput/samples_per_s"] = len(experience.batch) / seconds
        figures["memory/peak_gb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        figures["data/rows_dropped"] = trainer.data.rows_dropped
        for step in steps[:-1]:
            metrics.write(step)
        metrics.write({**figures, **steps[-1]})
        self._write_rollouts(experience)
        return figures

    def _evaluate(self, metrics: MetricsFile) -> dict[str, float]:
        if not self.evaluator.due():
            return {}
        figures = self.evaluator(self.rollouts / f"evaluation_{self.trainer.iteration:06d}.jsonl")
        metrics.write(figures)
        return figures

    def _write_rollouts(self, experience: Experience) -> None:
        if count := self.algorithm.save_rollouts:
            path = self.rollouts / f"iteration_{self.trainer.iteration:06d}.jsonl"
            write_rows(path, experience_rows(experience, count))

    def _save_checkpoint(self, metrics: MetricsFile) -> None:
        state: dict[str, Any] = {
            "trainer": self.trainer.state_dict(),
            "rng": rng_state(),
            "metrics": metrics.position(),
        }
        self.checkpoints.save(self.trainer.steps, state)

    def save(self) -> None:
        """Writes ``model/``, and ``ema/`` where the weights are averaged."""
        trainer, directory = self.trainer, self.context.directory
        with torch.no_grad():
            save_language_model(directory / "model", trainer.policy.model, trainer.tokenizer, trainer.policy.full_state())
            if trainer.average is not None:
                with trainer.policy.substituted(trainer.average.shards):
                    state = trainer.policy.full_state()
                    save_language_model(directory / "ema", trainer.policy.model, trainer.tokenizer, state)

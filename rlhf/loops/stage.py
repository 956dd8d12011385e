"""Runs an on-policy stage from start, or from its newest checkpoint, to the saved model."""

from __future__ import annotations

import time
from contextlib import closing
from typing import Any, cast

from rlhf.algorithms.ppo import PPO
from rlhf.engines.checkpoint import Checkpoints, restore_rng, rng_state
from rlhf.loops.context import StageContext
from rlhf.loops.evaluation import Evaluator
from rlhf.loops.online import OnlineTrainer
from rlhf.loops.rollout_files import experience_rows, write_rows
from rlhf.metrics import MetricsFile, peak_memory_gb
from rlhf.models.modules import PolicyModel
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
        self.saving = 0.0  # seconds spent on the latest checkpoint, told with the next line

    def fit(self) -> dict[str, float]:
        """All iterations, then the export. Returns the last figures."""
        trainer = self.trainer
        state = self.checkpoints.load()
        if state is not None:
            trainer.load_state_dict(state["trainer"])
            restore_rng(state["rng"])
        last: dict[str, float] = {}
        with (
            closing(MetricsFile(self.context.directory, self.context.sinks)) as metrics,
            StageProgress(self.context.name, self.algorithm.iterations, console=self.context.console) as progress,
        ):
            metrics.rewind(0 if state is None else state["metrics"])
            self._announce(progress)
            if state is None:
                last |= self._evaluate(metrics)
            while trainer.iteration < self.algorithm.iterations:
                last |= self._iterate(metrics)
                last |= self._evaluate(metrics)
                progress.update(trainer.iteration, brief(last, SHOWN))
                every = self.algorithm.save_every
                if every and trainer.iteration % every == 0 and trainer.iteration < self.algorithm.iterations:
                    self._save_checkpoint(metrics)
            self.save()
        return last

    def _announce(self, progress: StageProgress) -> None:
        name, settings = self.context.name, self.algorithm
        for line in [*self.trainer.data.describe(), self.trainer.data.origin]:
            progress.say(f"{name}: {line}")
        if settings.critic is not None and settings.used_critic is None:
            progress.say(f"{name}: {type(settings.advantage).__name__} reads no values, so the critic is not built")
        if self.trainer.iteration:
            progress.say(f"{name}: continues from iteration {self.trainer.iteration}")

    def _iterate(self, metrics: MetricsFile) -> dict[str, float]:
        trainer = self.trainer
        start = time.perf_counter()
        experience = trainer.generate_experience()
        steps: list[dict[str, float]] = []
        figures = trainer.train_rlhf(experience, steps.append)
        seconds = time.perf_counter() - start
        figures["throughput/samples_per_s"] = len(experience.batch) / seconds
        figures["memory/peak_gb"] = peak_memory_gb()
        figures["time/save"] = self.saving
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
        start = time.perf_counter()
        self.checkpoints.save(self.trainer.steps, state)
        self.saving = time.perf_counter() - start

    def save(self) -> None:
        """Writes ``model/``, and ``ema/`` where the weights are averaged."""
        trainer, directory = self.trainer, self.context.directory
        model = cast(PolicyModel, trainer.policy.model)
        save_language_model(directory / "model", model, trainer.tokenizer, trainer.policy.full_state())
        if trainer.average is not None:
            with trainer.policy.substituted(trainer.average.shards):
                save_language_model(directory / "ema", model, trainer.tokenizer, trainer.policy.full_state())

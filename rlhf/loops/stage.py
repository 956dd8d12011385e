"""Runs an on-policy stage from start, or from its newest checkpoint, to the saved model."""

from __future__ import annotations

import time
from contextlib import closing
from typing import Any, cast

from rlhf.algorithms.ppo import PPO
from rlhf.data.stored_rollouts import NORMALIZATION, exact_rows, iteration_file
from rlhf.engines.checkpoint import Checkpoints, restore_rng, rng_state
from rlhf.loops.context import StageContext
from rlhf.loops.data_file import write_summary
from rlhf.loops.evaluation import Evaluator
from rlhf.loops.nan_dump import nan_dumped
from rlhf.loops.online import OnlineTrainer
from rlhf.loops.rollout_files import experience_rows, write_rows
from rlhf.metrics import MetricsFile, peak_memory_gb
from rlhf.models.modules import PolicyModel
from rlhf.models.storage import save_language_model, save_usage
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
            nan_dumped(self.context.directory, self.algorithm),
            self._progress() as progress,
        ):
            metrics.rewind(0 if state is None else state["metrics"])
            write_summary(self.context.directory, trainer.data, mixture=trainer.mixture_data)
            self._announce(progress)
            if state is None:
                last |= self._evaluate(metrics)
            while trainer.iteration < self.algorithm.iterations:
                last |= self._iterate(metrics)
                last |= self._evaluate(metrics)
                progress.update(trainer.iteration, brief(last, SHOWN), line=True)
                if trainer.iteration < self.algorithm.iterations:
                    self._save_if_due(metrics)
            self.save()
        return last

    def _progress(self) -> StageProgress:
        name, console = self.context.name, self.context.console
        return StageProgress(name, self.algorithm.iterations, done=self.trainer.iteration, console=console)

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
        count, trainer = self.algorithm.save_rollouts, self.trainer
        if count == 0:
            return
        rows = experience_rows(experience, len(experience.batch) if count == "all" else count, trainer.tokenizer)
        if count == "all":
            rows = [{**row, **exact} for row, exact in zip(rows, exact_rows(experience.rollout), strict=True)]
            if trainer.measured is not None:
                write_rows(self.rollouts / NORMALIZATION, exact_rows(trainer.measured))
                trainer.measured = None
        write_rows(iteration_file(self.rollouts, trainer.iteration), rows)

    def _save_if_due(self, metrics: MetricsFile) -> None:
        """A checkpoint where the settings ask for one, or somebody asks to stop; then the stage ends here."""
        iteration, every, stop = self.trainer.iteration, self.algorithm.save_every, self.context.stop
        stopping = stop.signal is not None
        if stopping or (every and iteration % every == 0):
            self._save_checkpoint(metrics)
        if stopping:
            raise stop.stopped(f"iteration {iteration} of {self.algorithm.iterations} is saved")

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
        for output in self.algorithm.outputs():
            save_usage(directory / output, self.algorithm.data.template, self.algorithm.sampling)

"""Runs an on-policy stage from start, or from its newest checkpoint, to the saved model."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import NoReturn, cast

from rlhf import distributed
from rlhf.algorithms.ppo import PPO
from rlhf.data.stored_rollouts import NORMALIZATION, exact_rows, iteration_file
from rlhf.engines.checkpoint import Loaded, fitting, restore_rng, rng_state
from rlhf.loops.context import StageContext
from rlhf.loops.data_file import write_summary
from rlhf.loops.evaluation import Evaluator
from rlhf.loops.nan_dump import nan_dumped
from rlhf.loops.online import OnlineTrainer
from rlhf.loops.rollout_files import experience_rows, write_rows
from rlhf.loops.selection import Selector
from rlhf.loops.update import Update, skipped
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
        self.selector = Selector(self.trainer, self._export)
        self.checkpoints = context.checkpoints()
        self.resumed: Loaded | None = None
        self.rollouts = context.directory / "rollouts"
        self.saving = 0.0  # seconds spent on the latest checkpoint, told with the next line

    def resume(self, checkpoint: Path | None = None) -> None:
        """Continues from a checkpoint, or from the newest that there is, unless that has been done."""
        if self.resumed is None and (found := self.checkpoints.load(checkpoint)) is not None:
            with fitting(found.path):
                self.trainer.load_state_dict({**found.shared, **found.own})
                self.selector.load_state_dict(found.shared.get("selection"))
                if found.own:
                    restore_rng(found.own["rng"])
            self.resumed = found

    def fit(self) -> dict[str, float]:
        """All iterations, then the export. Returns the last figures."""
        self.resume()
        self.selector.check()
        trainer, found = self.trainer, self.resumed
        last: dict[str, float] = {}
        with (
            closing(self.context.metrics()) as metrics,
            nan_dumped(self.context.directory, self.algorithm),
            self.checkpoints,
            self._progress() as progress,
        ):
            metrics.rewind(0 if found is None else found.shared["metrics"])
            if self.context.writes:
                write_summary(self.context.directory, trainer.data, mixture=trainer.mixture_data)
            self._announce(progress, () if found is None else found.remarks(repr(self.algorithm.engine)))
            if found is None:
                last |= self._evaluate(metrics)
            while trainer.iteration < self.algorithm.iterations:
                last |= self._iterate(metrics)
                last |= self._evaluate(metrics)
                progress.update(trainer.iteration, brief(last, SHOWN), line=True)
                if trainer.iteration < self.algorithm.iterations:
                    self._save_if_due(metrics, f"iteration {trainer.iteration} of {self.algorithm.iterations} is saved")
            self.save()
            for note in (*self.selector.notes(), *skipped(last)):
                progress.say(f"{self.context.name}: {note}")
        return last

    def _progress(self) -> StageProgress:
        name, console = self.context.name, self.context.console
        return StageProgress(name, self.algorithm.iterations, done=self.trainer.iteration, console=console)

    def _announce(self, progress: StageProgress, notes: Sequence[str]) -> None:
        name, settings = self.context.name, self.algorithm
        for line in [*self.trainer.data.describe(), self.trainer.data.origin]:
            progress.say(f"{name}: {line}")
        if (texts := self.trainer.mixture_data) is not None:
            for line in [*texts.describe(), texts.origin]:
                progress.say(f"{name}.mixture: {line}")
        if settings.critic is not None and settings.used_critic is None:
            progress.say(f"{name}: {type(settings.advantage).__name__} reads no values, so the critic is not built")
        for note in notes:
            progress.say(f"{name}: {note}")
        if self.trainer.steps:
            within = "" if self.trainer.update is None else f", in the middle of iteration {self.trainer.iteration + 1}"
            progress.say(f"{name}: continues from step {self.trainer.steps}{within}")

    def _iterate(self, metrics: MetricsFile) -> dict[str, float]:
        """One iteration, or what is left of the one that a checkpoint was taken in the middle of."""
        trainer = self.trainer
        if trainer.update is None:
            experience = trainer.generate_experience()
            # before the update: of an iteration that is cut in its middle they are there, and not lost with what
            # the update does not keep
            self._write_rollouts(experience)
            update = trainer.update = Update(experience)
        else:
            update = trainer.update
        figures = trainer.continue_update(functools.partial(self._after_step, metrics))
        seconds = sum(figures[f"time/{part}"] for part in ("rollout", "score", "train"))
        figures["throughput/samples_per_s"] = len(update.experience.batch) / seconds
        figures["memory/peak_gb"] = peak_memory_gb()
        figures["time/save"] = self.saving
        figures["data/rows_dropped"] = trainer.data.rows_dropped
        for step in update.steps[:-1]:
            metrics.write(step)
        of_steps = {name for step in update.steps for name in step}
        metrics.write({name: value for name, value in figures.items() if name not in of_steps} | update.steps[-1])
        return figures

    def _after_step(self, metrics: MetricsFile, figures: Mapping[str, float]) -> None:
        """Where somebody asks to stop, an optimiser step is as good a place as the end of an iteration."""
        self.checkpoints.poll()
        if self.context.stop.wanted(distributed.total):
            of = f"iteration {figures['iteration']} of {self.algorithm.iterations}"
            self._stop(metrics, f"step {figures['step']}, in {of}, is saved")

    def _evaluate(self, metrics: MetricsFile) -> dict[str, float]:
        if not self.evaluator.due():
            return {}
        samples_to = self.rollouts / f"evaluation_{self.trainer.iteration:06d}.jsonl"
        figures = self.evaluator(samples_to if self.context.writes else None)
        figures |= self.selector.observe(figures)
        metrics.write(figures)
        return figures

    def _write_rollouts(self, experience: Experience) -> None:
        count, trainer = self.algorithm.save_rollouts, self.trainer
        if count == 0 or not self.context.writes:
            return
        rows = experience_rows(experience, len(experience.batch) if count == "all" else count, trainer.tokenizer)
        if count == "all":
            rows = [{**row, **exact} for row, exact in zip(rows, exact_rows(experience.rollout), strict=True)]
            if trainer.measured is not None:
                write_rows(self.rollouts / NORMALIZATION, exact_rows(trainer.measured))
                trainer.measured = None
        write_rows(iteration_file(self.rollouts, trainer.iteration + 1), rows)

    def _save_if_due(self, metrics: MetricsFile, saved: str) -> None:
        """A checkpoint where the settings ask for one, or somebody asks to stop; then the stage ends here."""
        every = self.algorithm.save_every
        if self.context.stop.wanted(distributed.total):
            self._stop(metrics, saved)
        if every and self.trainer.iteration % every == 0:
            self._save_checkpoint(metrics)

    def _stop(self, metrics: MetricsFile, saved: str) -> NoReturn:
        self._save_checkpoint(metrics)
        self.checkpoints.finish()
        raise self.context.stop.stopped(saved)

    def _save_checkpoint(self, metrics: MetricsFile) -> None:
        start, trainer = time.perf_counter(), self.trainer
        shared = {**trainer.state_dict(), "metrics": metrics.position(), "selection": self.selector.state_dict()}
        shared["engine_settings"] = repr(self.algorithm.engine)
        about = {
            "stage": self.context.name,
            "algorithm": type(self.algorithm).__qualname__,
            "iteration": trainer.iteration,
            "rollouts": trainer.iteration + (trainer.update is not None),
            **self.selector.about(),
        }
        self.checkpoints.save(trainer.steps, shared, {"rng": rng_state()}, about=about)
        self.selector.saved()
        self.saving = time.perf_counter() - start

    def save(self) -> None:
        """Writes ``model/``, as the settings select it, and ``ema/`` where the weights are averaged."""
        self.checkpoints.finish()  # which lets go of older ones, and of the weights that they counted on
        self.selector.save()
        if self.trainer.average is not None:
            self._export("ema", averaged=True)

    def _export(self, output: str, *, averaged: bool = False) -> None:
        """The policy, or its average, as a folder of the stage."""
        trainer, directory = self.trainer, self.context.directory / output
        average = trainer.average if averaged else None
        with contextlib.nullcontext() if average is None else trainer.policy.substituted(average.shards):
            state = trainer.policy.full_state()
            if self.context.writes:
                save_language_model(directory, cast(PolicyModel, trainer.policy.model), trainer.tokenizer, state)
                save_usage(directory, self.algorithm.data.template, self.algorithm.sampling)

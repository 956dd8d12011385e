"""The loop of algorithms that learn from fixed data: data → loss → step."""

from __future__ import annotations

import functools
import math
import time
from contextlib import closing
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from rlhf import distributed
from rlhf.algorithms.base import Offline
from rlhf.data.examples import Examples
from rlhf.data.stream import Batches, Stream
from rlhf.engines.checkpoint import Loaded, fitting, restore_rng, rng_state
from rlhf.errors import UserError
from rlhf.interfaces import LossFn
from rlhf.loops.context import StageContext
from rlhf.loops.data_file import write_summary
from rlhf.loops.nan_dump import nan_dumped
from rlhf.loops.sources import by_source
from rlhf.loops.update import skipped, step_together
from rlhf.metrics import MetricsFile, peak_memory_gb
from rlhf.models.storage import save_usage
from rlhf.models.tokenizer import pad_id
from rlhf.progress import StageProgress, brief
from rlhf.types import Selectable, Tally

M = TypeVar("M", bound=Selectable)
SHOWN = ("loss", "accuracy", "eval/loss", "eval/accuracy")


class OfflineTrainer(Generic[M]):
    """A stage that learns from data, from building the model to saving it.

    Usable by hand: ``train_step(next_batch())`` is one optimiser step, ``evaluate()`` the held-out figures, ``save()``
    the export; :meth:`fit` is these in a row.
    """

    def __init__(self, algorithm: Offline[M], context: StageContext) -> None:
        self.algorithm, self.context = algorithm, context
        phase = algorithm.data.phase or algorithm.phase
        torch.manual_seed(context.seed_for("dropout"))
        built = algorithm.build(lambda: algorithm.data.corpus(phase), seed=context.seed_for("weights"))
        self.model, self.tokenizer = built
        self.pad_id = pad_id(self.tokenizer)
        self.data = algorithm.data.prepare(
            self.tokenizer, form=algorithm.form, phase=phase, cache_dir=context.cache_dir
        )
        self._check_positions()
        self.stream = Stream(self.data.train, algorithm.data.blender, seed=context.seed_for("order"))
        self.total_steps = algorithm.steps or self.stream.total_steps(algorithm.epochs, algorithm.batch_size)
        self.draws_left = None if algorithm.steps else self.stream.total_steps(algorithm.epochs, 1)
        draws = self.draws_left or self.total_steps * algorithm.batch_size
        self.stream.plan(draws=draws, batch_size=algorithm.batch_size)
        self.engine = algorithm.engine.build(
            self.model,
            optimizer=algorithm.optimizer,
            schedule=algorithm.schedule,
            total_steps=self.total_steps,
            max_grad_norm=algorithm.max_grad_norm,
        )
        self.taken = 0
        """Batches learned from, those of skipped steps included: a stage ends after ``total_steps`` of them."""
        self.heldout = self._heldout_batches()
        self.checkpoints = context.checkpoints()
        self.resumed: Loaded | None = None
        context.part_dropout()

    def _check_positions(self) -> None:
        """Refuses rows that the model has no positions for, before a step is made."""
        trunk = getattr(self.model, "lm", None) or getattr(self.model, "trunk", None)
        limit = getattr(getattr(trunk, "config", None), "max_position_embeddings", None)
        longest = max(self.data.train.longest, self.data.heldout.longest)
        if limit is not None and longest > limit:
            raise UserError(
                f"data.max_tokens: is {self.algorithm.data.max_tokens}, and a row has {longest} tokens, but the model "
                f"has {limit} positions (max_position_embeddings); set max_tokens to at most {limit}"
            )

    def _heldout_batches(self) -> Batches[M]:
        collate = functools.partial(self.algorithm.collate, pad_id=self.pad_id)
        return Batches(self.data.heldout, self.algorithm.engine.rows_at_once, collate)

    def next_batch(self) -> M:
        """The next optimiser step's rows; the last step of the last epoch may be short."""
        size = self.algorithm.batch_size
        if self.draws_left is not None:
            size = min(size, self.draws_left)
            self.draws_left -= size
        return self.algorithm.collate(self.stream.next(size), pad_id=self.pad_id)

    def _loss(self, examples: Examples[Any]) -> LossFn[M]:
        """The algorithm's loss on these examples, with figures by source where they have several."""
        return by_source(self.algorithm.loss) if len(examples.sizes) > 1 else self.algorithm.loss

    def train_step(self, batch: M) -> dict[str, float]:
        """One optimiser step on a batch of any size; its figures."""
        start = time.perf_counter()
        engine, settings = self.algorithm.engine, self.algorithm
        tally = self.engine.accumulate(
            batch.split(engine.rows_at_once),
            self._loss(self.data.train),
            settings.denominators(batch),
            want=settings.want,
            dropout=True,
        )
        step = step_together({"policy": self.engine})[1]
        self.taken += 1
        seconds = time.perf_counter() - start
        tokens = float(batch.sequences.attention_mask.sum())
        return {
            "step": self.engine.steps,
            **tally.compute(),
            **step,
            "time/train": seconds,
            "throughput/train_tokens_per_s": tokens / seconds,
            "throughput/samples_per_s": len(batch) / batch.unit / seconds,
        }

    def evaluate(self) -> dict[str, float]:
        """Figures on the held-out rows, ``eval/…``; empty where there are none."""
        tally = Tally()
        outputs = self.engine.evaluate(self.heldout, want=self.algorithm.want)
        for batch, output in zip(self.heldout, outputs, strict=True):
            tally.merge(self._loss(self.data.heldout)(output, batch)[1])
        figures = {f"eval/{name}": value for name, value in tally.compute().items()}
        if self.algorithm.form == "demonstration" and "eval/loss" in figures:
            loss = figures["eval/loss"]
            figures["eval/perplexity"] = math.exp(loss) if loss < 709 else math.inf  # beyond, math.exp raises
        return figures

    def state_dict(self) -> dict[str, Any]:
        """All that continues the stage exactly."""
        return {
            "engine": self.engine.state_dict(),
            "stream": self.stream.state_dict(),
            "draws_left": self.draws_left,
            "taken": self.taken,
            "rng": rng_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from a checkpoint's state."""
        self.engine.load_state_dict(state["engine"])
        self.stream.load_state_dict(state["stream"])
        self.draws_left, self.taken = state["draws_left"], state["taken"]
        if "rng" in state:
            restore_rng(state["rng"])

    def save(self) -> None:
        """Writes ``model/``."""
        directory, state = self.context.directory / "model", self.engine.full_state()
        if self.context.writes:
            self.algorithm.save(directory, self.model, self.tokenizer, state)
            save_usage(directory, self.algorithm.data.template)

    def resume(self, checkpoint: Path | None = None) -> None:
        """Continues from a checkpoint, or from the newest that there is, unless that has been done."""
        if self.resumed is None and (found := self.checkpoints.load(checkpoint)) is not None:
            with fitting(found.path):
                self.load_state_dict({**found.shared, **found.own})
            self.resumed = found

    def fit(self) -> dict[str, float]:
        """Runs the stage, from its newest checkpoint if it has one, and saves the model. The last figures."""
        self.resume()
        found = self.resumed
        last: dict[str, float] = {}
        with (
            closing(self.context.metrics()) as metrics,
            nan_dumped(self.context.directory, self.algorithm),
            self.checkpoints,
            self._progress() as progress,
        ):
            metrics.rewind(0 if found is None else found.shared["metrics"])
            if self.context.writes:
                write_summary(self.context.directory, self.data)
            for line in [*self.data.describe(), self.data.origin]:
                progress.say(f"{self.context.name}: {line}")
            if found is not None:
                remarks = found.remarks(repr(self.algorithm.engine))
                for note in (*remarks, f"continues from step {self.engine.steps}"):
                    progress.say(f"{self.context.name}: {note}")
            while self.taken < self.total_steps:
                figures = self.train_step(self.next_batch())
                figures |= {"data/rows_dropped": self.data.rows_dropped, "memory/peak_gb": peak_memory_gb()}
                metrics.write(figures)
                last |= figures
                evaluated = self._due(self.algorithm.eval_every) or self.taken == self.total_steps
                if evaluated:
                    last |= self._write_evaluation(metrics)
                progress.update(self.taken, brief(last, SHOWN), line=evaluated)
                self._save_if_due(metrics)
            conclusion = self.algorithm.conclude(self.engine, self.heldout)
            if conclusion:
                metrics.write({"step": self.engine.steps, **conclusion})
            self.save()
            for note in skipped(last):
                progress.say(f"{self.context.name}: {note}")
        return last

    def _progress(self) -> StageProgress:
        name, console = self.context.name, self.context.console
        return StageProgress(name, self.total_steps, done=self.taken, console=console)

    def _due(self, every: int) -> bool:
        return every > 0 and self.taken % every == 0 and self.taken < self.total_steps

    def _save_if_due(self, metrics: MetricsFile) -> None:
        """A checkpoint where the settings ask for one, or somebody asks to stop; then the stage ends here."""
        self.checkpoints.poll()
        stop = self.context.stop
        stopping = stop.wanted(distributed.total) and self.taken < self.total_steps
        if stopping or self._due(self.algorithm.save_every):
            shared = {**self.state_dict(), "metrics": metrics.position()}
            shared["engine_settings"] = repr(self.algorithm.engine)
            own = {"rng": shared.pop("rng")}
            about = {"stage": self.context.name, "algorithm": type(self.algorithm).__qualname__}
            self.checkpoints.save(self.engine.steps, shared, own, about=about)
        if stopping:
            self.checkpoints.finish()
            raise stop.stopped(f"step {self.engine.steps} of {self.total_steps} is saved")

    def _write_evaluation(self, metrics: MetricsFile) -> dict[str, float]:
        figures = self.evaluate()
        if figures:
            metrics.write({"step": self.engine.steps, **figures})
        return figures

"""Stages of six optimiser steps that are cut short and gone on with; run in processes by the tests."""

from __future__ import annotations

import dataclasses
import io
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import tiny_runs
import torch
from rich.console import Console

from rlhf import distributed
from rlhf.algorithms.averaging import EMA
from rlhf.algorithms.critics import OwnTrunk
from rlhf.algorithms.kl import KL, Adaptive
from rlhf.algorithms.normalization import ScoreNormalization
from rlhf.algorithms.objectives import Mixture
from rlhf.algorithms.optimizers import AdamW
from rlhf.algorithms.ppo import Evaluation
from rlhf.algorithms.schedules import CosineDecay
from rlhf.experiment import Experiment
from rlhf.interfaces import Algorithm, Engine
from rlhf.interruption import Stopped
from rlhf.loops import build_stage
from rlhf.loops.stage import OnlineStage

STEPS = 6


def make(kind: str, engine: Engine, dropout: float = 0.1) -> Any:
    """A stage with everything that has state. A checkpoint is due after step 4, besides those of a stop."""
    usual = {"engine": engine, "optimizer": AdamW(lr=1e-2, eps=1e-4), "schedule": CosineDecay()}
    model = tiny_runs.policy(dropout=dropout)
    if kind == "sft":
        return tiny_runs.sft(policy=model, batch_size=6, steps=STEPS, eval_every=3, save_every=4, **usual)
    if kind == "reward":
        return tiny_runs.reward_modelling(model=model, batch_size=3, steps=STEPS, eval_every=3, save_every=4, **usual)
    return tiny_runs.ppo(
        policy=model,
        critic=OwnTrunk(optimizer=AdamW(lr=1e-2, eps=1e-4), warmup_iterations=1),
        mixture=Mixture(data=tiny_runs.data("text", eval_rows=0), batch_size=4, gradient_every=3),
        averaging=EMA(decay=0.9),
        kl=KL(controller=Adaptive(target=1.0, horizon=50)),
        score_normalization=ScoreNormalization(samples=8, running=True),
        evaluation=Evaluation(every=1, prompts=3),
        iterations=STEPS // 2,
        save_every=2,
        save_rollouts="all",
        **usual,
    )


def _after(step: int, stage: Any, act: Callable[[], None]) -> None:
    """Has something done when a stage has made its optimiser step of this number."""
    trainer, method = (stage.trainer, "_optimiser_step") if isinstance(stage, OnlineStage) else (stage, "train_step")
    honest = getattr(trainer, method)

    def told(*arguments: Any) -> Any:
        figures = honest(*arguments)
        if figures["step"] == step:
            act()
        return figures

    setattr(trainer, method, told)


def fit(algorithm: Algorithm, directory: Path, *, stop: int = 0, kill: int = 0) -> str:
    """A stage until it ends, is asked to stop, or dies in the middle of a step; what was said of going on.

    Args:
        algorithm: From :func:`make`.
        directory: Of the stage, which is continued where it has a checkpoint.
        stop: Optimiser step in which one process, and no other, is asked to stop; 0 for none.
        kill: Optimiser step in which all processes die, its figures and rollouts not yet written; 0 for none.
    """
    torch.manual_seed(99)  # whatever a process has drawn before
    console = Console(file=io.StringIO(), width=1000)
    stage = build_stage(algorithm, dataclasses.replace(tiny_runs.context(directory), cache_dir=None, console=console))
    if stop and distributed.rank() == stop % distributed.world_size():
        _after(stop, stage, lambda: setattr(stage.context.stop, "signal", signal.SIGTERM))
    if kill:
        _after(kill, stage, _die)
    try:
        stage.fit()
        assert not stop and not kill, "went on"
    except Stopped as error:
        assert stop and f"step {stop}" in str(error) and error.exit_code == 143, str(error)
    except tiny_runs.Killed:
        assert kill
    return console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]: the StringIO of above


def _die() -> None:
    raise tiny_runs.Killed


def cut_at(kind: str, engine: Engine, step: int, directory: Path) -> None:
    """A stage that is stopped after a step, killed in the second step after that, and then ends.

    Args:
        kind: Of the algorithm.
        engine: What trains it.
        step: Of the stop; with 0 there is none, and the stage is killed before its first checkpoint.
        directory: Of the stage.
    """
    algorithm = make(kind, engine)
    if step:
        fit(algorithm, directory, stop=step)
    fit(algorithm, directory, kill=min(step + 2, STEPS))
    said = fit(algorithm, directory)
    newest = 4 if step in (3, 4) else step
    assert not distributed.is_main() or (f"continues from step {newest}" in said) == (newest > 0), said


def whole(kind: str, engine: Engine, directory: Path) -> None:
    """The same stage without an interruption."""
    fit(make(kind, engine), directory)


def run(
    stages: dict[str, Algorithm], output_dir: Path, *, sinks: tuple[Any, ...] = (), **settings: Any
) -> tuple[str, str]:
    """An experiment; what it said, and how it was stopped, if it was."""
    console, stopped = Console(file=io.StringIO(), width=1000), ""
    experiment = Experiment(
        name="toy", output_dir=str(output_dir), stages=stages, sinks=list(sinks), cache_dir=None, stage_cache=None
    )
    try:
        experiment.run(console=console, **settings)
    except Stopped as error:
        stopped = str(error)
    return console.file.getvalue(), stopped  # pyright: ignore[reportAttributeAccessIssue]: the StringIO of above


def files(directory: Path) -> dict[str, str]:
    """Contents of the rollout files of a stage."""
    return {path.name: path.read_text() for path in sorted((directory / "rollouts").glob("*"))}


def same(one: Path, other: Path) -> None:
    """Two stages have left the same, to the last bit."""
    assert tiny_runs.metrics(one) == tiny_runs.metrics(other)
    steps = [line["step"] for line in tiny_runs.metrics(one) if "lr/policy" in line or "lr/value" in line]
    assert steps == list(range(1, STEPS + 1))
    models = [path.name for path in (one / "model", one / "ema") if path.exists()]
    assert models and all(tiny_runs.same_weights(one / name, other / name) for name in models)
    assert (one / "ema").exists() == (other / "ema").exists() and files(one) == files(other)


def stopped_at_the_export(stages: dict[str, Algorithm], output_dir: Path) -> tuple[str, str]:
    """An experiment whose main process, and no other, gets SIGTERM while the first stage's model is written."""
    from rlhf.algorithms.sft import SFT

    honest = SFT.save

    def save(self: SFT, *arguments: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        honest(self, *arguments)

    with mock.patch.object(SFT, "save", save):
        return run(stages, output_dir)

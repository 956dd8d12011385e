"""Half precision, and gradients that overflow in it at the calls a test names; run in processes by the tests."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import math
import tempfile
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import tiny_runs
import torch

from rlhf import distributed
from rlhf.algorithms.averaging import EMA
from rlhf.algorithms.critics import OwnTrunk
from rlhf.algorithms.kl import KL, Adaptive
from rlhf.algorithms.objectives import Mixture
from rlhf.algorithms.optimizers import SGD, AdamW
from rlhf.algorithms.ppo import PPO
from rlhf.algorithms.schedules import Constant
from rlhf.algorithms.sft import SFT
from rlhf.errors import NonFiniteError
from rlhf.interfaces import Engine, LiveEngine
from rlhf.loops.offline import OfflineTrainer
from rlhf.loops.online import OnlineTrainer
from rlhf.loops.stage import OnlineStage

HUGE = 1e30
"""A factor that a loss in fp32 stands and a gradient in fp16 does not."""


class Infinite(torch.autograd.Function):
    """The same numbers, with a gradient that is not finite."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor) -> torch.Tensor:
        return values.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return gradient * math.inf


class Explosion:
    """While ``on``, a loss is so large that its gradient overflows; the loss itself is finite.

    Args:
        algorithm: The class whose loss it is.
        method: Its name.
        rank: The only process where it happens; None for all.
        infinite: Whether the gradient is infinite from the start, in any precision.
    """

    def __init__(self, algorithm: type, method: str, rank: int | None = None, *, infinite: bool = False) -> None:
        self.on, self.infinite = False, infinite
        self.here = rank is None or rank == distributed.rank()
        self.honest: Callable[..., Any] = getattr(algorithm, method)
        self.patch = mock.patch.object(algorithm, method, lambda *a, **k: self.loss(*a, **k))

    def loss(self, *arguments: Any, **settings: Any) -> Any:
        terms, tally = self.honest(*arguments, **settings)
        if self.on and self.here and self.infinite:
            terms = [dataclasses.replace(term, values=Infinite.apply(term.values)) for term in terms]
        elif self.on and self.here:
            terms = [dataclasses.replace(term, coef=term.coef * HUGE) for term in terms]
        return terms, tally


@contextlib.contextmanager
def folder() -> Iterator[Any]:
    """The context of a stage that leaves nothing behind."""
    with tempfile.TemporaryDirectory() as path:
        yield dataclasses.replace(tiny_runs.context(Path(path)), cache_dir=None)


def content(engine: LiveEngine) -> dict[str, Any]:
    """What a skipped step has to leave as it is."""
    return copy.deepcopy({name: engine.state_dict()[name] for name in ("model", "optimizer", "steps")})


def same(a: Any, b: Any) -> bool:
    """Whether two states are equal bit for bit."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[name], b[name]) for name in a)
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


def supervised(engine: Engine, **settings: Any) -> SFT:
    usual: dict[str, Any] = {"optimizer": AdamW(lr=1e-4), "schedule": Constant(warmup=10), "steps": 8}
    return tiny_runs.sft(**{**usual, "engine": engine, **settings})


def skipping(
    engine: Engine,
    bad: Collection[int],
    calls: int,
    *,
    rank: int | None = None,
    passed: int = 0,
    start: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Supervised steps of which those of the given numbers, from 1, overflow.

    Args:
        engine: Of the stage.
        bad: Numbers of calls.
        calls: How many are made.
        rank: Where the overflow happens; None for all processes.
        passed: Batches that nobody learns from before the first call.
        start: A state to go on from.

    Returns:
        On each process ``lines``, ``untouched`` (of each call, whether anything of the engine has changed), ``state``.
    """
    explosion = Explosion(SFT, "loss", rank)
    with folder() as context, explosion.patch:
        trainer = OfflineTrainer(supervised(engine), context)
        if start is not None:
            trainer.load_state_dict(start)
        for _ in range(passed):
            trainer.next_batch()
        lines, untouched = [], []
        for call in range(1, calls + 1):
            explosion.on, before = call in bad, content(trainer.engine)
            lines.append(trainer.train_step(trainer.next_batch()))
            untouched.append(same(before, content(trainer.engine)))
        return {"lines": lines, "untouched": untouched, "state": copy.deepcopy(trainer.state_dict())}


def not_mended(engine: Engine) -> tuple[str, bool]:
    """What is said where the first step's gradient is not finite and no scale mends it; and whether nothing moved."""
    explosion = Explosion(SFT, "loss", infinite=True)
    with folder() as context, explosion.patch:
        trainer = OfflineTrainer(supervised(engine), context)
        before, explosion.on = content(trainer.engine), True
        try:
            trainer.train_step(trainer.next_batch())
        except NonFiniteError as error:
            return str(error), same(before, content(trainer.engine))
        return "", False


def whole_stage(engine: Engine, bad: Collection[int]) -> tuple[list[dict[str, float]], str]:
    """A supervised stage from start to end whose given batches overflow: its lines, and what it says."""
    explosion, calls = Explosion(SFT, "loss"), iter(range(1, 1000))
    honest = OfflineTrainer.train_step

    def counted(trainer: Any, batch: Any) -> dict[str, float]:
        explosion.on = next(calls) in bad
        found = honest(trainer, batch)
        explosion.on = False
        return found

    with folder() as context, explosion.patch, mock.patch.object(OfflineTrainer, "train_step", counted):
        data = tiny_runs.data("demonstration", 24)
        trainer = OfflineTrainer(supervised(engine, steps=None, epochs=1, data=data, eval_every=2), context)
        trainer.fit()
        lines = tiny_runs.metrics(context.directory) if distributed.is_main() else []
        return lines, context.console.file.getvalue()


def on_policy(engine: Engine, **settings: Any) -> PPO:
    usual: dict[str, Any] = {
        "kl": KL(controller=Adaptive(target=0.5, horizon=20)),
        "averaging": EMA(decay=0.5),
        "critic": OwnTrunk(optimizer=AdamW(lr=1e-3)),
        "optimizer": AdamW(lr=1e-3),
        "epochs": 1,
    }
    return tiny_runs.ppo(**{**usual, "engine": engine, **settings})


def joint(engine: Engine, who: str, bad: Collection[int], iterations: int) -> list[dict[str, Any]]:
    """PPO whose policy (``loss``) or critic (``value_loss``) alone overflows at the given optimiser steps.

    Returns:
        Of each step its figures, what has changed, and the numbers of steps made and skipped by each model; of each
        iteration the KL coefficient before and after (under ``coef``).
    """
    explosion, calls, seen = Explosion(PPO, who), iter(range(1, 1000)), []
    with folder() as context, explosion.patch:
        trainer = OnlineTrainer(on_policy(engine), context)
        honest, models = trainer._optimiser_step, {"policy": trainer.policy, "critic": trainer.critic}

        def step(batch: Any) -> dict[str, float]:
            explosion.on = next(calls) in bad
            before = {name: content(model) for name, model in models.items() if model is not None}
            assert trainer.average is not None
            shards = [shard.clone() for shard in trainer.average.shards]
            figures = honest(batch)
            seen.append({
                "figures": figures,
                "untouched": {name: same(before[name], content(models[name])) for name in before},  # pyright: ignore
                "average": all(map(torch.equal, shards, trainer.average.shards)),
                "counts": [(model.steps, model.skipped) for model in models.values() if model is not None],
            })  # fmt: skip
            return figures

        with mock.patch.object(trainer, "_optimiser_step", step):
            for _ in range(iterations):
                coef = trainer.kl_coef
                figures = trainer.train_rlhf(trainer.generate_experience())
                seen[-1] |= {"coef": (coef, trainer.kl_coef), "iteration": figures}
        return seen


def on_policy_stage(engine: Engine, bad: Collection[int]) -> list[dict[str, float]]:
    """The lines of a PPO stage from start to end whose policy overflows at the given steps."""
    explosion, calls = Explosion(PPO, "loss"), iter(range(1, 1000))
    honest = OnlineTrainer._optimiser_step

    def counted(trainer: Any, batch: Any) -> dict[str, float]:
        explosion.on = next(calls) in bad
        return honest(trainer, batch)

    with folder() as context, explosion.patch, mock.patch.object(OnlineTrainer, "_optimiser_step", counted):
        OnlineStage(on_policy(engine, iterations=2), context).fit()
        return tiny_runs.metrics(context.directory) if distributed.is_main() else []


def compared(engine: Engine) -> dict[str, float]:
    """The figures of a step that compares the policy's gradient with the mixture's."""
    mixture = Mixture(data=tiny_runs.data("text", 12), batch_size=3, gradient_every=1)
    with folder() as context:
        trainer = OnlineTrainer(on_policy(engine, mixture=mixture, optimizer=SGD(lr=0.1)), context)
        return trainer.train_rlhf(trainer.generate_experience())

"""Training by ``Local`` and by ``Zero``, told apart by nothing but the engine; run in processes by the tests."""

from __future__ import annotations

import copy
import dataclasses
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tiny_runs
import torch

from rlhf import distributed
from rlhf.algorithms.averaging import EMA
from rlhf.algorithms.critics import OwnTrunk
from rlhf.algorithms.objectives import Mixture
from rlhf.algorithms.optimizers import SGD
from rlhf.engines.zero import Zero
from rlhf.interfaces import Engine, LanguageModel
from rlhf.loops.offline import OfflineTrainer
from rlhf.loops.online import OnlineTrainer
from rlhf.models.lora import LoRA, attach
from rlhf.models.policy import FromScratch

EAGER = {"stage3_max_live_parameters": 0, "stage3_max_reuse_distance": 0, "stage3_prefetch_bucket_size": 0}
"""Weights are parted again after every use: a tiny model would stay gathered, and hide passes that do not match."""


def zero(stage: int, **settings: Any) -> Zero:
    config = {"zero_optimization": EAGER} if stage == 3 else {}
    return Zero(stage=stage, **{"config": config, "micro_batch_size": 1, **settings})  # type: ignore[arg-type]


def agree(found: dict[str, Any], expected: dict[str, Any], tolerance: float = 1e-5) -> None:
    """Figures to 1e-5 of their size (of 1e-2 where they are sums that cancel), weights to 1e-5."""
    assert len(found["lines"]) == len(expected["lines"])
    for mine, its in zip(found["lines"], expected["lines"], strict=True):
        assert mine == pytest.approx(its, rel=tolerance, abs=tolerance * 1e-1)
    for part in expected.keys() - {"lines", "state"}:
        assert found[part].keys() == expected[part].keys()
        for name, weight in expected[part].items():
            assert torch.allclose(found[part][name].to(weight), weight, rtol=0, atol=tolerance), (part, name)


@dataclass(frozen=True, kw_only=True)
class Adapted(FromScratch):
    """A new model under new adapters, which alone are trained."""

    rank: int = 2

    def build(self, corpus: Callable[[], Iterable[str]], *, seed: int) -> LanguageModel:
        built = super().build(corpus, seed=seed)
        attach(built.module, LoRA(rank=self.rank), seed=seed, base=None)
        return built


def policy(trains: str) -> FromScratch:
    """A tiny model of which all weights are trained, or adapters: ``full`` or ``lora``."""
    plain = tiny_runs.policy()
    return plain if trains == "full" else Adapted(config=plain.config, vocab_size=plain.vocab_size)


def make(kind: str, engine: Engine, *, trains: str = "full", **settings: Any) -> Any:
    """A stage's algorithm."""
    if kind == "sft":
        return tiny_runs.sft(policy=policy(trains), engine=engine, batch_size=5, steps=12, **settings)
    if kind == "reward":
        return tiny_runs.reward_modelling(model=policy(trains), engine=engine, batch_size=5, steps=12, **settings)
    mixture = Mixture(data=tiny_runs.data("text", 12), batch_size=3, gradient_every=1)
    critic = OwnTrunk(optimizer=SGD(lr=0.1), warmup_iterations=1)
    usual = {"policy": policy(trains), "mixture": mixture, "averaging": EMA(decay=0.5), "critic": critic}
    return tiny_runs.ppo(engine=engine, **{**usual, **settings})


def train(
    kind: str, engine: Engine, steps: int, *, start: dict[str, Any] | None = None, **settings: Any
) -> dict[str, Any]:
    """Some steps: the figures of each, and weights and state after the last, on the main process.

    Args:
        kind: Of the algorithm.
        engine: What trains it.
        steps: Optimiser steps, of PPO iterations.
        start: A state that another call has answered, to go on from.
        **settings: Of the algorithm.
    """
    with tempfile.TemporaryDirectory() as folder:
        context = dataclasses.replace(tiny_runs.context(Path(folder)), cache_dir=None)
        algorithm = make(kind, engine, **settings)
        lines: list[dict[str, float]] = []
        found: dict[str, Any] = {}
        if kind == "ppo":
            trainer = OnlineTrainer(algorithm, context)
            if start is not None:
                trainer.load_state_dict(start)
            for _ in range(steps):
                lines.append(trainer.train_rlhf(trainer.generate_experience(), lines.append))
            live = trainer.policy
            assert trainer.average is not None
            found["ema"] = live.whole(trainer.average.shards)
            if trainer.critic is not None:
                found["critic"] = trainer.critic.full_state()
        else:
            trainer = OfflineTrainer(algorithm, context)
            if start is not None:
                trainer.load_state_dict(start)
            lines += [trainer.train_step(trainer.next_batch()) for _ in range(steps)]
            lines.append(trainer.evaluate())
            live = trainer.engine
        found["weights"] = live.full_state()
        found["state"] = copy.deepcopy(trainer.state_dict())
        found["lines"] = [
            {name: value for name, value in line.items() if not name.startswith(tiny_runs.TIMED)} for line in lines
        ]
        return found if distributed.is_main() else {}


def average(engine: Engine, decay: float, steps: int, *, trains: str = "full") -> tuple[float, float]:
    """How far an EMA is from the closed form of the master weights it was shown, and how far it has moved; per rank."""
    algorithm = tiny_runs.sft(policy=policy(trains), engine=engine, batch_size=4, optimizer=SGD(lr=0.1))
    with tempfile.TemporaryDirectory() as folder:
        trainer = OfflineTrainer(algorithm, dataclasses.replace(tiny_runs.context(Path(folder)), cache_dir=None))
        live = trainer.engine
        average = EMA(decay=decay).build(live.master())
        start = expected = {name: weight.double().clone() for name, weight in live.whole(live.master()).items()}
        for _ in range(steps):
            trainer.train_step(trainer.next_batch())
            average.update(live.master())
            masters = live.whole(live.master())
            expected = {name: decay * expected[name] + (1 - decay) * masters[name].double() for name in expected}
        found = live.whole(average.shards)
        off = max(float((found[name].double() - expected[name]).abs().max()) for name in found)
        moved = max(float((found[name].double() - start[name]).abs().max()) for name in found)
        return off, moved

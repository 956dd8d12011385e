"""Ten deterministic optimiser steps of each algorithm, to the last digit: a refactoring must not move one.

They learn from the toy rows of ``tiny_runs``: work on the built-in world, which has tests of its own, moves nothing
here.

``.venv/bin/python tests/golden_curves.py`` writes ``tests/golden/*.json`` anew. Do that in the same commit as a change
that is meant to move digits, and say in its message which moved, by how much, and why the new ones are right.
"""

from __future__ import annotations

import functools
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import learning
import tiny_runs
import torch

from rlhf.algorithms.averaging import EMA
from rlhf.algorithms.constraints import Constraint
from rlhf.algorithms.distillation import OnPolicyDistillation
from rlhf.algorithms.kl import KL, Adaptive
from rlhf.algorithms.lagrangian import PPOLagrangian
from rlhf.algorithms.normalization import ScoreNormalization
from rlhf.algorithms.objectives import Entropy, Mixture
from rlhf.algorithms.ppo import PPO
from rlhf.algorithms.rejection_sampling import RejectionSampling
from rlhf.algorithms.reward_modelling import RewardModelling
from rlhf.algorithms.schedules import CosineDecay
from rlhf.algorithms.sft import SFT
from rlhf.engines.inference.sampling import Sampling
from rlhf.loops.offline import OfflineTrainer
from rlhf.loops.online import OnlineTrainer
from rlhf.models.policy import FromScratch

FOLDER = Path(__file__).parent / "golden"
SIZES = {"n_layer": 2, "n_embd": 32, "n_head": 2, "n_positions": 64, "initializer_range": 0.1}
DROPOUT = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.1)
POLICY = FromScratch(config={"model_type": "gpt2", **SIZES, **DROPOUT}, vocab_size=320)
KEPT = ("loss", "accuracy", "margin", "grad_norm/", "lr/", "policy/", "value/", "gradient/")


def _offline(algorithm: SFT | RewardModelling, directory: Path) -> list[dict[str, float]]:
    trainer = OfflineTrainer(algorithm, tiny_runs.context(directory))
    return [trainer.train_step(trainer.next_batch()) for _ in range(10)]


def sft(directory: Path) -> list[dict[str, float]]:
    """With dropout, so that the random numbers of training are held too."""
    settings = tiny_runs.sft(
        policy=POLICY, data=tiny_runs.data("demonstration"), steps=10, schedule=CosineDecay(warmup=2)
    )
    return _offline(settings, directory)


def reward_modelling(directory: Path) -> list[dict[str, float]]:
    """With several responses to a prompt."""
    return _offline(tiny_runs.reward_modelling(model=POLICY, data=tiny_runs.data("scored"), steps=10), directory)


def ppo(directory: Path) -> list[dict[str, float]]:
    """With everything switched on."""
    settings: PPO = tiny_runs.ppo(
        policy=POLICY,
        mixture=Mixture(data=tiny_runs.data("text"), coef=0.5, gradient_every=2),
        entropy=Entropy(),
        averaging=EMA(decay=0.9),
        kl=KL(controller=Adaptive(target=1.0, horizon=100)),
        score_normalization=ScoreNormalization(samples=16),
        sampling=Sampling(max_new_tokens=12, temperature=0.9, stop_tokens=tiny_runs.STOPS),
        iterations=5,
        missing_end_penalty=1.0,
    )
    trainer = OnlineTrainer(settings, tiny_runs.context(directory))
    steps: list[dict[str, float]] = []
    for _ in range(settings.iterations):
        trainer.train_rlhf(trainer.generate_experience(), steps.append)
    return steps


def on_policy(kind: type[PPO], directory: Path) -> list[dict[str, float]]:
    """An algorithm as its class has it, on groups of four where it compares the responses to a prompt."""
    teacher = tiny_runs.SameTokenizer(form="prompt", config=POLICY.config, vocab_size=320)
    needed = {
        OnPolicyDistillation: {"policy": teacher, "reference": teacher},
        PPOLagrangian: {"constraints": {"letters": Constraint(cost=tiny_runs.LETTERS, limit=2.0)}},
        RejectionSampling: {"mini_batch_size": 1},
    }
    settings: dict[str, Any] = {
        "policy": POLICY,
        "sampling": Sampling(max_new_tokens=12, stop_tokens=tiny_runs.STOPS),
        "iterations": 10,
        "samples_per_prompt": 4,
        **needed.get(kind, {}),
    }
    trainer = OnlineTrainer(tiny_runs.ppo(kind, **settings), tiny_runs.context(directory))
    steps: list[dict[str, float]] = []
    while len(steps) < 10:
        trainer.train_rlhf(trainer.generate_experience(), steps.append)
    return steps[:10]


CURVES: dict[str, Callable[[Path], list[dict[str, float]]]] = {
    "sft": sft,
    "reward_modelling": reward_modelling,
    "ppo": ppo,
    **{kind.__name__: functools.partial(on_policy, kind) for kind in learning.TASKS if kind is not PPO},
}


def curve(name: str, directory: Path) -> list[dict[str, float]]:
    """The figures of ten optimiser steps, without times."""
    return [{key: value for key, value in step.items() if key.startswith(KEPT)} for step in CURVES[name](directory)]


def read(name: str) -> list[dict[str, float]]:
    """The curve as stored."""
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def main() -> None:
    """Writes all curves anew."""
    torch.set_num_threads(1)
    for name in CURVES:
        with tempfile.TemporaryDirectory() as directory:
            lines = [json.dumps(step) for step in curve(name, Path(directory))]
        (FOLDER / f"{name}.json").write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")
        print(f"{FOLDER / name}.json: {len(lines)} steps")


if __name__ == "__main__":
    sys.exit(main())

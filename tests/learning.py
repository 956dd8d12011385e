"""What each on-policy algorithm is asked to learn, and how its advantages are spoilt to show that it learns by them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tiny_runs
import torch
from torch import Tensor

from rlhf.algorithms.cispo import CISPO
from rlhf.algorithms.constraints import Constraint
from rlhf.algorithms.distillation import OnPolicyDistillation
from rlhf.algorithms.gmpo import GMPO
from rlhf.algorithms.grpo import DAPO, GRPO, DrGRPO
from rlhf.algorithms.gspo import GSPO
from rlhf.algorithms.lagrangian import PPOLagrangian
from rlhf.algorithms.ppo import PPO
from rlhf.algorithms.reinforce_plus_plus import ReinforcePlusPlus, ReinforcePlusPlusBaseline
from rlhf.algorithms.rejection_sampling import RejectionSampling
from rlhf.algorithms.remax import ReMax
from rlhf.algorithms.rloo import RLOO
from rlhf.algorithms.vapo import VAPO
from rlhf.interfaces import AdvantageEstimator, RolloutFilter
from rlhf.types import Advantages

TEACHER = tiny_runs.SameTokenizer(form="prompt", config=tiny_runs.policy(width=32).config, vocab_size=280)
TASKS: dict[type[PPO], dict[str, Any]] = {
    PPO: {},
    GRPO: {},
    DrGRPO: {},
    DAPO: {},
    RLOO: {},
    ReMax: {"iterations": 16, "batch_size": 64, "mini_batch_size": 32},
    ReinforcePlusPlus: {},
    ReinforcePlusPlusBaseline: {},
    GSPO: {},
    CISPO: {},
    GMPO: {},
    VAPO: {"iterations": 24},
    PPOLagrangian: {"iterations": 16, "constraints": {"letters": Constraint(cost=tiny_runs.LETTERS, limit=6.0)}},
    RejectionSampling: {"mini_batch_size": 4},
    OnPolicyDistillation: {
        "policy": TEACHER,
        "reference": TEACHER,  # other weights: its seed is another
        "batch_size": 96,  # the KL of few responses is a noisy figure
        "mini_batch_size": 32,
        "epochs": 1,
        "iterations": 20,
    },
}
"""Settings beside those of ``tiny_runs.learning_curve``: letters in the response, more are better."""
THRESHOLD = 1.5
"""Letters that must be gained, where an untrained policy writes about two."""
NATS = 2.0
"""Nats of a response that the distillation must bring the student nearer to its teacher."""
SPOILT: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "zeroed": lambda advantages, order: torch.zeros_like(advantages),
    "shuffled": lambda advantages, order: advantages[order],
    "flipped": lambda advantages, order: -advantages,
}


def threshold(kind: type[PPO]) -> float:
    """What must be gained."""
    return NATS if kind is OnPolicyDistillation else THRESHOLD


def gain(directory: Path, seed: int, kind: type[PPO], how: str | None = None) -> float:
    """What an algorithm learns: letters, or of the distillation the KL to the teacher that is gone."""
    settings = {**TASKS[kind], **({} if how is None else spoilt(kind, how))}
    if kind is OnPolicyDistillation:
        curve = tiny_runs.learning_curve(directory, seed, kind, figure="kl/sequence", **settings)
        return sum(curve[:2]) / 2 - sum(curve[-3:]) / 3
    return tiny_runs.gain(directory, seed, kind, **settings)


def spoilt(kind: type[PPO], how: str) -> dict[str, Any]:
    """The algorithm's estimator with its advantages spoilt; of rejection sampling the filter's choice."""
    settings = tiny_runs.ppo(kind, **TASKS[kind])
    change, generator = SPOILT[how], torch.Generator().manual_seed(0)
    if kind is RejectionSampling:
        return {"filter": _spoilt_filter(change, generator)}

    class Spoilt(type(settings.advantage)):
        def __call__(self, scored: Any) -> Advantages:
            found = super().__call__(scored)
            order = torch.randperm(len(found.advantages), generator=generator)
            advantages = change(found.advantages, order).masked_fill(~scored.mask, 0.0)
            return Advantages(advantages, found.returns)

    names = [item.name for item in dataclasses.fields(settings.advantage)]  # pyright: ignore[reportArgumentType]
    estimator: AdvantageEstimator = Spoilt(**{name: getattr(settings.advantage, name) for name in names})
    return {"advantage": estimator, **({"imitation": None} if kind is VAPO else {})}


def _spoilt_filter(change: Callable[[Tensor, Tensor], Tensor], generator: torch.Generator) -> RolloutFilter:
    base = tiny_runs.ppo(RejectionSampling, mini_batch_size=1, samples_per_prompt=8).filter

    class Spoilt(type(base)):
        def __call__(self, scores: Tensor, groups: Tensor) -> Tensor:
            return super().__call__(change(scores, torch.randperm(len(scores), generator=generator)), groups)

    return Spoilt()

"""What each on-policy algorithm is asked to learn, and how its advantages are spoilt to show that it learns by them.

``.venv/bin/python tests/learning.py`` draws ``docs/learning.png`` anew, five seeds each.
"""

from __future__ import annotations

import dataclasses
import tempfile
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


def curve(directory: Path, seed: int, kind: type[PPO], how: str | None = None) -> list[float]:
    """The mean reward of each iteration; of the distillation the KL to the teacher."""
    settings = {**TASKS[kind], **({} if how is None else spoilt(kind, how))}
    figure = "kl/sequence" if kind is OnPolicyDistillation else "reward/score"
    return tiny_runs.learning_curve(directory, seed, kind, figure=figure, **settings)


def gain(directory: Path, seed: int, kind: type[PPO], how: str | None = None) -> float:
    """What an algorithm learns: letters, or of the distillation the KL to the teacher that is gone."""
    found = curve(directory, seed, kind, how)
    rise = sum(found[-3:]) / 3 - sum(found[:2]) / 2
    return -rise if kind is OnPolicyDistillation else rise


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


def draw(curves: dict[str, dict[str, list[list[float]]]], path: Path) -> None:
    """A panel for each algorithm: mean and range over seeds, and in grey with shuffled advantages."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    columns = 5
    figure, axes = plt.subplots(-(-len(curves) // columns), columns, figsize=(15, 8), squeeze=False)
    for axis, (name, found) in zip(axes.flat, curves.items(), strict=False):
        for label, colour in (("learns", "C0"), ("shuffled", "0.5")):
            lines = torch.tensor(found[label])
            steps = range(1, lines.shape[1] + 1)
            axis.fill_between(steps, lines.amin(0), lines.amax(0), color=colour, alpha=0.25, linewidth=0)
            axis.plot(steps, lines.mean(0), color=colour, label=label)
        unit = "nats to the teacher" if name == OnPolicyDistillation.__name__ else "letters"
        axis.set_title(name, fontsize=10)
        axis.set_ylabel(unit, fontsize=8)
        axis.grid(alpha=0.3)
    axes[0][0].legend(fontsize=8)
    for axis in axes[-1]:
        axis.set_xlabel("iteration", fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    """Runs all and draws them."""
    torch.set_num_threads(1)
    curves: dict[str, dict[str, list[list[float]]]] = {}
    for kind in TASKS:
        curves[kind.__name__] = {}
        for label, how in (("learns", None), ("shuffled", "shuffled")):
            found = []
            for seed in range(1, 6):
                with tempfile.TemporaryDirectory() as directory:
                    found.append(curve(Path(directory), seed, kind, how))
            curves[kind.__name__][label] = found
        print(kind.__name__, flush=True)
    draw(curves, Path(__file__).parents[1] / "docs" / "learning.png")


if __name__ == "__main__":
    main()

"""The ``evaluation:`` block of an on-policy algorithm: how often, on what, and by which judges and metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rlhf.data.dataset import Data
from rlhf.engines.inference.sampling import Sampling
from rlhf.errors import require
from rlhf.interfaces import EvaluationMetric, RewardModel, Selection

TAKEN = ("score", "score_std", "kl", "length", "truncated_fraction", "mixture_loss", "distinct_2", "ema")
"""What every evaluation has, and so no metric can be called."""


def named(metric: str, figures: Mapping[str, float]) -> dict[str, float]:
    """A metric's figures as they are logged, behind ``eval/``: "", and a figure that is its only one, as the metric."""
    alone = len(figures) == 1
    return {metric if alone or not name else f"{metric}/{name}": value for name, value in figures.items()}


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Sampling from fixed held-out prompts, the same random numbers every time.

    Args:
        every: Iterations between evaluations (the start and the end always count); 0 none at all.
        prompts: How many held-out prompts.
        rewards: Further judges by name, such as a known true reward: ``eval/<name>_score``.
        sampling: How to sample; null as in training.
        metrics: What else is measured, by names of your choice: ``eval/<name>/<figure>``, or ``eval/<name>`` where
            there is one figure.
    """

    every: int = 0
    prompts: int = 64
    rewards: dict[str, RewardModel] = field(default_factory=dict)
    sampling: Sampling | None = None
    metrics: dict[str, EvaluationMetric] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require(at_least=0, every=self.every)
        require(at_least=1, prompts=self.prompts)

    def samplings(self) -> dict[str, Sampling]:
        """Ways of sampling that are set here, by their place in the settings of the stage."""
        owners = {"evaluation": self, **{f"evaluation.metrics.{name}": metric for name, metric in self.metrics.items()}}
        found = {f"{place}.sampling": getattr(owner, "sampling", None) for place, owner in owners.items()}
        return {place: sampling for place, sampling in found.items() if isinstance(sampling, Sampling)}

    def judges(self) -> dict[str, RewardModel]:
        """Reward models that score held-out responses only, by their place in the settings of the stage."""
        found = {f"evaluation.rewards.{name}": reward for name, reward in self.rewards.items()}
        for name, metric in self.metrics.items():
            if isinstance(judge := getattr(metric, "judge", None), RewardModel):
                found[f"evaluation.metrics.{name}.judge"] = judge
        return found

    def check(self, data: Data, sampling: Sampling) -> list[str]:
        """Problems that are known before anything runs.

        Args:
            data: Prompts of the stage.
            sampling: That of its training.
        """
        problems = []
        if self.every and not data.holds_out:
            problems.append(
                f"evaluation.every: is {self.every}, but data holds out no prompt; raise data.eval_rows or "
                "data.eval_fraction, whichever is set, or set evaluation.every to 0"
            )
        if self.metrics and not self.every:
            problems.append(
                f"evaluation.metrics: has {', '.join(self.metrics)}, but evaluation.every is 0, so none is taken; set "
                "that, or leave the metrics out"
            )
        for name, metric in self.metrics.items():
            if not name or "/" in name:
                problems.append(
                    f"evaluation.metrics: {name!r} cannot be a metric's name, as its figures are eval/<name> or "
                    "eval/<name>/<figure>; give it one without a slash"
                )
            if name in TAKEN or name.endswith(("_score", "_score_std")):
                problems.append(
                    f"evaluation.metrics.{name}: eval/{name} is, or looks like, a figure of every evaluation or of "
                    "evaluation.rewards; give the metric another name"
                )
            found = metric.check(self.sampling or sampling)
            problems += [f"evaluation.metrics.{name}.{problem}" for problem in found]
        return problems

    def check_selection(self, select: Selection, *, averaged: bool, kl: bool, mixture: bool) -> list[str]:
        """Problems of a selection with these evaluations.

        Args:
            select: Of the stage.
            averaged: Whether the stage averages its weights.
            kl: Whether it has a reference.
            mixture: Whether it has a mixture.
        """
        judged = ["score", *(f"{name}_score" for name in self.rewards)]
        figures = [*judged, *(f"{name}_std" for name in judged), "length", "truncated_fraction", "distinct_2"]
        figures += ["kl"] * kl + ["mixture_loss"] * mixture
        prefixes = [f"{name}/" for name in judged]  # parts and sources
        for name, metric in self.metrics.items():
            if metric.figures is None:
                prefixes.append(f"{name}/")
            else:
                figures += named(name, dict.fromkeys(metric.figures, 0.0))
        found = select.check(every=self.every, averaged=averaged, figures=figures, prefixes=prefixes)
        return [f"select.{problem}" for problem in found]

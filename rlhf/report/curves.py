"""Which figures a report draws, together and under which names; the same for every algorithm that has them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlhf.report.runs import RunRecord, Series, StageRecord

MOST_POINTS = 800
"""Longer curves are drawn by the mean of several steps a point."""


@dataclass(frozen=True)
class Chart:
    """A picture of some figures.

    Attributes:
        title: What it shows.
        unit: Of the vertical axis.
        lines: Name of each line by figure. ``*`` in a figure's name stands for any word, which the title may repeat.
        against: By figure, the KL whose square root it is drawn against; empty where it is drawn over the training.
    """

    title: str
    unit: str
    lines: dict[str, str]
    against: dict[str, str] = field(default_factory=dict)


def _one(figure: str, title: str, unit: str) -> Chart:
    return Chart(title, unit, {figure: ""})


def _with_heldout(title: str, unit: str, rollouts: str, evaluation: str) -> Chart:
    """A figure of the rollouts with the same of the held-out prompts."""
    labels = {f"eval/{evaluation}": "held out", f"eval/ema/{evaluation}": "held out, EMA"}
    return Chart(title, unit, {rollouts: "rollouts", **labels})


GROUPS: dict[str, list[Chart]] = {
    "Reward": [
        Chart(
            "Score on held-out prompts", "per response", {"eval/score": "policy", "eval/ema/score": "its average (EMA)"}
        ),
        Chart(
            "Score by the judge “*”",
            "per response",
            {"eval/*_score": "policy", "eval/ema/*_score": "its average (EMA)"},
        ),
        _one("reward/score", "Score of the rollouts", "per response"),
        _one("reward/total", "Reward after the KL penalty", "per response"),
        _one("reward/*", "Part “*” of the score", "per response"),
        _one("select/step", "Step whose weights are the best so far", "optimiser step"),
    ],
    "Distance from the reference": [
        _with_heldout("KL from the reference", "nats per response", "kl/sequence", "kl"),
        Chart(
            "KL from the reference, by estimator",
            "nats per token",
            {"kl/ref_k1": "k1", "kl/ref_k2": "k2", "kl/ref_k3": "k3"},
        ),
        _one("kl/coef", "Weight of the KL penalty", "β"),
    ],
    "Answers": [
        _one("policy/entropy", "Entropy", "nats per token"),
        _with_heldout("Length", "tokens per response", "rollout/length", "length"),
        _with_heldout(
            "Cut by the length limit", "share of responses", "rollout/truncated_fraction", "truncated_fraction"
        ),
        Chart(
            "Different token pairs (distinct-2)",
            "share of all pairs",
            {"eval/distinct_2": "policy", "eval/ema/distinct_2": "its average (EMA)"},
        ),
    ],
    "Losses": [
        Chart("Loss", "nats", {"loss": "training", "eval/loss": "held out"}),
        _one("eval/perplexity", "Perplexity, held out", ""),
        Chart(
            "Accuracy: pairs ordered rightly",
            "share of pairs",
            {"accuracy": "training", "eval/accuracy": "held out"},
        ),
        Chart("Score of the chosen minus the rejected", "score", {"margin": "training", "eval/margin": "held out"}),
        _one("eval/ties", "Pairs of equal scores, held out", "share of pairs"),
        _one("loss/policy", "Policy loss", "per token"),
        _one("loss/value", "Value loss", "per token"),
    ],
    "Value": [
        _one("value/explained_variance", "Explained variance of the returns", "1 is perfect, below 0 harmful"),
        _one("advantage/std", "Deviation of the advantages", "per token"),
        _one("advantage/mean", "Mean of the advantages", "per token"),
    ],
    "Update": [
        _one("policy/approx_kl", "KL from the policy that sampled", "nats per token"),
        _one("policy/clip_fraction", "Clipped tokens", "share of tokens"),
        _one("policy/ratio_max", "Largest probability ratio", "new ÷ old"),
        _one("rollout/logprob_gap", "Trainer against sampler", "nats per token"),
        Chart(
            "Norm of the gradient, before clipping",
            "L2",
            {"grad_norm/policy": "policy or model", "grad_norm/value": "critic"},
        ),
        Chart("Learning rate", "", {"lr/policy": "policy or model", "lr/value": "critic"}),
        Chart("Norms of two gradients", "L2", {"gradient/policy_norm": "policy", "gradient/mixture_norm": "mixture"}),
        _one("gradient/cosine", "Angle between policy's and mixture's gradient", "cosine"),
    ],
    "Terms of the loss": [_one("loss/total", "All terms, weighted", ""), _one("loss/*", "Term “*”", "")],
    "Speed and memory": [
        Chart(
            "Tokens",
            "per second",
            {"throughput/rollout_tokens_per_s": "sampled", "throughput/train_tokens_per_s": "trained on"},
        ),
        _one("throughput/samples_per_s", "Responses, rows or pairs", "per second"),
        Chart(
            "Time",
            "seconds",
            {
                "time/rollout": "sampling",
                "time/score": "scoring",
                "time/train": "updating",
                "time/switch": "switching",
                "time/save": "saving",
            },
        ),
        _one("memory/peak_gb", "Peak memory", "GB"),
    ],
}
FRONTIER = "Reward against distance"
BY_SOURCE = "By source"
SOURCE = re.compile("(.+)/source/(.+)")
FURTHER = "Further figures"
OPEN = ("Reward", "Distance from the reference", FRONTIER, "Answers", "Losses", "Value", BY_SOURCE, FURTHER)
"""Groups that are unfolded when the page opens."""
TOLD_ELSEWHERE = ("update/", "data/", "normalisation/", "select/iteration")


def charts(names: Iterable[str]) -> dict[str, list[Chart]]:
    """The charts of the given figures, by group, patterns filled in; every figure stands in one of them at most."""
    left = [name for name in names if not name.startswith(TOLD_ELSEWHERE)]
    groups: dict[str, list[Chart]] = {}
    for group, patterns in GROUPS.items():
        found = [chart for pattern in patterns for chart in _filled(pattern, left)]
        if found:
            groups[group] = found
    by_source: dict[str, dict[str, str]] = {}
    for name in [*left]:
        if match := SOURCE.fullmatch(name):
            by_source.setdefault(match[1], {})[name] = match[2]
            left.remove(name)
    if by_source:
        groups[BY_SOURCE] = [Chart(f"{figure}, by source", "", lines) for figure, lines in by_source.items()]
    further = [chart for name in left if not name.endswith("_std") and (chart := _further(name, left))]
    return {**groups, FURTHER: further} if further else groups


def _further(name: str, left: list[str]) -> Chart | None:
    """A figure that nobody knows, the average's beside the policy's; None for the average's then."""
    average = name.replace("eval/", "eval/ema/", 1)
    if name.startswith("eval/") and average in left:
        return Chart(name, "", {name: "policy", average: "its average (EMA)"})
    beside = name.startswith("eval/ema/") and name.replace("eval/ema/", "eval/", 1) in left
    return None if beside else _one(name, name, "")


def frontiers(names: Sequence[str]) -> list[Chart]:
    """What was gained for how much distance: each judge's score against √KL, over the evaluations.

    Source: arXiv:2210.10760, whose d is √KL.
    """
    found = []
    for name in names:
        match = re.fullmatch("eval/(?:([^/]+)_)?score", name)
        if match is None or "eval/kl" not in names:
            continue
        average = name.replace("eval/", "eval/ema/", 1)
        lines, against = {name: "policy"}, {name: "eval/kl"}
        if average in names and "eval/ema/kl" in names:
            lines[average], against[average] = "its average (EMA)", "eval/ema/kl"
        title = "KL–reward frontier" + (f" by the judge “{match[1]}”" if match[1] else "")
        found.append(Chart(title, "per response", lines, against))
    return found


def _filled(pattern: Chart, left: list[str]) -> list[Chart]:
    """The charts of a pattern for those figures that are left, which are taken out."""
    words: dict[str, dict[str, str]] = {}
    for figure, label in pattern.lines.items():
        expression = re.compile(re.escape(figure).replace(r"\*", "([^/]+)"))
        for name in [*left]:
            if match := expression.fullmatch(name):
                words.setdefault("".join(match.groups()), {})[name] = label
                left.remove(name)
    return [Chart(pattern.title.replace("*", word), pattern.unit, lines) for word, lines in words.items()]


def traces(
    chart: Chart, stages: Sequence[tuple[RunRecord, StageRecord]], runs: Sequence[RunRecord]
) -> list[dict[str, Any]]:
    """The lines of a chart, as the page draws them: each run's stage by each figure.

    Args:
        chart: What to draw.
        stages: The runs that have the stage, with it.
        runs: All runs of the page: a run has one colour throughout.
    """
    found, several = [], len(runs) > 1
    by_iteration = all(stage.progress for _, stage in stages)
    for run, stage in stages:
        for index, (figure, label) in enumerate(chart.lines.items()):
            series = stage.series(figure)
            if chart.against:
                series, places = _with_distances(series, stage.series(chart.against[figure]))
            else:
                series = thinned(series, largest=figure.endswith("_max"))
                places = [stage.progress.get(at, at) for at in series.steps] if by_iteration else series.steps
            if series.values:
                names = [run.name if several else "", label if len(chart.lines) > 1 else ""]
                found.append(
                    {
                        "x": places,
                        "y": series.values,
                        "steps": series.steps if by_iteration or chart.against else None,
                        "name": " · ".join(part for part in names if part) or figure,
                        "figure": figure,
                        "colour": runs.index(run) if several else index,
                        "dash": index if several else 0,
                    }
                )
    return found


def _with_distances(series: Series, kl: Series) -> tuple[Series, list[float]]:
    """The points of a figure where the KL is known too, and its square roots; an estimate below 0 counts as 0."""
    known = dict(zip(kl.steps, kl.values, strict=True))
    rows = [row for row in zip(*series, strict=True) if row[0] in known]
    steps, values, iterations = (list(column) for column in zip(*rows, strict=True)) if rows else ([], [], [])
    return Series(steps, values, iterations), [math.sqrt(max(known[step], 0.0)) for step in steps]


def steady(lines: Sequence[dict[str, Any]]) -> bool:
    """Whether no line of a chart has two points, or none moves: its noise would fill the picture."""
    values = [value for line in lines for value in line["y"]]
    size = max((abs(value) for value in values), default=0.0)
    still = size < 1e-6 or max(values) - min(values) <= min(1e-3 * size, 1.0)
    return still or all(len(line["y"]) < 2 for line in lines)


def thinned(series: Series, *, largest: bool = False, most: int = MOST_POINTS) -> Series:
    """At most ``most`` points, each the mean (or the largest) of equally many steps, at the last of them."""
    every = -(-len(series.values) // most)
    if every <= 1:
        return series
    ends = [*range(every, len(series.values), every), len(series.values)]
    parts = [series.values[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]
    values = [max(part) if largest else sum(part) / len(part) for part in parts]
    return Series([series.steps[end - 1] for end in ends], values, [series.iterations[end - 1] for end in ends])

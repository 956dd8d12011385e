"""Figures per token of sampled rollouts, as the page colours them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from rlhf.report.measures import Kind, word_in
from rlhf.report.runs import StageRecord
from rlhf.report.samples import evenly, places


class Layer(NamedTuple):
    """One figure by which tokens can be coloured.

    Attributes:
        key: Short name, for the page.
        title: What it is.
        unit: Its unit.
        needs: The columns of a rollout row that it is made of.
        of: From one token's entries in these columns.
    """

    key: str
    title: str
    unit: str
    needs: tuple[str, ...]
    of: Callable[..., float]


def _k3(old: float, ref: float) -> float:
    gap = min(ref - old, 700.0)  # beyond it the exponential has no number
    return math.expm1(gap) - gap


LAYERS = (
    Layer("advantage", "Advantage", "", ("advantages",), lambda a: a),
    Layer("change", "Log-prob minus the reference’s", "nats", ("old_logprobs", "ref_logprobs"), lambda a, b: a - b),
    Layer("kl", "KL from the reference (k3)", "nats", ("old_logprobs", "ref_logprobs"), _k3),
    Layer("reward", "Reward", "", ("rewards",), lambda a: a),
    Layer("value", "Value", "", ("values",), lambda a: a),
    Layer("logprob", "Log-prob", "nats", ("old_logprobs",), lambda a: a),
    Layer("gap", "Trainer against sampler", "nats", ("old_logprobs", "rollout_logprobs"), lambda a, b: a - b),
)


class Sampled(NamedTuple):
    """A rollout to be coloured.

    Attributes:
        iteration: In which it was sampled.
        prompt: Its prompt.
        score: Its score after normalisation and penalties.
        counted: As much of it as the update took, where ``score_clip`` bounds it.
        paid: What the reward model said of it, and the parts of that; empty in an older run.
        tokens: Text of each token.
        layers: A figure per token, by layer.
    """

    iteration: int
    prompt: str
    score: float | None
    counted: float | None
    paid: dict[str, float]
    tokens: list[str]
    layers: dict[str, list[float | None]]


def sampled(stage: StageRecord, iterations: int = 3) -> list[Sampled]:
    """The worst and the best of the rollouts kept of a few iterations from the first to the last."""
    found = []
    clip = (stage.settings.get("init_args") or {}).get("score_clip")
    for number, path in evenly(list(stage.rollout_files("iteration").items()), iterations):
        rows = [row for row in stage.rows(path) if row.get("tokens")]
        rows.sort(key=lambda row: row.get("score") or 0.0)
        found += [_sampled(number, row, clip) for row in ([rows[-1], rows[0]] if len(rows) > 1 else rows)]
    return found


def _sampled(iteration: int, row: dict[str, Any], clip: float | None) -> Sampled:
    texts = row.get("token_texts") or [f"‹{token}›" for token in row["tokens"]]
    layers = {
        layer.key: [finite(layer.of(*entries)) for entries in zip(*(row[name] for name in layer.needs), strict=True)]
        for layer in LAYERS
        if all(name in row for name in layer.needs)
    }
    paid = {"score": row["raw_score"]} if "raw_score" in row else {}
    paid |= {name.removeprefix("reward/"): value for name, value in row.items() if name.startswith("reward/")}
    score = finite(row.get("score"))
    counted = score if score is None or clip is None else max(-clip, min(clip, score))
    return Sampled(iteration, str(row["prompt"]), score, counted, paid, texts, layers)


def of_word(tokens: Sequence[str], kind: Kind, word: str) -> set[int]:
    """The places of the tokens that are, or are part of, the word that a trait of this kind counts."""
    text = "".join(tokens)
    ends = list(itertools.accumulate(map(len, tokens)))
    spans = places(text, word_in(text, kind, word))
    return {
        at
        for at, (end, token) in enumerate(zip(ends, tokens, strict=True))
        if any(end - len(token) < last and first < end for first, last in spans)
    }


def finite(value: float | None) -> float | None:
    """The number, or None for what is none: JSON has no word for it."""
    return value if value is not None and math.isfinite(value) else None


def scales(rollouts: Sequence[Sampled]) -> Iterator[dict[str, Any]]:
    """The layers that the rollouts have, each with the size at which its colour is full: 98 % of tokens are below."""
    for layer in LAYERS:
        sizes = sorted(abs(v) for one in rollouts for v in one.layers.get(layer.key, []) if v is not None)
        if sizes:
            limit = sizes[min(len(sizes) - 1, int(0.98 * len(sizes)))] or sizes[-1] or 1.0
            yield {"key": layer.key, "title": layer.title, "unit": layer.unit, "limit": limit}

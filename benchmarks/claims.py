"""Two claims of InstructGPT in the built-in world, over seeds: what the mixture keeps, and what the EMA is worth.

    python benchmarks/claims.py --seeds 1 2 3 4 5

Each seed trains a model on the world's running text, and from it the supervised and the reward model of the quickstart,
once; then PPO with that text mixed in and PPO without. Both are evaluated every few iterations on the same held-out
prompts with the same random numbers, and by the perplexity of held-out text. Prints paired differences with Student-t
95% intervals:

- the mixture: the log of the perplexity with it minus without, at the end, and where the two have reached the same
  score of the reward model (the lower one's final score, between evaluations by straight lines);
- the EMA: its gold minus the last policy's, and how much either moves between neighbouring evaluations in the second
  half of the run (root mean square, in standard deviations of the supervised policy's gold).

Stages that are finished already are kept, so it can be interrupted. Needs the extra ``demo``.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import over_seeds
from over_seeds import per

Curve = list[dict[str, float]]
"""The evaluations of a run, in order."""
TEXT = "eval/text_perplexity"


def crossing(curve: Sequence[Mapping[str, float]], name: str, level: float) -> float:
    """Where a figure first reaches a level, in evaluations and parts of them; the last one where it never does."""
    for index in range(1, len(curve)):
        before, after = curve[index - 1][name], curve[index][name]
        if before < level <= after:
            return index - 1 + (level - before) / (after - before)
    return float(len(curve) - 1)


def at(curve: Sequence[Mapping[str, float]], name: str, place: float) -> float:
    """A figure between two evaluations, on a straight line."""
    index = min(int(place), len(curve) - 2)
    share = place - index
    return (1 - share) * curve[index][name] + share * curve[index + 1][name]


def movement(curve: Sequence[Mapping[str, float]], name: str) -> float:
    """Root mean square of what a figure changes by from one evaluation to the next, in the second half."""
    half = [point[name] for point in curve[len(curve) // 2 :]]
    steps = [after - before for before, after in itertools.pairwise(half)]
    return per(sum(step * step for step in steps), len(steps)) ** 0.5


def compare(with_mixture: Curve, without: Curve) -> dict[str, float]:
    """The figures of one seed."""
    start, deviation = with_mixture[0], with_mixture[0]["eval/gold_score_std"]
    last, bare = with_mixture[-1], without[-1]
    level = min(last["eval/score"], bare["eval/score"])

    def log_perplexity(curve: Curve, place: float) -> float:
        return math.log(at(curve, TEXT, place))

    equal = [log_perplexity(curve, crossing(curve, "eval/score", level)) for curve in (with_mixture, without)]
    average = "eval/ema/gold_score"
    return {
        "supervised: perplexity of text": start[TEXT],
        "with the mixture: perplexity of text": last[TEXT],
        "without: perplexity of text": bare[TEXT],
        "mixture: log-perplexity, with − without, at the end": math.log(last[TEXT]) - math.log(bare[TEXT]),
        "mixture: log-perplexity, with − without, at equal score": equal[0] - equal[1],
        "mixture: gold, with − without (deviations)": per(last["eval/gold_score"] - bare["eval/gold_score"], deviation),
        "mixture: KL, with − without (nats)": last["eval/kl"] - bare["eval/kl"],
        "EMA: gold, average − last policy (deviations)": per(last[average] - last["eval/gold_score"], deviation),
        "EMA: movement, average − policy (deviations)": per(
            movement(with_mixture[1:], average) - movement(with_mixture[1:], "eval/gold_score"), deviation
        ),
        "EMA: KL, average − last policy (nats)": last["eval/ema/kl"] - last["eval/kl"],
    }


def pretrained_first(experiment: Any) -> dict[str, Any]:
    """The stages before PPO, the supervised one from a model that has learned running text."""
    from rlhf.data.sources import World
    from rlhf.models.policy import Pretrained

    sft = experiment.stages["sft"]
    data = dataclasses.replace(sft.data, sources={"texts": World(form="passages", rows=16000)})
    pretraining = dataclasses.replace(sft, data=data, train_on_prompt=True)
    supervised = dataclasses.replace(sft, policy=Pretrained(path="@pretrain"))
    return {"pretrain": pretraining, "sft": supervised, "reward": experiment.stages["reward"]}


def run_seed(base: over_seeds.Base, seed: int, every: int) -> dict[str, float]:
    """Both runs of a seed, evaluated every so many iterations, and what they say."""
    from rlhf.algorithms.evaluation_metrics import Perplexity
    from rlhf.metrics import read_metrics
    from rlhf.stages.settings import resolve

    whole = base.seed(seed)
    before = dataclasses.replace(whole, stages=pretrained_first(whole))
    before.run()
    ppo: Any = resolve(whole.stages["ppo"], before.folders())
    texts = dataclasses.replace(ppo.mixture.data, eval_rows=256)
    metrics = {"text_perplexity": Perplexity(data=texts)}
    ppo = dataclasses.replace(ppo, evaluation=dataclasses.replace(ppo.evaluation, every=every, metrics=metrics))
    curves = []
    for suffix, stage in (("mixture", ppo), ("no-mixture", dataclasses.replace(ppo, mixture=None))):
        directory = base.run_ppo(whole, suffix, stage)
        curves.append([row for row in read_metrics(directory) if "eval/score" in row])
    return compare(*curves)


if __name__ == "__main__":
    over_seeds.main(
        run_seed,
        __doc__,
        config="experiments/quickstart.yaml",
        output_dir="runs/claims",
        own=("every", 5, "iterations between evaluations"),
    )

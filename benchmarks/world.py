"""What the pipeline learns in the built-in world, over seeds.

    python benchmarks/world.py --config experiments/world.yaml --seeds 1 2 3 4 5

Runs the experiment once per seed, PPO once more without a KL penalty and at a higher learning rate, and prints a
Markdown table of means with Student-t 95% intervals over seeds. Stages that are finished already are kept, so it can be
interrupted. Gains are in standard deviations of the supervised policy's gold over the 256 held-out prompts' responses.
Needs the extra ``demo``.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import over_seeds
from over_seeds import per


def accuracy(folder: Path, template: Any, rows: Sequence[dict[str, Any]]) -> float:
    """Strict accuracy of a saved reward model on comparisons."""
    import torch

    from rlhf.data.collate import collate_comparisons
    from rlhf.data.examples import ComparisonExample
    from rlhf.engines.local import Local
    from rlhf.models.storage import load_value_model
    from rlhf.models.tokenizer import pad_id

    model, tokenizer = load_value_model(folder)
    examples = [
        ComparisonExample(
            prompt_ids=template.prompt(row["prompt"], tokenizer),
            chosen_ids=template.response(row["chosen"], tokenizer),
            rejected_ids=template.response(row["rejected"], tokenizer),
            margin=0.0,
            weight=1.0,
        )
        for row in rows
    ]
    batch = collate_comparisons(examples, pad_id=pad_id(tokenizer))
    outputs = Local().build(model).evaluate(batch.split(64), want=("scores",))
    scores = torch.cat([output.scores for output in outputs if output.scores is not None])
    return float((scores[0::2] > scores[1::2]).double().mean())


def shuffled(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same pairs, each under another row's prompt."""
    prompts = [row["prompt"] for row in rows]
    random.Random(0).shuffle(prompts)
    return [{**row, "prompt": prompt} for row, prompt in zip(rows, prompts, strict=True)]


def gains(directory: Path) -> dict[str, float]:
    """What a PPO stage gained between its first and its last evaluation."""
    from rlhf.metrics import read_metrics

    evaluations = [row for row in read_metrics(directory) if "eval/gold_score" in row]
    first, last = evaluations[0], evaluations[-1]
    deviation = first["eval/gold_score_std"]
    proxy = per(last["eval/score"] - first["eval/score"], first["eval/score_std"])

    def gain(name: str) -> float:
        return per(last[name] - first["eval/gold_score"], deviation)

    return {
        "SFT gold": first["eval/gold_score"],
        "PPO gold": last["eval/gold_score"],
        "gold gain of PPO (SFT deviations)": gain("eval/gold_score"),
        "gold gain of its EMA": gain("eval/ema/gold_score"),
        "reward-model gain of PPO (SFT deviations)": proxy,
        "KL from SFT (nats per response)": last["eval/kl"],
        "distinct-2 relative to SFT": per(last["eval/distinct_2"], first["eval/distinct_2"]),
    }


def run_seed(base: over_seeds.Base, seed: int, rows: int) -> dict[str, float]:
    """One seed's figures; the reward model is judged on ``rows`` held-out comparisons and pairs."""
    from rlhf.algorithms.kl import KL, Fixed
    from rlhf.data import world
    from rlhf.stages.settings import resolve

    experiment = base.seed(seed)
    experiment.run()
    ppo: Any = resolve(experiment.stages["ppo"], experiment.folders())
    faster = dataclasses.replace(ppo.optimizer, lr=5e-4)  # far enough to see where it leads
    free = dataclasses.replace(ppo, kl=KL(controller=Fixed(coef=0.0)), optimizer=faster)
    unpenalised = base.run_ppo(experiment, "no-kl", free)

    figures = gains(experiment.directory / "ppo")
    reward, template = experiment.directory / "reward" / "model", ppo.data.template
    mixed = list(world.comparisons(rows, seed=1000 + seed, held_out=True))
    fit = list(world.fit_pairs(rows, seed=1000 + seed, held_out=True))
    prompts = [row["prompt"] for row in world.prompts(256, seed=1000 + seed)]
    figures |= {
        "best constant response, gold": world.best_constant_response(prompts, seed=seed)[1],
        "reward model, held-out accuracy": accuracy(reward, template, mixed),
        "its noise ceiling": world.noise_ceiling(rows, seed=1000 + seed, held_out=True),
        "reward model, pairs that differ only in fit": accuracy(reward, template, fit),
        "the same, prompts shuffled": accuracy(reward, template, shuffled(fit)),
    }
    without = gains(unpenalised)
    figures |= {
        "without KL penalty: gold gain": without["gold gain of PPO (SFT deviations)"],
        "without KL penalty: reward-model gain": without["reward-model gain of PPO (SFT deviations)"],
        "without KL penalty: KL": without["KL from SFT (nats per response)"],
    }
    return figures


if __name__ == "__main__":
    over_seeds.main(
        run_seed,
        __doc__,
        config="experiments/world.yaml",
        output_dir="runs/world",
        own=("rows", 2000, "held-out rows that the reward model is judged on"),
    )

"""Proxy and gold against the distance from the start: how far a learnt reward can be trusted, by its size and data.

    python benchmarks/overoptimisation.py

In the built-in world the true reward is known (gold). The supervised model of the quickstart is trained once; then, for
each width of reward model and number of comparisons, a reward model from a supervised model of that width, and PPO
against it without a KL penalty, evaluated every few iterations on held-out prompts.

Writes ``overoptimisation.png``: the proxy's score and gold, both in standard deviations of the supervised policy's,
against √KL (as arXiv:2210.10760, figure 1: gold rises, then falls, while the proxy goes on rising). Prints a Markdown
table: how many held-out comparisons the reward model orders as the annotators did, the largest gold, the KL where it is
(the onset of over-optimisation), and both at the end. Reward models that are wider than the quickstart's have a lower
learning rate, in proportion (as arXiv:2203.03466 has it for Adam and hidden matrices): at the quickstart's they would
not learn.

Stages that are finished already are kept, so it can be interrupted. Needs the extra ``demo``.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import over_seeds
from over_seeds import per


class Cell(NamedTuple):
    """A reward model: width of its trunk, and comparisons that it learns from."""

    width: int
    pairs: int


class Point(NamedTuple):
    """An evaluation: nats from the start, and both rewards in the start's standard deviations."""

    kl: float
    proxy: float
    gold: float


def points(evaluations: Sequence[Mapping[str, float]]) -> list[Point]:
    """The evaluations of a run, beginning with the supervised policy's."""
    start = evaluations[0]
    return [
        Point(
            max(row["eval/kl"], 0.0),
            per(row["eval/score"] - start["eval/score"], start["eval/score_std"]),
            per(row["eval/gold_score"] - start["eval/gold_score"], start["eval/gold_score_std"]),
        )
        for row in evaluations
    ]


def onset(curve: Sequence[Point]) -> Point:
    """Where gold is largest."""
    return max(curve, key=lambda point: point.gold)


def reward_stages(quickstart: Any, cell: Cell) -> dict[str, Any]:
    """The quickstart's supervised model in another width, and a reward model from it on so many mixed comparisons."""
    from rlhf.data.blenders import Proportional
    from rlhf.data.sources import World
    from rlhf.models.policy import Pretrained

    slower = min(1.0, quickstart.stages["sft"].policy.config["hidden_size"] / cell.width)

    def paced(stage: Any) -> Any:
        optimizer = dataclasses.replace(stage.optimizer, lr=stage.optimizer.lr * slower)
        return dataclasses.replace(stage, optimizer=optimizer)

    sft, stage = (paced(quickstart.stages[name]) for name in ("sft", "reward"))
    sizes = {"hidden_size": cell.width, "intermediate_size": 8 * (cell.width // 3)}
    trunk = dataclasses.replace(sft, policy=dataclasses.replace(sft.policy, config={**sft.policy.config, **sizes}))
    source = World(form="comparisons", rows=cell.pairs, options={"fit_fraction": 0.4, "doubled": 0.5})
    heldout = World(form="comparisons", rows=512, seed=1)
    data = dataclasses.replace(
        stage.data, sources={"mixed": source}, eval_sources={"held_out": heldout}, eval_rows=0, blender=Proportional()
    )
    epochs = max(1.0, min(4.0, 8000 / cell.pairs))  # few comparisons are seen several times
    reward = dataclasses.replace(stage, model=Pretrained(path="@trunk"), data=data, epochs=epochs, eval_every=0)
    return {"trunk": trunk, "reward": reward}


def supervised(whole: Any) -> Any:
    """The quickstart's supervised stage alone, which all reward models share."""
    return dataclasses.replace(whole, name="supervised", stages={"sft": whole.stages["sft"]})


def run_cell(base: over_seeds.Base, cell: Cell, seed: int, every: int) -> tuple[float, list[dict[str, float]]]:
    """Share of held-out comparisons that a reward model orders as the annotators did, and PPO's evaluations."""
    from rlhf.algorithms.kl import KL, Fixed
    from rlhf.experiment import Experiment
    from rlhf.metrics import read_metrics

    whole = base.load(seed=str(seed))
    sft = str(supervised(whole).directory / "sft" / "model")
    name = f"width-{cell.width}-pairs-{cell.pairs}"
    ppo = whole.stages["ppo"]
    arm = Experiment(
        name=name,
        output_dir=base.output_dir,
        seed=seed,
        threads=whole.threads,
        stages={
            **reward_stages(whole, cell),
            "ppo": dataclasses.replace(
                ppo,
                policy=dataclasses.replace(ppo.policy, path=sft),
                kl=KL(controller=Fixed(coef=0.0)),
                mixture=None,
                averaging=None,
                optimizer=dataclasses.replace(ppo.optimizer, lr=5e-4),
                evaluation=dataclasses.replace(ppo.evaluation, every=every),
            ),
        },
    )
    arm.run()
    accuracy = [row["eval/accuracy"] for row in read_metrics(arm.directory / "reward") if "eval/accuracy" in row][-1]
    return accuracy, [row for row in read_metrics(arm.directory / "ppo") if "eval/gold_score" in row]


def draw(curves: Mapping[Cell, Sequence[Point]], path: Path) -> None:
    """A panel for each number of comparisons, a colour for each width; proxy dashed, gold solid."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    pairs = sorted({cell.pairs for cell in curves})
    widths = sorted({cell.width for cell in curves})
    figure, axes = plt.subplots(1, len(pairs), figsize=(5.2 * len(pairs), 4), sharey=True, squeeze=False)
    for axis, number in zip(axes[0], pairs, strict=True):
        for colour, width in enumerate(widths):
            curve = curves.get(Cell(width, number))
            if curve is None:
                continue
            distance = [point.kl**0.5 for point in curve]
            style = {"color": f"C{colour}", "linewidth": 1.8}
            axis.plot(distance, [point.gold for point in curve], label=f"width {width}: gold", **style)
            axis.plot(distance, [point.proxy for point in curve], "--", label=f"width {width}: proxy", **style)
            best = onset(curve)
            axis.plot([best.kl**0.5], [best.gold], "o", color=f"C{colour}")
        axis.set_title(f"{number:,} comparisons")
        axis.set_xlabel("√KL from the supervised policy (nats)")
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("gain, in deviations of the supervised policy's")
    axes[0][-1].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)


def table(curves: Mapping[Cell, Sequence[Point]], accuracies: Mapping[Cell, float]) -> str:
    """Markdown: a line for each reward model."""
    lines = [
        "| width | comparisons | accuracy | largest gold | KL there | gold, at the end | proxy | KL |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for cell, curve in curves.items():
        best, last = onset(curve), curve[-1]
        figures = (accuracies[cell], best.gold, best.kl, last.gold, last.proxy, last.kl)
        lines.append(f"| {cell.width} | {cell.pairs:,} | " + " | ".join(f"{value:.2f}" for value in figures) + " |")
    return "\n".join(lines)


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="experiments/quickstart.yaml")
    parser.add_argument("--widths", type=int, nargs="+", default=[32, 96, 192], help="multiples of 8")
    parser.add_argument("--pairs", type=int, nargs="+", default=[500, 8000])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--every", type=int, default=5, help="iterations between evaluations")
    parser.add_argument("--output_dir", default="runs/overoptimisation")
    parser.add_argument("--processes", type=int, default=2, help="reward models at once")
    over_seeds.add_set(parser)
    options = parser.parse_args()
    base = over_seeds.base(options)
    supervised(base.load(seed=str(options.seed))).run()
    cells = [Cell(width, pairs) for pairs in options.pairs for width in options.widths]
    jobs = [(base, cell, options.seed, options.every) for cell in cells]
    runs = dict(zip(cells, over_seeds.in_processes(run_cell, jobs, options.processes), strict=True))
    curves = {cell: points(evaluations) for cell, (_, evaluations) in runs.items()}
    picture = Path(options.output_dir) / "overoptimisation.png"
    draw(curves, picture)
    print(table(curves, {cell: accuracy for cell, (accuracy, _) in runs.items()}))
    print(f"\n{picture}")


if __name__ == "__main__":
    main()

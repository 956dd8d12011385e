"""Grids whose cells were finished by hand, so that a test says exactly which figures a table is made of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import forked_cells
import run_folders

from rlhf.config import dump
from rlhf.grid.cells import Cell, cells
from rlhf.grid.settings import Grid, Metric

AXES = {"clip": {"on": {"stages.ppo.score_clip": 1.0}, "off": {"stages.ppo.score_clip": None}}}
EVALUATED = {
    "stages.ppo.evaluation.every": 1,
    "stages.ppo.evaluation.prompts": 2,
    "stages.ppo.evaluation.rewards": {
        "gold": {"class_path": "FunctionReward", "init_args": {"function": "tiny_runs.letters"}}
    },
}
GOLD = {"clip=on": [1.0, 2.0, 3.0], "clip=off": [1.5, 2.25, 3.9]}
"""By variant, of seeds 1, 2, 3. The differences, off − on, are 0.5, 0.25 and 0.9."""


def grid(folder: Path, **settings: Any) -> tuple[Grid, list[Cell]]:
    """A grid of tiny experiments and its cells, of which nothing has run."""
    (folder / "base.yaml").write_text(forked_cells.BASE)
    found = {"name": "g", "base": str(folder / "base.yaml"), "axes": AXES, "seeds": [1, 2, 3], **settings}
    found["overrides"] = EVALUATED
    found.setdefault("metrics", {"gold": Metric(name="eval/gold_score")})
    made = Grid(output_dir=str(folder / "runs"), executor=forked_cells.Forked(), **found)
    return made, cells(made)


def finish(cell: Cell, *evaluations: dict[str, float | None], answers: Any = ()) -> None:
    """A finished cell whose last stage was evaluated so often: before it learnt, and after each iteration."""
    folder = cell.experiment.directory
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(dump(cell.experiment))
    (folder / "cell.yaml").write_text(dump(cell.experiment))
    (folder / "output.log").write_text("said\n")
    lines = [{"step": 2 * at, "iteration": at, **figures} for at, figures in enumerate(evaluations)]
    run_folders.stage(folder / "sft", [{"step": 1, "loss": 1.0}])
    run_folders.stage(folder / "ppo", lines)
    for stage, key in (("sft", f"sft{cell.seed}"), ("ppo", cell.name)):
        (folder / stage / "stage.json").write_text(json.dumps({"key": key, "id": key}))
    for iteration, rows in enumerate(answers):
        run_folders.evaluation(folder / "ppo", iteration, rows)


def whole(folder: Path, gold: dict[str, list[float]] | None = None, **settings: Any) -> tuple[Grid, list[Cell]]:
    """A grid that is finished: gold begins at 0 and ends where it is said to, at a KL of 4 nats."""
    made, found = grid(folder, **settings)
    wanted = GOLD if gold is None else gold
    for cell in found:
        end = wanted[cell.variant][cell.seed - 1]
        finish(
            cell,
            {"eval/gold_score": 0.0, "eval/score": 0.0, "eval/kl": 0.0},
            {"eval/gold_score": end, "eval/score": 2 * end, "eval/kl": 4.0},
            answers=[
                [("p", "before", 0.0), ("q", "before", 0.0)],
                [("p", f"{cell.variant} good", end), ("q", "same", 1.0)],
            ],
        )
    return made, found

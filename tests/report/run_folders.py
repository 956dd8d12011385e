"""Folders of runs written by hand, so that a test says exactly which figures a report is made of."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlhf.yaml_files import write

NASTY = "<script>alert(1)</script>"


def stage(folder: Path, lines: Sequence[dict[str, Any]], *, done: bool = True, data: Any = None) -> Path:
    """A stage's folder with these lines of figures."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "stage.json").write_text("{}")
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if done:
        (folder / "done.json").write_text(json.dumps({"figures": {}, "seconds": 75.0}))
    if data is not None:
        (folder / "data.json").write_text(json.dumps(data))
    return folder


def curve(name: str, *values: float | None) -> list[dict[str, Any]]:
    """One line a step with this figure."""
    return [{"step": step, "iteration": step, name: value} for step, value in enumerate(values, 1)]


def evaluation(folder: Path, iteration: int, rows: Sequence[tuple[str, str, float]], **columns: Any) -> None:
    """An evaluation's rows: prompt, response, score; and what else stands in each."""
    rollouts = folder / "rollouts"
    rollouts.mkdir(exist_ok=True)
    lines = [{"prompt": p, "response": r, "ended": True, "score": s, "gold_score": -s, **columns} for p, r, s in rows]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (rollouts / f"evaluation_{iteration:06d}.jsonl").write_text(text)
    (rollouts / f"evaluation_{iteration:06d}_ema.jsonl").write_text(text)


def sampled(folder: Path, iteration: int, *, texts: Sequence[str], score: float = 1.0, **columns: Any) -> None:
    """A kept rollout with figures per token."""
    rollouts = folder / "rollouts"
    rollouts.mkdir(exist_ok=True)
    count = len(texts)
    row = {
        "prompt": "p",
        "response": "".join(texts),
        "ended": True,
        "score": score,
        "raw_score": 2 * score,
        "tokens": list(range(count)),
        "token_texts": list(texts),
        "old_logprobs": [-1.0] * count,
        "rollout_logprobs": [-1.0] * count,
        "ref_logprobs": [-2.0] * count,
        "rewards": [0.0] * count,
        "advantages": [0.5] * count,
        **columns,
    }
    with (rollouts / f"iteration_{iteration:06d}.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")


def config(folder: Path, stages: dict[str, Any], **settings: Any) -> Path:
    """The run's config.yaml."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(write({"name": folder.name, "seed": 1, "stages": stages, **settings}))
    return folder


def simple(folder: Path, *, response: str = "good", done: bool = True, lr: float = 1e-3) -> Path:
    """A run of two stages whose second has everything a report shows."""
    sft = {"class_path": "rlhf.SFT", "init_args": {"steps": 3}}
    policy = {"class_path": "rlhf.Pretrained", "init_args": {"path": "@sft"}}
    optimizer = {"class_path": "rlhf.AdamW", "init_args": {"lr": lr}}
    ppo = {"class_path": "rlhf.PPO", "init_args": {"policy": policy, "optimizer": optimizer, "iterations": 2}}
    config(folder, {"sft": sft, "ppo": ppo})
    counts = {"train": 9, "heldout": 2, "dropped": {"long_prompt": 1}, "notes": {}, "remark": "a remark"}
    stage(
        folder / "sft", [{"step": n, "loss": 3.0 - n, "eval/loss": 2.0} for n in (1, 2)], data={"data": {"toy": counts}}
    )
    lines = [{"step": n, "iteration": n, "eval/score": n / 2, "kl/sequence": n, "mine/own": n} for n in (1, 2)]
    ppo_folder = stage(folder / "ppo", lines, done=done)
    evaluation(ppo_folder, 0, [("why?", "so", 0.0), ("who?", "me", 1.0)])
    evaluation(ppo_folder, 2, [("why?", response, 2.0), ("who?", "you", 1.0)])
    sampled(ppo_folder, 1, texts=["a", response])
    return folder

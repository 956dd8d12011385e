"""How much of a grid's time is lost: twelve cells that share a supervised and a reward model, on a pool of two.

    python benchmarks/grid.py

Runs 2 × 2 variants of the quickstart's PPO with three seeds each, which vary PPO alone, and compares the wall time of
the whole command with what it cannot fall below: the shared stages, which one cell makes while nobody else can begin,
and half of all the rest, process starts included. What is above is the grid's own start, and slots that stood empty.
Ten minutes on two cores; the grid and its report are kept in ``--output_dir``. Needs the extra ``grid``.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from rlhf.grid.plan import spent
from rlhf.stages.folder import read_json
from rlhf.yaml_files import write

ROOT = Path(__file__).parents[1]
DONE = re.compile(r"\S+ (?P<cell>\S+): done in (?P<seconds>\d+) s ")


def grid(base: Path, output: Path, iterations: int) -> dict[str, Any]:
    """The grid's settings."""
    ppo = {"mixture": None, "averaging": None, "iterations": iterations, "evaluation.every": iterations}
    return {
        "name": "wall",
        "base": str(base),
        "output_dir": str(output),
        "overrides": {f"stages.ppo.{key}": value for key, value in ppo.items()},
        "seeds": [1, 2, 3],
        "seed_stages": ["ppo"],
        "axes": {
            "stages.ppo.advantage.whiten": {"on": True, "off": False},
            "stages.ppo.kl.controller.coef": [0.05, 0.1],
        },
        "metrics": {"gold": {"name": "eval/gold_score"}},
        "executor": {"class_path": "LocalPool", "init_args": {"at_once": 2, "threads": 1}},
    }


def measured(said: str, folder: Path, wall: float) -> dict[str, Any]:
    """What a grid has lost.

    Args:
        said: Its output.
        folder: Its folder.
        wall: Seconds that the command took.

    Returns:
        How often each stage was made, seconds of the shared stages, of all cells without them, and of the command, and
        ``ratio``: the command's by shared + cells / 2.
    """
    made: Counter[str] = Counter()
    shared = 0.0
    for path in sorted(folder.glob("*/*/stage.json")):
        if "taken_from" not in read_json(path):
            stage = path.parent
            made[stage.name] += 1
            shared += 0.0 if stage.name == "ppo" else spent(stage, read_json(stage / "done.json"))
    cells = sum(float(match["seconds"]) for match in DONE.finditer(said)) - shared
    floor = shared + cells / 2
    return {"made": dict(made), "shared": shared, "cells": cells, "wall": wall, "floor": floor, "ratio": wall / floor}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=ROOT / "experiments/quickstart.yaml")
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--output_dir", type=Path, default=Path("runs/benchmark"), help="a new folder")
    options = parser.parse_args()
    if (options.output_dir / "wall").exists():
        parser.error(f"{options.output_dir / 'wall'} is there already, and what is done is not run again; remove it")
    options.output_dir.mkdir(parents=True, exist_ok=True)
    file = options.output_dir / "grid.yaml"
    file.write_text(write(grid(options.config.resolve(), options.output_dir.resolve(), options.iterations)))
    command = [sys.executable, "-m", "rlhf.grid", "--config", str(file)]
    began = time.perf_counter()
    done = subprocess.run([*command, "--no_report"], stdout=subprocess.PIPE, text=True)
    found = measured(done.stdout, options.output_dir / "wall", time.perf_counter() - began)
    print(done.stdout)
    done.check_returncode()
    began = time.perf_counter()
    subprocess.run([*command, "--report_only"], check=True)
    print(f"\nstages made: {', '.join(f'{name} {count}' for name, count in found['made'].items())}")
    print("| shared | all cells | shared + cells / 2 | wall | ratio | report |\n|---|---|---|---|---|---|")
    seconds = [f"{found[name]:.0f} s" for name in ("shared", "cells", "floor", "wall")]
    print(f"| {' | '.join(seconds)} | {found['ratio']:.3f} | {time.perf_counter() - began:.0f} s |")


if __name__ == "__main__":
    main()

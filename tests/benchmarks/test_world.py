"""The script behind the README's table, on figures by hand and once end to end on a tiny experiment."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_world import TINY, load_script

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "world.py"


@pytest.fixture(scope="module")
def script():
    return load_script(SCRIPT)


def test_gains_are_in_deviations_of_the_start(script, tmp_path):
    first = {
        "eval/gold_score": 1.0,
        "eval/gold_score_std": 0.5,
        "eval/score": 0.0,
        "eval/score_std": 2.0,
        "eval/kl": 0.0,
    }
    last = {
        "eval/gold_score": 2.0,
        "eval/gold_score_std": 9.0,
        "eval/score": 3.0,
        "eval/score_std": 9.0,
        "eval/kl": 4.0,
    }
    ema = {"eval/ema/gold_score": 1.5, "eval/distinct_2": 0.2}
    rows = [{"step": 0, **first, "eval/distinct_2": 0.4}, {"step": 1, "loss": 1.0}, {"step": 2, **last, **ema}]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert script.gains(tmp_path) == {
        "SFT gold": 1.0,
        "PPO gold": 2.0,
        "gold gain of PPO (SFT deviations)": 2.0,  # (2 − 1) / 0.5
        "gold gain of its EMA": 1.0,  # (1.5 − 1) / 0.5
        "reward-model gain of PPO (SFT deviations)": 1.5,  # (3 − 0) / 2
        "KL from SFT (nats per response)": 4.0,
        "distinct-2 relative to SFT": 0.5,
    }


def test_intervals_are_student_t(script):
    pytest.importorskip("scipy")
    text = script.table([{"x": 1.0}, {"x": 2.0}, {"x": 3.0}], [1, 2, 3])
    # mean 2, sample deviation 1, t(0.975, 2) = 4.303: 2 ± 4.303 / √3 = 2 ± 2.48
    assert text.splitlines()[-1] == "| x | 2.00 | -0.48 … 4.48 | 1.00 | 2.00 | 3.00 |"


def test_shuffling_moves_prompts_only(script):
    rows = [{"prompt": str(i), "chosen": i, "rejected": -i} for i in range(9)]
    moved = script.shuffled(rows)
    assert [row["chosen"] for row in moved] == list(range(9)) and [r["prompt"] for r in moved] != [
        r["prompt"] for r in rows
    ]


@pytest.mark.slow
def test_the_script_runs(tmp_path):
    config = str(ROOT / "experiments" / "quickstart.yaml")
    arguments = ["--config", config, "--seeds", "1", "2", "--output_dir", str(tmp_path), "--rows", "100"]
    arguments += [word for key, value in TINY.items() for word in ("--set", key, value)]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "| reward model, held-out accuracy | " in done.stdout and "| without KL penalty: gold gain | " in done.stdout

"""The script behind the README's table, on figures by hand and once end to end on a tiny experiment."""

import json

import pytest
from tiny_world import ROOT, load_script, run_script

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


def test_shuffling_moves_prompts_only(script):
    rows = [{"prompt": str(i), "chosen": i, "rejected": -i} for i in range(9)]
    moved = script.shuffled(rows)
    assert [row["chosen"] for row in moved] == list(range(9)) and [r["prompt"] for r in moved] != [
        r["prompt"] for r in rows
    ]


@pytest.mark.slow
def test_the_script_runs(tmp_path):
    printed = run_script(SCRIPT, "--seeds", "1", "2", "--output_dir", str(tmp_path), "--rows", "100")
    assert "| reward model, held-out accuracy | " in printed and "| without KL penalty: gold gain | " in printed

"""The benchmark of rollouts, on a model that takes seconds."""

import importlib.util
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "rollout.py"


def test_both_sides_answer_every_prompt() -> None:
    spec = importlib.util.spec_from_file_location("rollout", SCRIPT)
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    lines = script.measure(repeats=1, scale=0.1, vocabulary=256, width=32, layers=1)
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    assert [row[:2] for row in cells] == [
        [case, side] for case in ("uniform", "ragged") for side in ("generate", "Hybrid")
    ]
    assert cells[0][2] == cells[1][2] == str(16 * 6)  # no response ends early
    ragged = [int(row[2]) for row in cells[2:]]
    assert all(64 <= tokens < 64 * 12 for tokens in ragged) and abs(ragged[0] - ragged[1]) < 0.3 * ragged[0]
    assert all(float(row[4]) > 0 for row in cells) and float(cells[1][6]) > 0 and float(cells[1][5]) >= 0

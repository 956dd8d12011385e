"""What a grid has lost: the arithmetic, of a grid written by hand."""

import json
from pathlib import Path

import pytest
from tiny_world import load_script

from rlhf.config import load
from rlhf.grid.cells import cells
from rlhf.grid.settings import load_grid
from rlhf.yaml_files import write

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "grid.py"


@pytest.fixture(scope="module")
def script():
    return load_script(SCRIPT)


def test_the_floor_is_the_shared_stages_and_half_of_the_rest(script, tmp_path):
    said = "21:00:00 wall: 2 waiting of 2\n"
    for cell, seconds in (("a,seed=1", 100), ("a,seed=2", 40)):
        said += f"21:00:00 {cell}: starts (…)\n21:00:00 {cell}: done in {seconds} s (wall: …)\n"
        for stage, took in (("sft", 30.0), ("reward", 20.0), ("ppo", 35.0)):
            folder = tmp_path / cell / stage
            folder.mkdir(parents=True)
            taken = {"taken_from": "x"} if cell.endswith("2") and stage != "ppo" else {}
            (folder / "stage.json").write_text(json.dumps({"key": "k", **taken}))
            (folder / "done.json").write_text(json.dumps({"figures": {}, "seconds": took}))
            (folder / "metrics.jsonl").write_text("")
    found = script.measured(said, tmp_path, 105.0)
    # cells 100 + 40, of which 50 are the shared stages: 90; 50 + 90 / 2 = 95
    assert found["made"] == {"sft": 1, "reward": 1, "ppo": 2}
    assert (found["shared"], found["cells"], found["floor"]) == (50.0, 90.0, 95.0)
    assert found["ratio"] == pytest.approx(105 / 95)


def test_it_is_twelve_cells_with_one_supervised_and_one_reward_model(script, tmp_path):
    file = tmp_path / "grid.yaml"
    base = Path(__file__).parents[2] / "experiments/quickstart.yaml"
    file.write_text(write(script.grid(base, tmp_path / "runs", 20)))
    found = cells(load_grid([file]))
    assert len(found) == 12
    assert {cell.experiment.stage_seeds["ppo"] for cell in found} == {1, 2, 3}
    assert {cell.experiment.seed for cell in found} == {load([base]).seed}

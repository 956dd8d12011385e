"""The grids in experiments/grids/: each is whole, and runs, smaller, to its report."""

from pathlib import Path

import pytest
from shorter import SMALL_WORLD, TINY

from rlhf.grid.__main__ import main
from rlhf.grid.cells import baseline_name, cells
from rlhf.grid.settings import load_grid

FOLDER = Path(__file__).parents[2] / "experiments/grids"
CELLS = {"ppo_variants": 40, "estimators": 25, "ema_mixture": 30, "seeds": 10}


def test_there_is_no_other():
    assert {path.stem for path in FOLDER.glob("*.yaml")} == set(CELLS)


@pytest.mark.parametrize("name", CELLS)
def test_it_has_so_many_cells_each_of_which_could_run(name):
    grid = load_grid([FOLDER / f"{name}.yaml"])
    found = cells(grid)
    assert grid.name == name and len(found) == CELLS[name]
    assert found[0].variant == baseline_name(grid) and len({cell.seed for cell in found}) >= 5
    assert not any(path.startswith("/") for path in (grid.output_dir, *grid.overrides))


def small(name):
    """Overrides of all cells that leave what the grid asks about."""
    words = [*TINY.split(), *SMALL_WORLD.split(), "--stages.ppo.evaluation.every", "3"]
    pairs = zip(words[::2], words[1::2], strict=True)
    no_mixture = name in ("ppo_variants", "estimators")  # a setting inside of it would bring it back
    kept = [(key, value) for key, value in pairs if not (no_mixture and ".mixture." in key)]
    return [word for key, value in kept for word in ("--set", key.removeprefix("--"), value)]


@pytest.mark.slow
@pytest.mark.parametrize("name", CELLS)
def test_it_runs_to_its_report(name, tmp_path, monkeypatch, capsys, imported):
    import transformers.models.llama.modeling_llama  # noqa: F401  # before cells are forked

    monkeypatch.chdir(tmp_path)
    executor = ["--executor", "forked_cells.Forked"]
    assert main(["--config", str(FOLDER / f"{name}.yaml"), "--seeds", "[1, 2]", *executor, *small(name)]) == 0
    assert f"report: runs/{name}/report.html" in capsys.readouterr().out
    table = Path(f"runs/{name}/results.csv").read_text()
    assert len(table.splitlines()) == 1 + 2 * CELLS[name] // len(load_grid([FOLDER / f"{name}.yaml"]).seeds)
    assert ",," not in table and not table.rstrip().endswith(",")

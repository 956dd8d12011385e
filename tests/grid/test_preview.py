"""What is said of a grid before it runs."""

import json

import forked_cells
import pytest

from rlhf.grid.cells import cells
from rlhf.grid.ledger import Ledger
from rlhf.grid.preview import lines
from rlhf.grid.settings import load_grid


@pytest.fixture
def said(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RLHF_CACHE_DIR")
    (tmp_path / "base.yaml").write_text(forked_cells.BASE)
    (tmp_path / "grid.yaml").write_text(forked_cells.GRID)

    def say(*overrides):
        grid = load_grid(["grid.yaml"], overrides)
        found = cells(grid)
        return list(lines(grid, found, Ledger(found)))

    return say


def test_shared_stages_are_counted_once(said, tmp_path):
    found = said()
    assert found[0] == "g: 8 cells in runs/g: 4 variants, the baseline first, with 2 seeds (1, 2)"
    assert found[1] == "Forked: 2 at a time; threads of each: 1"
    assert found[2:4] == ["  clip=on,coef=0.05,seed=1: waiting", "  clip=on,coef=0.05,seed=2: waiting"]
    sft, ppo, total = found[-3:]
    assert sft.startswith("sft: 2 for 4 cells each: 3 optimiser steps, time unknown, at least ")
    # 3 iterations of 8 responses in mini-batches of 4, of up to 4 tokens
    assert ppo.startswith(
        "ppo: 8 for one cell each: 6 optimiser steps, up to 96 sampled tokens, time unknown, at least "
    )
    # 2 · 3 + 8 · 6 steps, 8 · 96 tokens
    assert total == (
        "to be made: 10 stages, 54 optimiser steps, up to 768 sampled tokens besides evaluations; time unknown, as no "
        "such stage was made before"
    )
    assert not (tmp_path / "runs").exists()


def test_seeds_of_some_stages_leave_the_others_to_be_made_once(said):
    assert said(("seed_stages", "[ppo]"))[-3].startswith("sft: 1 for 8 cells: 3 optimiser steps")


def test_without_a_cache_each_cell_makes_its_own(said):
    found = said(("overrides", "{stage_cache: null}"))
    assert found[-4] == "no stage is shared, as stage_cache is null: each cell makes its own"
    assert found[-3].startswith("sft: 8 for one cell each")


def test_what_was_made_before_costs_nothing_and_tells_the_time(said, tmp_path):
    grid = load_grid(["grid.yaml"])
    found = cells(grid)
    keys = Ledger(found).keys[found[0].name]
    folder = tmp_path / "runs" / ".stages" / f"sft-{keys['sft']}"
    folder.mkdir(parents=True)
    (folder / "index.json").write_text("")
    from rlhf.stages.key import identity

    experiment = found[0].experiment
    settings = identity(experiment.stages["sft"], seed=1, threads=1)
    (folder / "stage.json").write_text(json.dumps({"settings": settings}))
    (folder / "done.json").write_text(json.dumps({"figures": {"step": 3}, "seconds": 90.0}))
    said_now = said()
    assert said_now[-4] == "sft: 1 for 4 cells: made before"
    assert said_now[-3].startswith("sft: 1 for 4 cells: 3 optimiser steps, about 0:01:30, at least ")
    assert said_now[-1].startswith("to be made: 9 stages, 51 optimiser steps, ")
    assert said_now[-1].endswith(
        "; about 0:01:30 (and 8 stages of which it is unknown) of work, without loading, for 2 at a time"
    )

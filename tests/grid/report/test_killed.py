"""A grid of twelve cells, killed at five moments, ends in the table of one that nobody disturbed, byte for byte."""

import os
import signal
import time
from pathlib import Path

import forked_cells
import pytest
from grid_runs import Process, figures, made, prepare

import rlhf.files
from rlhf.engines import checkpoint

GRID = (
    forked_cells.GRID.replace("seeds: [1, 2]", "seeds: [1, 2, 3]\nseed_stages: [ppo]")
    + """
overrides: {stages.ppo.save_every: 1, stages.ppo.evaluation.every: 1, stages.ppo.evaluation.prompts: 4}
metrics:
  score: {name: eval/score}
  at equal KL: {name: eval/score, at: equal_kl}
  at equal tokens: {name: reward/score, at: equal_tokens}
"""
)
HOME = Path("runs/g")


def files(pattern):
    return list(HOME.glob(pattern))


def inside_the_shared_stage():
    return any(path.read_text().count("\n") for path in files("*/sft/metrics.jsonl")) and not files("*/sft/done.json")


def inside_a_save():
    return bool(files("*/ppo/checkpoints/.*.new"))


def two_learn():
    done = {path.parent for path in files("*/ppo/done.json")}
    return len({path.parent for path in files("*/ppo/metrics.jsonl")} - done) >= 2


def one_more_is_done():
    return len(files("*/ppo/done.json")) >= 5


def while_reporting():
    return bool(files("tables/*.csv")) and not (HOME / "results.csv").exists()


MOMENTS = (inside_the_shared_stage, inside_a_save, two_learn, one_more_is_done, while_reporting)


@pytest.fixture
def slowly(monkeypatch):
    """A checkpoint takes its place after a while, so that a kill can come between."""
    place = rlhf.files.put_in_place

    def late(target):
        time.sleep(0.2)
        place(target)

    monkeypatch.setattr(checkpoint, "put_in_place", late)


def tables(folder):
    """Every table and figure that does not tell the time."""
    kinds = (".csv", ".tex", ".png", ".pdf")
    home = folder / "runs/g"
    paths = [path for path in home.rglob("*") if path.suffix in kinds and not path.name.startswith("cost_")]
    return {str(path.relative_to(home)): path.read_bytes() for path in paths}


def grid_in(folder, monkeypatch):
    folder.mkdir()
    monkeypatch.chdir(folder)
    prepare(folder, GRID)
    return folder


@pytest.mark.slow
def test_killed_at_five_moments_it_ends_in_the_same_table(tmp_path, monkeypatch, imported, slowly):
    monkeypatch.delenv("RLHF_CACHE_DIR")
    killed = grid_in(tmp_path / "killed", monkeypatch)
    for happened in MOMENTS:
        grid = Process(killed, report=True)
        grid.until(happened)
        cells = forked_cells.children(grid.pid)
        for pid in (grid.pid, *cells):
            os.kill(pid, signal.SIGKILL)
        assert grid.wait() == -signal.SIGKILL, happened.__name__
        assert not (HOME / "results.csv").exists()
    grid = Process(killed, report=True)
    assert grid.wait() == 0, grid.said.read_text()
    assert made() == ["ppo"] * 12 + ["sft"]

    whole = grid_in(tmp_path / "whole", monkeypatch)
    grid = Process(whole, report=True)
    assert grid.wait() == 0, grid.said.read_text()
    found = tables(whole)
    assert len(found["results.csv"].splitlines()) == 13 and b",," not in found["results.csv"] and len(found) > 15
    assert tables(killed) == found
    assert figures(killed) == figures(whole)

"""Whole grids of tiny cells on Slurm and Ray: the figures are those of a pool of processes, whatever comes between."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import forked_cells
import pytest
from executor_jobs import SECONDS, until
from grid_runs import Process, figures

from rlhf.grid.__main__ import main
from rlhf.grid.executors import ray as ray_executor, slurm as slurm_executor

pytestmark = pytest.mark.slow
TESTS = Path(__file__).parents[2]
BASE = forked_cells.BASE.replace("tiny_runs.letters", "forked_cells.dawdled_letters")
GRID = """
name: g
base: base.yaml
seeds: [1, 2]
axes:
  clip:
    on: {stages.ppo.score_clip: 1.0}
    off: {stages.ppo.score_clip: null}
"""
CELLS = [f"clip={clip},seed={seed}" for clip in ("on", "off") for seed in (1, 2)]
POOL = "executor: {class_path: LocalPool, init_args: {at_once: 2, gpus: []}}"
SLURM = "executor: {class_path: Slurm, init_args: {at_once: 4, partition: low, time_limit: 20}}"
RAY = "executor: {class_path: Ray, init_args: {at_once: 4}}"


@pytest.fixture(autouse=True)
def found_by_cells(monkeypatch):
    """Cells find what the tests have, and this project."""
    monkeypatch.setenv("PYTHONPATH", f"{TESTS}:{TESTS.parent}")
    monkeypatch.delenv("RLHF_CACHE_DIR")
    for name, seconds in {"LOOK": 0.2, "LIST": 0.5, "LIST_STOPPING": 0.5}.items():
        monkeypatch.setattr(slurm_executor, name, seconds)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def prepare(folder, executor, base=BASE):
    (folder / "base.yaml").write_text(base)
    (folder / "grid.yaml").write_text(GRID + executor)


@pytest.fixture(scope="module")
def pooled(tmp_path_factory):
    """The figures of a pool of processes of this machine."""
    folder = tmp_path_factory.mktemp("pooled")
    prepare(folder, POOL)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("PYTHONPATH", f"{TESTS}:{TESTS.parent}")
        patch.delenv("RLHF_CACHE_DIR", raising=False)
        assert main(["--config", "grid.yaml", "--quiet"]) == 0
    found = figures(folder)
    assert len(found) == 8
    return found


def record(cell):
    try:
        return json.loads(Path("runs/g", cell, slurm_executor.RECORD).read_text())
    except FileNotFoundError:
        return {"job": None}


def learning():
    """A cell in the middle of its last stage."""
    for cell in CELLS:
        path = Path("runs/g", cell, "ppo/metrics.jsonl")
        if path.exists() and path.read_text().count("\n") > 1 and not (path.parent / "done.json").exists():
            return cell
    return None


def test_a_job_that_is_queued_again_changes_no_figure(slurm, pooled, folder):
    prepare(folder, SLURM)
    grid = Process(folder)
    cell = until(learning)
    id_ = record(cell)["job"]
    subprocess.run(["scontrol", "requeue", id_], check=True)
    assert grid.wait() == 0, grid.said.read_text()
    shown = subprocess.run(["scontrol", "show", "job", id_], capture_output=True, text=True, check=True).stdout
    assert "Restarts=1" in shown and json.loads(Path("runs/g", cell, "cell.json").read_text())["tries"] == 1
    assert figures() == pooled
    assert sum("taken_from" not in path.read_text() for path in Path("runs/g").glob("*/sft/stage.json")) == 2


def test_a_grid_that_is_killed_while_jobs_wait_submits_none_twice(slurm, pooled, folder):
    prepare(folder, SLURM, BASE + "stage_cache: null\n")  # so that all are ready at once
    command = ["sbatch", "--parsable", "--partition=low", f"--output={folder}/other.out"]
    other = subprocess.run(command, input="#!/bin/sh\nsleep 600\n", text=True, check=True, capture_output=True).stdout
    grid = Process(folder)
    until(lambda: all(record(cell)["job"] for cell in CELLS) and list(Path("runs/g").glob("*/sft")))
    os.kill(grid.pid, signal.SIGKILL)
    assert grid.wait() == -signal.SIGKILL
    ids = {record(cell)["job"] for cell in CELLS}
    states = slurm_executor.queue.states(ids)
    assert len(ids) == 4 and "PENDING" in states.values() and len({id_.partition("_")[0] for id_ in ids}) == 1
    grid = Process(folder)
    until(lambda: grid.said.exists() and "was started by an earlier grid, and goes on" in grid.said.read_text())
    subprocess.run(["scancel", other.strip()], check=True)
    assert grid.wait() == 0, grid.said.read_text()
    assert "starts" not in grid.said.read_text()
    assert len(list(Path("runs/g/.slurm").glob("*/*_submitted.pkl"))) == 4
    assert {json.loads(path.read_text())["tries"] for path in Path("runs/g").glob("*/cell.json")} == {1}
    assert figures() == pooled


def test_a_grid_that_is_stopped_has_its_jobs_save_and_continues_them(slurm, pooled, folder):
    prepare(folder, SLURM)
    grid = Process(folder)
    until(learning)
    os.kill(grid.pid, signal.SIGTERM)
    assert grid.wait() == 128 + signal.SIGTERM
    assert "failed" not in grid.said.read_text()
    queued = subprocess.run(["squeue", "--noheader"], capture_output=True, text=True, check=True).stdout
    assert queued == "" and not list(Path("runs/g").glob(f"*/{slurm_executor.RECORD}"))
    assert main(["--config", "grid.yaml", "--quiet"]) == 0
    assert figures() == pooled


def test_a_local_ray_makes_the_same_figures(pooled, folder, monkeypatch, capsys):
    ray = pytest.importorskip("ray", reason="needs the extra rlhf[ray]")
    prepare(folder, RAY)
    true, end = ray.init, time.monotonic() + SECONDS

    def patient(*given, **settings):  # Ray gives it half a minute, which a busy machine may not keep
        while True:
            try:
                return true(*given, num_cpus=2, **settings)
            except Exception:
                ray.shutdown()
                assert time.monotonic() < end

    monkeypatch.setattr(ray_executor, "POLL", 0.05)
    monkeypatch.setattr(ray, "init", patient)
    try:
        assert main(["--config", "grid.yaml"]) == 0
    finally:
        ray.shutdown()
    assert "g: 4 done of 4" in capsys.readouterr().out
    assert figures() == pooled

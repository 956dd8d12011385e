"""A cell as submitit runs it: what it is told, and what the signals of a cluster mean to it."""

import signal
import subprocess
from pathlib import Path

import pytest
from executor_jobs import CONTINUED, STOPPABLE, job, said, until

from rlhf.grid.executors import slurm_cell


@pytest.fixture
def local(tmp_path, monkeypatch):
    """Runs a cell as submitit does, without a cluster."""
    submitit = pytest.importorskip("submitit")
    monkeypatch.chdir(tmp_path)
    executor = submitit.LocalExecutor(tmp_path / "submitit")
    executor.update_parameters(timeout_min=10)

    def run(code, **settings):
        one = job(tmp_path, code)
        cell = slurm_cell.SlurmCell(one.arguments, one.log, **{"threads": 1, "gpus": 0, **settings})
        return one, executor.submit(cell)

    return run


def test_a_cell_is_told_its_threads_and_that_it_has_no_gpu(local, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "8")
    code = "import os; print(*(os.environ.get(n) for n in ('OMP_NUM_THREADS', 'WORLD_SIZE', 'CUDA_VISIBLE_DEVICES')))"
    one, submitted = local(code, threads=3)
    assert submitted.result() == (0, "") and said(one) == "3 None \n"


def tell(submitted, number):
    """Signals what runs a cell, as Slurm does."""
    controller = submitted._process.pid
    (child,) = Path(f"/proc/{controller}/task/{controller}/children").read_text().split()
    subprocess.run(["kill", f"-{number}", child], check=True)


@pytest.mark.parametrize(
    ("number", "result", "log"),
    [
        (slurm_cell.STOP, (143, ""), "ready\nsaved\n"),
        (signal.SIGTERM, (143, ""), "ready\nsaved\n"),  # Slurm is not there to say that the job counts as running
        (signal.SIGUSR2, (0, ""), "ready\nsaved\ncontinues\n"),
    ],
)
def test_what_signals_mean_to_a_job(local, number, result, log):
    one, submitted = local(CONTINUED)
    until(lambda: "ready" in said(one))
    tell(submitted, number)
    assert submitted.result() == result and said(one) == log


def test_a_cell_that_ends_well_when_it_is_asked_is_done(local):
    one, submitted = local("import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n"
                           "print('ready', flush=True); time.sleep(600)")  # fmt: skip
    until(lambda: "ready" in said(one))
    tell(submitted, signal.SIGUSR2)
    assert submitted.result() == (0, "")


def test_where_it_has_come_to_its_limit_too_often_it_says_so(tmp_path, monkeypatch):
    submitit = pytest.importorskip("submitit")
    monkeypatch.chdir(tmp_path)
    executor = submitit.LocalExecutor(tmp_path / "submitit", max_num_timeout=0)
    executor.update_parameters(timeout_min=0.5, signal_delay_s=28)
    one = job(tmp_path, STOPPABLE)
    submitted = executor.submit(slurm_cell.SlurmCell(one.arguments, one.log, threads=1, gpus=0))
    code, why = submitted.result()
    assert (code, why) == (143, "it was not queued again: Job not requeued because: timed-out too many times.")

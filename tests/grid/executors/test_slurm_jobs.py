"""Jobs of a true Slurm cluster, of one node, where its programs are there."""

import json
import shutil
import signal
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from executor_jobs import CONTINUED, STOPPABLE, ended, job, said, until

from rlhf.errors import UserError
from rlhf.grid.executors import slurm as slurm_executor
from rlhf.grid.executors.slurm import Slurm
from rlhf.interfaces import Ended

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("shorter_waits")]


def record(one):
    return json.loads((one.log.parent / slurm_executor.RECORD).read_text())


@pytest.fixture
def live(slurm, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    opened = Slurm(partition="low").open()
    yield opened
    opened.kill()


def scontrol(*words):
    return subprocess.run(["scontrol", *words], capture_output=True, text=True, check=True).stdout


def run(live, *jobs):
    for one in jobs:
        live.start(one)
    live.flush()


def test_jobs_of_an_array_end_with_their_codes(live, tmp_path):
    said_threads = "import os; print(os.environ['OMP_NUM_THREADS'], os.environ['SLURM_CPUS_PER_TASK'])"
    dead = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    jobs = [job(tmp_path, said_threads), job(tmp_path, "raise SystemExit(3)", "b"), job(tmp_path, dead, "c")]
    run(live, *jobs)
    ids = [one.id for one in live.running.values()]
    assert Counter(id_.partition("_")[0] for id_ in ids).most_common(1)[0][1] == 3
    assert "ArrayTaskThrottle=3" in scontrol("show", "job", ids[0].partition("_")[0])
    assert ended(live, 3) == {"a": Ended("a", 0), "b": Ended("b", 3), "c": Ended("c", -9)}
    assert said(jobs[0]) == "1 1\n" and live.running == {}


def test_running_jobs_save_and_waiting_ones_are_cancelled_when_the_grid_stops(live, tmp_path):
    jobs = [job(tmp_path, STOPPABLE, name) for name in "abc"]
    run(live, *jobs)
    until(lambda: [said(one) for one in jobs].count("ready\n") == 2)
    live.stop()
    found = ended(live, 3)
    assert {one.code for one in found.values()} <= {143, -15}
    assert sorted(said(one) for one in jobs) == ["", "ready\nsaved\n", "ready\nsaved\n"]
    until(lambda: not _active())


def _active():
    command = ["squeue", "--noheader", "--format=%i"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def test_a_job_that_a_person_cancels_saves_and_is_stopped(live, tmp_path):
    one = job(tmp_path, STOPPABLE)
    run(live, one)
    until(lambda: "ready" in said(one))
    id_ = live.running["a"].id
    subprocess.run(["scancel", id_], check=True)
    assert ended(live) == {"a": Ended("a", -signal.SIGTERM, f"Slurm job {id_} was cancelled")}
    assert said(one) == "ready\nsaved\n"


@pytest.mark.parametrize("how", ["scontrol requeue", "scancel --signal=USR2 --batch", "scancel --signal=TERM --batch"])
def test_a_job_that_is_queued_again_goes_on(live, tmp_path, how):
    """By a person; before its time limit; or by a SIGTERM while Slurm takes it for running, as before a preemption."""
    one = job(tmp_path, CONTINUED)
    run(live, one)
    until(lambda: "ready" in said(one))
    id_ = live.running["a"].id
    subprocess.run([*how.split(), id_], check=True)
    assert ended(live) == {"a": Ended("a", 0)}
    assert said(one) == "ready\nsaved\ncontinues\n" and "Restarts=1" in scontrol("show", "job", id_)


def test_the_time_limit_is_no_end(slurm, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    live = Slurm(time_limit=1, save_seconds=50).open()
    one = job(tmp_path, CONTINUED)
    run(live, one)
    assert ended(live) == {"a": Ended("a", 0)} and said(one) == "ready\nsaved\ncontinues\n"


def test_a_job_that_gives_way_to_another_goes_on_after_it(live, tmp_path):
    one = job(tmp_path, CONTINUED)
    run(live, one)
    until(lambda: "ready" in said(one))
    script = "#!/bin/sh\nsleep 1\n"
    command = ["sbatch", "--partition=high", "--cpus-per-task=2", f"--output={tmp_path}/other.out"]
    subprocess.run(command, input=script, text=True, check=True, capture_output=True)
    assert ended(live) == {"a": Ended("a", 0)} and said(one) == "ready\nsaved\ncontinues\n"


def test_a_job_that_hears_nothing_is_killed(live, tmp_path):
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True)\n"
    one = job(tmp_path, deaf + "time.sleep(600)")
    run(live, one)
    until(lambda: "ready" in said(one))
    live.kill()
    assert live.running == {} and _active() == []
    assert not (one.log.parent / slurm_executor.RECORD).exists()


def test_what_sbatch_refuses_is_told(slurm, tmp_path):
    live = Slurm(partition="nowhere").open()
    live.start(job(tmp_path, ""))
    with pytest.raises(UserError, match=r"^Slurm refuses the jobs: .*nvalid partition"):
        live.flush()


def test_a_later_grid_finds_jobs_of_which_the_former_one_did_not_know_yet(live, tmp_path):
    jobs = [job(tmp_path, "print('ran')", name) for name in "abc"]
    blocker = ["sbatch", "--parsable", "--cpus-per-task=2", f"--output={tmp_path}/other.out"]
    id_ = subprocess.run(blocker, input="#!/bin/sh\nsleep 600\n", text=True, check=True, capture_output=True).stdout
    run(live, *jobs)
    for one in jobs:
        note = record(one)
        (one.log.parent / slurm_executor.RECORD).write_text(json.dumps({**note, "job": None}))
        (Path(note["folder"]) / f"{note['job']}_submitted.pkl").unlink()
    former = {name: f"Slurm job {one.id}" for name, one in live.running.items()}
    live.running.clear()
    later = Slurm(partition="low").open()
    assert later.adopt(jobs) == former
    subprocess.run(["scancel", id_.strip()], check=True)
    assert ended(later, 3) == {name: Ended(name, 0) for name in "abc"}
    assert [said(one) for one in jobs] == ["ran\n"] * 3
    assert later.adopt(jobs) == {}
    shutil.rmtree(tmp_path / "g")

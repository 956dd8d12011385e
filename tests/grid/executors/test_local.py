"""A pool of processes: what they are told, how they are stopped, and that none outlives the grid."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import executor_jobs
import pytest
from executor_jobs import until

from rlhf.errors import UserError
from rlhf.grid.executors.local import LocalPool
from rlhf.grid.executors.process import THREADS
from rlhf.interfaces import Job


def job(folder, code, name="a"):
    return Job(name, ["-c", code], folder / f"{name}.log")


def ended(pool, count=1):
    return {name: one.code for name, one in executor_jobs.ended(pool, count).items()}


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


def test_jobs_end_with_their_codes_and_leave_what_they_said(tmp_path):
    pool = LocalPool(at_once=2).open()
    assert pool.slots == 2
    pool.start(job(tmp_path, "print('one'); import sys; print('two', file=sys.stderr)"))
    pool.start(job(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "b"))
    assert ended(pool, 2) == {"a": 0, "b": -signal.SIGKILL}
    assert (tmp_path / "a.log").read_text() == "one\ntwo\n" and pool.ended() == []
    pool.start(job(tmp_path, "raise SystemExit(2)"))
    assert ended(pool) == {"a": 2}
    assert (tmp_path / "a.log").read_text() == "one\ntwo\n"  # appended to


def test_each_is_told_its_threads_and_its_gpu(tmp_path, monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"):
        monkeypatch.setenv(name, "1")
    pool = LocalPool(at_once=3, threads=2, gpus=[4, 7]).open()
    code = "import os; print(*(os.environ.get(n) for n in ('OMP_NUM_THREADS', 'CUDA_VISIBLE_DEVICES', 'WORLD_SIZE')))"
    for name in "abc":
        pool.start(job(tmp_path, code, name))
    assert set(ended(pool, 3).values()) == {0}
    # three cells on two GPUs: the third shares the first one's
    assert [(tmp_path / f"{name}.log").read_text() for name in "abc"] == ["2 4 None\n", "2 7 None\n", "2 4 None\n"]
    environment = LocalPool(at_once=1, threads=None, gpus=[]).open().environment(0)
    assert environment["CUDA_VISIBLE_DEVICES"] == "" and environment.get(THREADS[0]) == os.environ.get(THREADS[0])


def test_a_slot_and_its_gpu_are_free_again_when_its_job_has_ended(tmp_path):
    pool = LocalPool(at_once=2, gpus=[0, 1]).open()
    pool.start(job(tmp_path, "import time; time.sleep(60)", "long"))
    for _ in range(2):
        pool.start(job(tmp_path, "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])"))
        assert ended(pool) == {"a": 0}
    assert (tmp_path / "a.log").read_text() == "1\n1\n"
    pool.kill()


def test_devices_are_those_that_are_visible(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,GPU-5")
    assert LocalPool().devices() == ["2", "GPU-5"] and LocalPool().slots == 2
    assert LocalPool(gpus=[0]).devices() == ["0"] and LocalPool(gpus=[0], at_once=3).slots == 3
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert LocalPool().devices() == [] and LocalPool(at_once=2).describe() == "threads of each: 1; GPUs: none"


def test_as_many_at_once_as_have_their_threads(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert [LocalPool(threads=threads).slots for threads in (1, 3, 16, None)] == [8, 2, 1, 1]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"at_once": 0}, "at_once is 0; must be at least 1"),
        ({"threads": 0}, "threads is 0; must be at least 1"),
        ({"gpus": [0, -1]}, "gpus.1 is -1; must be at least 0"),
        ({"gpus": [0, 0]}, r"gpus is \[0, 0\]; name each once, and let cells share them by a larger at_once"),
    ],
)
def test_impossible_settings_are_refused(settings, text):
    with pytest.raises(UserError, match=f"^{text}"):
        LocalPool(**settings)


STOPPABLE = """
import signal, sys, time
def save(*_):
    print("saved", flush=True)
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
time.sleep(600)
"""


def test_jobs_are_asked_to_save_and_stop(tmp_path):
    pool = LocalPool(at_once=1).open()
    pool.start(job(tmp_path, STOPPABLE))
    until(lambda: "ready" in (tmp_path / "a.log").read_text())
    pool.stop()
    assert ended(pool) == {"a": 143}
    assert (tmp_path / "a.log").read_text() == "ready\nsaved\n"


def test_what_hears_nothing_is_killed_with_all_that_it_has_started(tmp_path):
    deaf = (
        "import signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']).pid, flush=True)\n"
        "time.sleep(600)"
    )
    pool = LocalPool(at_once=1).open()
    pid = pool.start(job(tmp_path, deaf))
    helper = int(until(lambda: (tmp_path / "a.log").read_text()))
    pool.stop()
    assert alive(pid) and alive(helper)
    pool.kill()
    until(lambda: not alive(pid) and not alive(helper))


def test_what_a_job_leaves_running_ends_with_it(tmp_path):
    leaving = (
        "import subprocess, sys\n"
        "print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']).pid, flush=True)"
    )
    pool = LocalPool(at_once=1).open()
    pool.start(job(tmp_path, leaving))
    assert ended(pool) == {"a": 0}
    helper = int((tmp_path / "a.log").read_text())
    until(lambda: not alive(helper))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks for Linux's prctl")
def test_a_pool_that_is_killed_leaves_no_job_behind(tmp_path):
    parent = (
        "import time; from pathlib import Path; from rlhf.interfaces import Job\n"
        "from rlhf.grid.executors.local import LocalPool\n"
        f"code = {STOPPABLE!r}\n"
        f"job = Job('a', ['-c', code], Path({str(tmp_path / 'a.log')!r}))\n"
        "print(LocalPool(at_once=1).open().start(job), flush=True)\n"
        "time.sleep(600)"
    )
    grid = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True)
    pid = int(grid.stdout.readline())
    until(lambda: "ready" in (tmp_path / "a.log").read_text())
    assert alive(pid)
    grid.kill()
    grid.wait()
    until(lambda: not alive(pid))
    assert (tmp_path / "a.log").read_text() == "ready\nsaved\n"  # it was asked, not killed

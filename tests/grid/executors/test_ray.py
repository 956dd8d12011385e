"""Cells on a Ray cluster, which is started on this machine."""

import os
import signal
import subprocess
import sys

import pytest
from executor_jobs import STOPPABLE, ended, job, said, until

from rlhf.errors import UserError
from rlhf.grid.executors.ray import Ray, RayCell
from rlhf.interfaces import Ended


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"at_once": 0}, "at_once is 0; must be at least 1"),
        ({"threads": 0}, "threads is 0; must be at least 1"),
        ({"gpus": -0.5}, "gpus is -0.5; must be at least 0"),
    ],
)
def test_impossible_settings_are_refused(settings, text):
    with pytest.raises(UserError, match=f"^{text}"):
        Ray(**settings)


def test_a_missing_package_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"^Ray: the package ray is missing; pip install 'rlhf\[ray\]'$"):
        Ray().open()


def test_it_says_what_each_cell_gets():
    assert Ray(at_once=3).slots == 3 and Ray().describe() == "threads of each: 1; on this machine"
    assert Ray(address="auto", gpus=0.5, threads=2).describe() == "threads of each: 2; GPUs of each: 0.5; at auto"


def test_a_wish_that_comes_before_the_cell_is_heard(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    one, cell = job(tmp_path, "import time; time.sleep(600)"), RayCell()
    cell.stop()
    assert cell.run(one.arguments, str(one.log), str(tmp_path), 1) == -signal.SIGTERM


def test_a_cluster_that_cannot_be_had_is_told(monkeypatch):
    ray = pytest.importorskip("ray", reason="needs the extra rlhf[ray]")

    def refuse(*given, **settings):
        raise Exception("timed out during startup")

    monkeypatch.setattr(ray, "init", refuse)
    with pytest.raises(UserError, match=r"^Ray: a cluster on this machine does not start: timed out during startup$"):
        Ray().open()
    with pytest.raises(UserError, match=r"^Ray: address 10.0.0.1:6379: timed out during startup$"):
        Ray(address="10.0.0.1:6379").open()


@pytest.fixture(scope="module")
def cluster():
    """A cluster of two CPUs, as a grid starts it. Ray gives it half a minute, which a busy machine may not keep."""
    ray = pytest.importorskip("ray", reason="needs the extra rlhf[ray]")
    with pytest.MonkeyPatch.context() as patch:
        true = ray.init
        patch.setattr(ray, "init", lambda *given, **settings: true(*given, num_cpus=2, **settings))
        handler = signal.getsignal(signal.SIGTERM)
        for tries in range(4):
            try:
                Ray().open()
                assert signal.getsignal(signal.SIGTERM) is handler  # the grid's own
                break
            except UserError:
                ray.shutdown()
                assert tries < 3
    yield ray
    ray.shutdown()


@pytest.fixture
def opened(cluster, monkeypatch, tmp_path):
    """Opens executors on the cluster that is there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cluster, "init", lambda *given, **settings: None)
    monkeypatch.setattr(cluster, "shutdown", lambda: None)
    return lambda **settings: Ray(**settings).open()


@pytest.mark.slow
def test_jobs_end_with_their_codes(opened, tmp_path):
    live = opened()
    told = "import os; print(os.environ['OMP_NUM_THREADS'], os.environ.get('CUDA_VISIBLE_DEVICES'), os.getcwd())"
    dead = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    jobs = [job(tmp_path, told), job(tmp_path, "raise SystemExit(3)", "b"), job(tmp_path, dead, "c")]
    for one in jobs:
        live.start(one)
    assert ended(live, 3) == {"a": Ended("a", 0), "b": Ended("b", 3), "c": Ended("c", -9)}
    assert said(jobs[0]).split()[0] == "1" and said(jobs[0]).split()[-1] == str(tmp_path)
    assert live.ended() == []


@pytest.mark.slow
def test_running_jobs_save_and_waiting_ones_never_start(opened, tmp_path):
    live = opened()
    jobs = [job(tmp_path, STOPPABLE, name) for name in "abc"]
    for one in jobs:
        live.start(one)
    until(lambda: [said(one) for one in jobs].count("ready\n") == 2)
    live.stop()
    assert sorted(one.code for one in ended(live, 3).values()) == [-15, 143, 143]
    assert sorted(said(one) for one in jobs) == ["", "ready\nsaved\n", "ready\nsaved\n"]


@pytest.mark.slow
def test_what_hears_nothing_is_killed(opened, tmp_path):
    live = opened()
    deaf = "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(os.getpid(), flush=True)\n"
    jobs = [job(tmp_path, deaf + "time.sleep(600)", name) for name in "ab"]
    for one in jobs:
        live.start(one)
    pids = [int(until(lambda one=one: said(one))) for one in jobs]
    live.stop()
    live.stop()
    assert {one.code for one in ended(live, 2).values()} == {-9}
    until(lambda: not any(_alive(pid) for pid in pids))
    live.start(jobs[0])
    pid = int(until(lambda: said(jobs[0]).split()[1:])[0])
    live.kill()
    until(lambda: not _alive(pid))


def _alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
def test_a_lost_worker_is_the_end_of_its_job(opened, tmp_path):
    live = opened()
    one = job(tmp_path, "import os, time; print(os.getppid(), flush=True); time.sleep(600)")
    live.start(one)
    subprocess.run(["kill", "-9", until(lambda: said(one)).strip()], check=True)
    (found,) = ended(live).values()
    assert found.code == -signal.SIGKILL and found.why.startswith("its Ray worker was lost: ")


@pytest.mark.slow
def test_a_cluster_that_is_too_small_is_told(opened):
    with pytest.raises(UserError, match=r"^Ray: a cell wants 3 CPUs, and the cluster has 2$"):
        opened(threads=3)
    with pytest.raises(UserError, match=r"^Ray: a cell wants 1 GPUs, and the cluster has 0$"):
        opened(gpus=1)

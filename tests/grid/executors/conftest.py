"""What the tests of executors share: a Slurm cluster, where its programs are there."""

import sys
from pathlib import Path

import pytest
import slurm_cluster

sys.path.insert(0, str(Path(__file__).parent))  # for executor_jobs.py


@pytest.fixture
def shorter_waits(monkeypatch):
    """An executor that looks for the ends of its jobs more often than a cluster is to be asked."""
    for name, seconds in {"LOOK": 0.05, "LIST": 0.3, "LIST_STOPPING": 0.3, "PATIENCE": 2.0}.items():
        monkeypatch.setattr(f"rlhf.grid.executors.slurm.{name}", seconds)


@pytest.fixture(scope="session")
def slurm():
    """A cluster of one node, of two CPUs, which the commands of this process speak to."""
    pytest.importorskip("submitit", reason="needs the extra rlhf[slurm]")
    if reason := slurm_cluster.lacking():
        pytest.skip(reason)
    with slurm_cluster.cluster() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
        yield folder

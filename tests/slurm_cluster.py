"""A Slurm cluster of one node for tests: its programs, settings and keys are its own, and nothing of it is left."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from processes import free_port

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol", "srun")
SECONDS = 120
"""For its programs to answer, on a busy machine."""
SETTINGS = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SchedulerParameters=sched_interval=2,bf_interval=2
KillWait=15
ReturnToService=2
MpiDefault=none
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 RealMemory=1000
PartitionName=low Nodes={host} Default=YES State=UP PriorityTier=1 GraceTime={grace}
PartitionName=high Nodes={host} State=UP PriorityTier=2
"""
"""A requeued job waits for cred_expire; of accounts there are none."""


def lacking() -> str:
    """Why there can be no cluster here; nothing where there can."""
    if missing := [name for name in PROGRAMS if _found(name) is None]:
        return f"needs Slurm's {missing[0]}: apt-get install slurm-wlm munge"
    return "" if os.geteuid() == 0 else "needs root, to start Slurm's programs"


def _found(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


@contextmanager
def cluster(grace: int = 5) -> Iterator[Path]:
    """Runs a cluster inside; yields its folder, in which ``slurm.conf`` is what ``SLURM_CONF`` must name.

    Args:
        grace: Seconds that a job of the partition ``low`` has before one of ``high`` takes its place.
    """
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    started: list[subprocess.Popen[bytes]] = []
    try:
        folder.chmod(0o755)  # munge's socket is for everybody
        for name in ("state", "spool"):
            (folder / name).mkdir()
        key = folder / "munge.key"
        key.touch(mode=0o400)
        key.write_bytes(secrets.token_bytes(1024))
        values = {"controller": free_port(), "node": free_port(), "folder": folder, "grace": grace}
        settings = SETTINGS.format(host=socket.gethostname().partition(".")[0], **values)
        (folder / "slurm.conf").write_text(settings)
        environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        files = {"key": "munge.key", "socket": "munge.socket", "pid": "munge.pid", "log": "munge.log", "seed": "seed"}
        munge = [f"--{option}{'' if option == 'socket' else '-file'}={folder / name}" for option, name in files.items()]
        for command in (["munged", "--foreground", *munge], ["slurmctld", "-D"], ["slurmd", "-D"]):
            with (folder / f"{command[0]}.out").open("wb") as out:
                program = [_found(command[0]) or command[0], *command[1:]]
                started.append(subprocess.Popen(program, stdout=out, stderr=out, env=environment))
            _until(lambda: command[0] != "munged" or (folder / "munge.socket").exists(), folder)  # noqa: B023
        _until(lambda: _said(["sinfo", "--noheader", "--format=%T"], environment) == {"idle"}, folder)
        yield folder
        subprocess.run(["scancel", "--user=root"], env=environment, capture_output=True)
        _until(lambda: not _said(["squeue", "--noheader", "--format=%i"], environment), folder)
    finally:
        for program in reversed(started):
            program.terminate()
        for program in started:
            try:
                program.wait(20)
            except subprocess.TimeoutExpired:
                program.kill()
                program.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _said(command: list[str], environment: dict[str, str]) -> set[str]:
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    return set(done.stdout.split()) or {done.stderr.strip()} - {""}


def _until(condition, folder: Path) -> None:
    end = time.monotonic() + SECONDS
    while not condition():
        told = "".join(path.read_text(errors="replace")[-1500:] for path in folder.glob("*.out"))
        assert time.monotonic() < end, f"Slurm does not start: {told}"
        time.sleep(0.1)

"""What is asked of Slurm, and told to it, besides submitting: the states of jobs, signals, the end."""

from __future__ import annotations

import subprocess
from collections.abc import Collection, Iterable

from rlhf.errors import UserError

PROGRAMS = ("sbatch", "squeue", "scancel", "scontrol")
"""What a machine has that submits jobs."""
FINAL = (
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "REVOKED",
    "TIMEOUT",
)
"""States of jobs that run no more, and are not going to."""
SECONDS = 60
"""For an answer."""


def states(jobs: Collection[str]) -> dict[str, str]:
    """States of jobs, as far as Slurm still knows them; it forgets them some minutes after their end.

    Args:
        jobs: Ids, ``<job>`` or ``<job>_<index>``.

    Raises:
        UserError: Slurm does not answer.
    """
    ids = ",".join(sorted({job.partition("_")[0] for job in jobs}))
    return {job: state for job, state, _ in _listed(f"--jobs={ids}") if job in jobs} if jobs else {}


def named(names: Iterable[str]) -> dict[str, dict[int, str]]:
    """Ids of the jobs of these names, by their indices in their arrays; a single job has 0.

    Raises:
        UserError: Slurm does not answer.
    """
    found: dict[str, dict[int, str]] = {name: {} for name in names}
    for job, _, name in _listed(f"--name={','.join(found)}") if found else ():
        if name in found:
            found[name][index(job)] = job
    return found


def index(job: str) -> int:
    """Of a job in its array; 0 for a single one."""
    return int(job.partition("_")[2] or 0)


def recorded(jobs: Collection[str]) -> dict[str, str]:
    """Final states of jobs that Slurm has forgotten, where the cluster keeps accounts; else nothing."""
    form = ("--noheader", "--parsable2", "--allocations", "--format=JobID,State")
    _, said, _ = _said("sacct", *form, f"--jobs={','.join(jobs)}")
    rows = [line.split("|") for line in said.splitlines()]
    return {row[0]: row[1].partition(" ")[0] for row in rows if len(row) == 2 and row[0] in jobs}  # CANCELLED by 0


def cancel(jobs: Collection[str], *options: str) -> None:
    """Cancels jobs, or what ``scancel`` does with these options; those that have ended are no matter."""
    if jobs:
        _said("scancel", "--quiet", *options, *jobs)


def _listed(which: str) -> list[tuple[str, str, str]]:
    code, said, error = _said("squeue", "--noheader", "--states=all", "--array", "--format=%i|%T|%j", which)
    if code and "Invalid job id" in error:  # the only one that is asked for is forgotten
        return []
    if code:
        raise UserError(f"Slurm: squeue does not answer ({error.strip() or f'exit code {code}'}); try again later")
    rows = [line.strip().split("|", 2) for line in said.splitlines()]
    return [(row[0], row[1], row[2]) for row in rows if len(row) == 3]


def _said(*command: str) -> tuple[int, str, str]:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    except OSError as error:
        return 127, "", str(error)
    except subprocess.TimeoutExpired:
        return 124, "", f"nothing in {SECONDS} s"
    return done.returncode, done.stdout, done.stderr

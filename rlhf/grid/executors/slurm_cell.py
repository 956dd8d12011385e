"""A cell on a node of a Slurm cluster: what is handed to submitit, and what the signals of the cluster mean to it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from rlhf.grid.executors import process
from rlhf.interruption import TWICE

if TYPE_CHECKING:
    from submitit.helpers import DelayedSubmission

STOP = signal.SIGUSR1
"""By this the grid asks a job to save and end. Slurm's own SIGTERM may as well mean that it is to run again."""
POLL = 0.1
"""Seconds between two looks at the cell."""


class SlurmCell:
    """Runs a cell's command, and has it save before Slurm takes the node away.

    Of the signals, ``STOP`` ends the job for good. Before the time limit, or a preemption that sends it, comes
    submitit's own (SIGUSR2): the job is queued again. SIGTERM is what Slurm sends to a job that is cancelled, requeued
    or preempted: in the first two cases Slurm knows already what comes next; in the third, as long as the job counts as
    running, it is queued again.

    Args:
        arguments: What follows ``python``.
        log: File to which the cell's output is appended; absolute.
        threads: As the executor has them.
        gpus: As the executor has them.
    """

    def __init__(self, arguments: Sequence[str], log: Path, *, threads: int | None, gpus: int) -> None:
        self.arguments, self.log, self.threads, self.gpus = list(arguments), log, threads, gpus
        self._asked: set[int] = set()

    def __call__(self) -> tuple[int, str]:
        """Runs the cell to its end: its exit code, and why the job was not queued again where it should have been."""
        from submitit import JobEnvironment

        job = JobEnvironment()
        result = job.paths.result_pickle
        for path in (result, result.with_suffix(".pkl.save_tmp")):  # of this job, before it was queued again
            path.unlink(missing_ok=True)
        save = signal.Signals[f"SIG{job.USR_SIG}"]
        queue_again = signal.getsignal(save)
        for number in (STOP, save, signal.SIGTERM):
            signal.signal(number, self._note)
        code = self._run(ignored=(STOP, save))
        again = save in self._asked or (signal.SIGTERM in self._asked and _slurm_state() == "RUNNING")
        if not again or STOP in self._asked or code not in process.ASKED or not callable(queue_again):
            return code, ""
        try:
            queue_again(save, None)  # ends this process
        except Exception as error:
            return code, f"it was not queued again: {error}"
        return code, ""

    def checkpoint(self) -> DelayedSubmission:
        """What submitit queues again: the same command, which continues."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(SlurmCell(self.arguments, self.log, threads=self.threads, gpus=self.gpus))

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._asked.add(number)

    def _run(self, ignored: Sequence[signal.Signals]) -> int:
        environment = process.environment(self.threads) | {TWICE: "1"}  # some clusters signal the cell as well
        if self.gpus == 0:
            environment["CUDA_VISIBLE_DEVICES"] = ""
        cell, told = process.start(self.arguments, self.log, environment, ignored=ignored), False
        while (code := cell.poll()) is None:
            if self._asked and not told:
                cell.send_signal(signal.SIGTERM)
                told = True
            time.sleep(POLL)
        return code


def _slurm_state() -> str:
    """Of this job, as Slurm has it; nothing where that cannot be asked."""
    job = os.environ.get("SLURM_JOB_ID")
    if job is None:
        return ""
    command = ["squeue", "--noheader", f"--jobs={job}", "--format=%T"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""

"""A cell as a process: what it is told, and that it ends with the process that has started it.

Imports nothing heavy: on a cluster it is what a node imports before the cell.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS", "RAYON_NUM_THREADS")
"""Environment variables by which libraries are told how many threads to use."""
LAUNCHED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Of a launcher that has started the grid: a cell has none."""
ASKED = (128 + signal.SIGINT, 128 + signal.SIGTERM, -signal.SIGINT, -signal.SIGTERM)
"""Exit codes of a cell that was asked to end."""
_PR_SET_PDEATHSIG = 1


def environment(threads: int | None) -> dict[str, str]:
    """Of a cell: that of this process, with the number of threads where it is given."""
    found = {name: value for name, value in os.environ.items() if name not in LAUNCHED}
    if threads is not None:
        found |= dict.fromkeys(THREADS, str(threads))
    return {**found, "PYTHONUNBUFFERED": "1"}  # a log is read while it grows, and after a kill


def start(
    arguments: Sequence[str], log: Path, environment: Mapping[str, str], *, ignored: Sequence[signal.Signals] = ()
) -> subprocess.Popen[bytes]:
    """Starts a cell, in a process group of its own.

    Args:
        arguments: What follows ``python``.
        log: File to which its output is appended.
        environment: Its variables.
        ignored: Signals that do nothing to it, nor to what it starts.
    """
    with log.open("ab") as file:
        return subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            start_new_session=True,  # Ctrl-C is for the grid, which hands it on
            preexec_fn=_first(os.getpid(), ignored),
        )


def signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Signals a cell and all that it has started, where any of it is left."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _first(parent: int, ignored: Sequence[signal.Signals]) -> Callable[[], None] | None:
    """What a new process does first, so that it is asked to stop when its parent dies, killed or not."""
    if not sys.platform.startswith("linux"):
        return None  # the cell's lock keeps a restarted grid from running it twice
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def ask() -> None:
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it died before
            os._exit(128 + signal.SIGTERM)

    return ask

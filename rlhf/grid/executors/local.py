"""Cells as processes of this machine, some at a time."""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import dataclass

from rlhf.errors import UserError, require
from rlhf.grid.executors import process
from rlhf.interfaces import Ended, Executor, Job, LiveExecutor


@dataclass(frozen=True, kw_only=True)
class LocalPool(Executor):
    """Processes of this machine, each a cell with a core of its own, or a GPU.

    A cell that is stopped, because the grid is, or because its process was killed, saves first and is continued later.

    Args:
        at_once: How many cells run at a time; null is as many as have ``threads`` cores each or, where there are GPUs,
            a GPU.
        threads: CPU threads of a cell, in the place of an open ``threads`` of its experiment. Figures depend on them in
            the last digits. Null leaves torch's own choice, by which cells take each other's cores.
        gpus: Numbers of the GPUs that are dealt out, one to a cell; with more cells at a time they share them. Null is
            all that ``CUDA_VISIBLE_DEVICES`` leaves, an empty list none.
    """

    at_once: int | None = None
    threads: int | None = 1
    gpus: list[int] | None = None

    def __post_init__(self) -> None:
        require(at_least=1, at_once=self.at_once, threads=self.threads)
        require(at_least=0, **{f"gpus.{index}": number for index, number in enumerate(self.gpus or ())})
        if self.gpus is not None and len(set(self.gpus)) < len(self.gpus):
            raise UserError(f"gpus is {self.gpus}; name each once, and let cells share them by a larger at_once")

    def devices(self) -> list[str] | None:
        """The GPUs as ``CUDA_VISIBLE_DEVICES`` names them; None where there are none to speak of."""
        if self.gpus is not None:
            return [str(number) for number in self.gpus]
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        if visible is not None:
            return [name for name in visible.split(",") if name]
        import torch

        return [str(number) for number in range(torch.cuda.device_count())] or None

    @property
    def slots(self) -> int:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return self.at_once or len(self.devices() or ()) or max(1, cores // (self.threads or cores))

    def describe(self) -> str:
        devices = self.devices()
        return super().describe() + ("" if devices is None else f"; GPUs: {', '.join(devices) or 'none'}")

    def open(self) -> LiveExecutor:
        return _Pool(self.slots, self.threads, self.devices())


class _Pool(LiveExecutor):
    """The processes. What they start themselves is in their process groups, and ends with them."""

    def __init__(self, slots: int, threads: int | None, devices: list[str] | None) -> None:
        self.slots, self.threads, self.devices = slots, threads, devices
        self.running: dict[int, tuple[Job, subprocess.Popen[bytes]]] = {}

    def start(self, job: Job) -> int:
        slot = min(set(range(self.slots)) - self.running.keys())
        started = process.start(job.arguments, job.log, self.environment(slot))
        self.running[slot] = (job, started)
        return started.pid

    def environment(self, slot: int) -> dict[str, str]:
        """Of the process in a slot."""
        found = process.environment(self.threads)
        if self.devices is not None:
            found["CUDA_VISIBLE_DEVICES"] = self.devices[slot % len(self.devices)] if self.devices else ""
        return found

    def ended(self) -> list[Ended]:
        codes = {slot: started.poll() for slot, (_, started) in self.running.items()}
        return [Ended(self._let_go(slot), code) for slot, code in codes.items() if code is not None]

    def _let_go(self, slot: int) -> str:
        job, started = self.running.pop(slot)
        process.signal_group(started, signal.SIGKILL)  # whatever it has left behind
        return job.name

    def stop(self) -> None:
        for _, started in self.running.values():
            started.send_signal(signal.SIGTERM)  # SIGINT may be ignored: a shell's jobs in the background do so

    def kill(self) -> None:
        for _, started in self.running.values():
            process.signal_group(started, signal.SIGKILL)
            started.wait()

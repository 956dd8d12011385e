"""Cells as processes of a Ray cluster."""

from __future__ import annotations

import importlib
import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf.errors import UserError, require
from rlhf.grid.executors import process
from rlhf.interfaces import Ended, Executor, Job, LiveExecutor

POLL = 0.1
"""Seconds between two looks of a worker at its cell."""
KILLED = 10.0
"""Seconds for cells to be gone that were killed."""
STORE = 100 << 20
"""Bytes for objects in a cluster of our own: exit codes are all there are."""


@dataclass(frozen=True, kw_only=True)
class Ray(Executor):
    """Workers of a Ray cluster, each with a cell; needs the extra ``rlhf[ray]``, and a disk that all nodes share.

    Cells end with the grid, as those of a ``LocalPool``.

    Args:
        address: Of the cluster, as ``ray.init`` takes it (``auto``, ``ray://host:10001``); null starts one on this
            machine that ends with the grid.
        at_once: How many cells are handed to Ray at a time. It starts those that it has room for.
        threads: CPUs and CPU threads of a cell, in the place of an open ``threads`` of its experiment; figures depend
            on them in the last digits. Null reserves one CPU, and leaves the threads to Ray.
        gpus: GPUs of a cell; 0.5 has two share one.
    """

    address: str | None = None
    at_once: int = 16
    threads: int | None = 1
    gpus: float = 0.0

    def __post_init__(self) -> None:
        require(at_least=1, at_once=self.at_once, threads=self.threads)
        require(at_least=0, gpus=self.gpus)

    @property
    def slots(self) -> int:
        return self.at_once

    def describe(self) -> str:
        gpus = f"; GPUs of each: {self.gpus:g}" if self.gpus else ""
        return f"{super().describe()}{gpus}; {'on this machine' if self.address is None else f'at {self.address}'}"

    def open(self) -> LiveExecutor:
        ray = _package()
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        local = {"include_dashboard": False, "object_store_memory": STORE} if self.address is None else {}
        former = signal.getsignal(signal.SIGTERM)  # which it puts its own in the place of
        try:
            ray.init(self.address or "local", log_to_driver=False, logging_level=logging.ERROR, **local)
        except Exception as error:  # it raises all sorts
            where = "a cluster on this machine does not start" if self.address is None else f"address {self.address}"
            raise UserError(f"Ray: {where}: {error}") from error
        finally:
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, former)
        most = ray.cluster_resources()
        for name, wanted in (("CPU", self.threads or 1), ("GPU", self.gpus)):
            if wanted > most.get(name, 0):  # it would wait for ever
                ray.shutdown()
                raise UserError(f"Ray: a cell wants {wanted:g} {name}s, and the cluster has {most.get(name, 0):g}")
        return _Workers(self)


def _package() -> Any:
    try:
        return importlib.import_module("ray")
    except ModuleNotFoundError:
        raise UserError("Ray: the package ray is missing; pip install 'rlhf[ray]'") from None


class RayCell:
    """A cell on a worker; what asks it to stop comes while it runs, in another thread."""

    def __init__(self) -> None:
        self.asked = False
        self.cell: subprocess.Popen[bytes] | None = None

    def run(self, arguments: Sequence[str], log: str, folder: str, threads: int | None) -> int:
        """Runs a command in a folder; its exit code."""
        os.chdir(folder)
        self.cell = process.start(arguments, Path(log), process.environment(threads))
        told = False
        while (code := self.cell.poll()) is None:
            if self.asked and not told:
                self.cell.send_signal(signal.SIGTERM)
                told = True
            time.sleep(POLL)
        process.signal_group(self.cell, signal.SIGKILL)  # whatever it has left behind
        return code

    def stop(self) -> None:
        """Asks the cell to save and end."""
        self.asked = True

    def kill(self) -> None:
        """Ends the cell at once."""
        if self.cell is not None:
            process.signal_group(self.cell, signal.SIGKILL)


class _Workers(LiveExecutor):
    """A worker for each cell, which ends with it."""

    def __init__(self, settings: Ray) -> None:
        ray = _package()
        self.settings, self.slots = settings, settings.slots
        self.kind: Any = ray.remote(RayCell).options(
            num_cpus=settings.threads or 1, num_gpus=settings.gpus, max_concurrency=2, max_restarts=0
        )
        self.running: dict[str, tuple[Any, Any, Any]] = {}
        """By cell: its worker, and what is to come: that this is there, and the exit code."""
        self.stopping = False

    def start(self, job: Job) -> None:
        worker = self.kind.remote()
        code = worker.run.remote(list(job.arguments), str(job.log.resolve()), os.getcwd(), self.settings.threads)
        self.running[job.name] = (worker, worker.__ray_ready__.remote(), code)

    def ended(self) -> list[Ended]:
        ray = _package()
        if not self.running:
            return []
        names = {code: name for name, (_, _, code) in self.running.items()}
        done, _ = ray.wait(list(names), num_returns=len(names), timeout=0)
        return [self._let_go(names[code]) for code in done]

    def _let_go(self, name: str) -> Ended:
        ray = _package()
        worker, _, code = self.running.pop(name)
        try:
            return Ended(name, ray.get(code))
        except ray.exceptions.RayActorError as error:
            if self.stopping:
                return Ended(name, -signal.SIGTERM)
            return Ended(name, -signal.SIGKILL, f"its Ray worker was lost: {str(error).splitlines()[0]}")
        except ray.exceptions.RayError as error:
            return Ended(name, 1, f"its Ray worker failed: {str(error).strip().splitlines()[-1]}")
        finally:
            ray.kill(worker)

    def stop(self) -> None:
        ray = _package()
        again, self.stopping = self.stopping, True
        for worker, ready, _ in self.running.values():
            if not ray.wait([ready], timeout=0)[0]:  # Ray has no room for it yet
                ray.kill(worker)
            elif again:
                worker.kill.remote()
            else:
                worker.stop.remote()

    def kill(self) -> None:
        ray = _package()
        for worker, _, _ in self.running.values():
            worker.kill.remote()
        if codes := [code for _, _, code in self.running.values()]:
            ray.wait(codes, num_returns=len(codes), timeout=KILLED)
        for worker, _, _ in self.running.values():
            ray.kill(worker)
        self.running.clear()

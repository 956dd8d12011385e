"""Processes that stay: what several ranks do is tested without starting them anew for every case."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import socket
import sys
import traceback
from collections.abc import Callable
from typing import Any

START_SECONDS = 180
"""For processes that import torch and DeepSpeed side by side, on a busy machine."""


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def _work(rank: int, world: int, port: int, path: list[str], tasks: Any, answers: Any) -> None:
    sys.path[:] = path
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    import torch

    torch.set_num_threads(1)
    from rlhf import distributed

    distributed.start()
    while (task := tasks.get()) is not None:
        function, arguments, settings = pickle.loads(task)
        try:
            answers.put((rank, None, pickle.dumps(function(*arguments, **settings))))
        except BaseException:
            answers.put((rank, traceback.format_exc(), None))
    distributed.stop()


class Processes:
    """``world`` ranks, connected by gloo, each running what it is given."""

    def __init__(self, world: int) -> None:
        self.world = world
        self.workers: list[Any] = []

    def _start(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.answers, port = spawn.Queue(), free_port()
        self.tasks = [spawn.Queue() for _ in range(self.world)]
        self.workers = [
            spawn.Process(target=_work, args=(rank, self.world, port, sys.path, tasks, self.answers), daemon=True)
            for rank, tasks in enumerate(self.tasks)
        ]
        for worker in self.workers:
            worker.start()

    def run(
        self, function: Callable[..., Any], *arguments: Any, seconds: float = START_SECONDS, **settings: Any
    ) -> list:
        """What a function of a module answers on each rank.

        Raises:
            AssertionError: it raised on one of them. The processes end, and others take their place.
        """
        if not self.workers:
            self._start()
        task = pickle.dumps((function, arguments, settings))  # by us: queues share tensors' memory, and may wait for it
        for tasks in self.tasks:
            tasks.put(task)
        found: list[Any] = [None] * self.world
        for _ in range(self.world):
            try:
                rank, error, answer = self.answers.get(timeout=seconds)
            except Exception:
                self.end()
                raise AssertionError(f"no answer within {seconds} s") from None
            if error is not None:
                self.end()
                raise AssertionError(f"on rank {rank}: {error}")
            found[rank] = pickle.loads(answer)
        return found

    def end(self) -> None:
        """Ends the processes, whatever they do."""
        for worker in self.workers:
            worker.kill()
            worker.join()
        self.workers = []

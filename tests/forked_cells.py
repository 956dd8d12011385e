"""Cells and grids as forks of the process that tests them: what a Python and its imports cost is paid once."""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rlhf.interfaces import Ended, Executor, Job, LiveExecutor

BASE = """
name: tiny
cache_dir: null
stages:
  sft:
    class_path: SFT
    init_args:
      policy:
        class_path: FromScratch
        init_args: {config: {model_type: gpt2, n_layer: 1, n_embd: 16, n_head: 2, n_positions: 64}, vocab_size: 280}
      data:
        sources:
          toy: {class_path: Generator, init_args: {function: tiny_runs.rows, arguments: {form: demonstration, n: 24}}}
        eval_rows: 4
        max_tokens: 32
      steps: 3
      batch_size: 4
  ppo:
    class_path: PPO
    init_args:
      policy: {class_path: Pretrained, init_args: {path: "@sft"}}
      reward: {class_path: FunctionReward, init_args: {function: tiny_runs.letters}}
      data:
        sources:
          toy: {class_path: Generator, init_args: {function: tiny_runs.rows, arguments: {form: prompt, n: 24}}}
        eval_rows: 4
        max_tokens: 32
      sampling: {max_new_tokens: 4}
      batch_size: 8
      mini_batch_size: 4
      iterations: 3
"""
GRID = """
name: g
base: base.yaml
seeds: [1, 2]
axes:
  clip:
    on: {stages.ppo.score_clip: 1.0}
    off: {stages.ppo.score_clip: null}
  stages.ppo.kl.controller.coef: [0.05, 0.1]
executor: {class_path: forked_cells.Forked, init_args: {at_once: 2}}
"""


def moody(prompts: list[str], responses: list[str]) -> list[float]:
    """A reward that works once a file is there."""
    if not Path("mended").exists():
        raise RuntimeError("out of sorts")
    return [float(len(response)) for response in responses]


def dawdled_letters(prompts: list[str], responses: list[str]) -> list[float]:
    """Lower-case letters in each response, counted so slowly that something may come between."""
    time.sleep(0.7)
    return [float(sum("a" <= character <= "z" for character in response)) for response in responses]


@dataclass(frozen=True, kw_only=True)
class Forked(Executor):
    """Cells as forks of the grid's process."""

    at_once: int = 2
    threads: int | None = 1

    @property
    def slots(self) -> int:
        return self.at_once

    def open(self) -> LiveExecutor:
        return _Forks(self.at_once)


class _Forks(LiveExecutor):
    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.running: dict[int, str] = {}

    def start(self, job: Job) -> int:
        pid = fork(lambda: _as_python(list(job.arguments)), job.log)
        self.running[pid] = job.name
        return pid

    def ended(self) -> list[Ended]:
        found = []
        for pid in list(self.running):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                found.append(Ended(self.running.pop(pid), os.waitstatus_to_exitcode(status)))
        return found

    def stop(self) -> None:
        for pid in self.running:
            os.kill(pid, signal.SIGTERM)

    def kill(self) -> None:
        for pid in self.running:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self.running.clear()


def fork(work: Callable[[], int], log: Path) -> int:
    """A process that does something, is asked to stop when this one dies, and whose output is appended to a file."""
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        sink = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(sink, 1)
        os.dup2(sink, 2)
        sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
        sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
        code = work()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _as_python(arguments: list[str]) -> int:
    """What ``python -m MODULE …`` does."""
    assert arguments[0] == "-m"
    sys.argv = arguments[1:]
    try:
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    return [int(word) for path in Path(f"/proc/{pid}/task").glob("*/children") for word in path.read_text().split()]

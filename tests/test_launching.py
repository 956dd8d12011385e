"""Runs of several processes by the launchers of the docs: the same figures, one voice, and an end whatever breaks."""

from __future__ import annotations

import collections
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny_runs
from processes import free_port

ROOT = Path(__file__).parent.parent
SECONDS = 280
"""For a launch with its imports, on a busy machine."""

CONFIG = """
name: two
threads: 1
stage_cache: null
stages:
  sft:
    class_path: SFT
    init_args:
      policy:
        class_path: FromScratch
        init_args: {vocab_size: 300, config: {model_type: gpt2, n_layer: 1, n_embd: 16, n_head: 2, n_positions: 128}}
      data: {sources: {world: {class_path: World, init_args: {form: demonstrations, rows: 60}}}, max_tokens: 64}
      steps: 4
      batch_size: 4
      schedule: {class_path: faults.Faulty, init_args: {what: nothing}}
      engine: {class_path: Zero, init_args: {stage: 2}}
  ppo:
    class_path: PPO
    init_args:
      policy: {class_path: Pretrained, init_args: {path: "@sft"}}
      reward: {class_path: FunctionReward, init_args: {function: rlhf.data.world.gold_reward}}
      data: {sources: {world: {class_path: World, init_args: {form: prompts, rows: 60}}}}
      sampling: {max_new_tokens: 8}
      batch_size: 8
      mini_batch_size: 4
      iterations: 2
      averaging: {class_path: EMA, init_args: {decay: 0.5}}
      engine: {class_path: Zero, init_args: {stage: 3}}
"""
FAULTS = '''
"""A schedule in which one process does something else than the others."""

import os, signal, time
from dataclasses import dataclass

from rlhf import distributed
from rlhf.interfaces import Schedule


@dataclass(frozen=True, kw_only=True)
class Faulty(Schedule):
    what: str

    def factor(self, step: int, total: int) -> float:
        time.sleep(0.2 if self.what == "slow" else 0.0)
        if step == 2 and distributed.rank() == 1:
            if self.what == "raise":
                raise ValueError("something is wrong in process 1")
            if self.what == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
        if step == 2 and self.what == "kill":  # the main process is at work, and not in a collective
            time.sleep(5)
        return 1.0
'''
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
TWO = [*TORCHRUN, "--standalone", "--nproc-per-node", "2"]
RUN = ["-m", "rlhf.run", "--config", "two.yaml"]


def launch(folder: Path, command: list[str]) -> subprocess.Popen[str]:
    """Starts a command in a folder that has the config, in a session of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "two.yaml").write_text(CONFIG)
    (folder / "faults.py").write_text(FAULTS)
    return subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str], seconds: float = SECONDS) -> tuple[int, str]:
    """Exit code and output; whatever of its session is left is ended."""
    try:
        said = process.communicate(timeout=seconds)[0]
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, said


def same(found: Path, expected: Path) -> None:
    for stage in ("sft", "ppo"):
        one, other = (folder / "runs" / "two" / stage for folder in (found, expected))
        assert tiny_runs.metrics(one) == tiny_runs.metrics(other)
        assert tiny_runs.same_weights(one / "model", other / "model")
    assert tiny_runs.same_weights(one / "ema", other / "ema")


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("whole")
    code, said = finish(launch(folder, [*TWO, *RUN]))
    assert code == 0, said
    return folder, said


def documented(word: str) -> list[list[str]]:
    """The commands of docs/engines.md that hold a word."""
    lines = (ROOT / "docs" / "engines.md").read_text(encoding="utf-8").splitlines()
    found = [shlex.split(line) for line in lines if word in line and "rlhf.run" in line and "`" not in line]
    assert found, word
    return found


def module(words: list[str]) -> list[str]:
    """A documented command by the interpreter of the tests."""
    places = {"torchrun": "torch.distributed.run", "deepspeed": "deepspeed.launcher.runner"}
    return [sys.executable, "-m", places[words[0]], *words[1:]]


def noise(line: str) -> bool:
    """Whether a line is a launcher's own, or says nothing."""
    return not line.strip("*= \n") or bool(re.match(r"(W|E|I)\d{4} |\[\d{4}-\d\d-\d\d ", line))


@pytest.mark.slow
def test_every_line_is_said_once(whole):
    lines = [line for line in whole[1].splitlines() if not noise(line)]
    assert not [line for line, times in collections.Counter(lines).items() if times > 1], whole[1]
    for beginning in ("sft: world: ", "sft 4/4", "ppo 2/2", "curves: ", "report: "):
        assert len([line for line in lines if line.startswith(beginning)]) == 1, (beginning, whole[1])


@pytest.mark.slow
def test_the_deepspeed_launcher_gives_the_same_figures(whole, tmp_path):
    (words,) = documented("deepspeed --")
    at = words.index("--module")
    words = [*words[:at], "--master_port", str(free_port()), *words[at:]]
    places = {"zero.yaml": "two.yaml", "by_deepspeed": "two"}
    code, said = finish(launch(tmp_path, [places.get(word, word) for word in module(words)]))
    assert code == 0, said
    same(tmp_path, whole[0])


@pytest.mark.slow
def test_two_nodes_give_the_same_figures(whole, tmp_path):
    (words,) = documented("--nnodes")
    words[words.index("--nproc-per-node") + 1] = "1"
    places = {"zero.yaml": "two.yaml", "node-0:29500": f"127.0.0.1:{free_port()}"}
    nodes = [launch(tmp_path, [places.get(word, word) for word in module(words)]) for _ in range(2)]
    ends = [finish(node) for node in nodes]
    assert [code for code, _ in ends] == [0, 0], ends
    same(tmp_path, whole[0])
    spoken = [[line for line in said.splitlines() if not noise(line)] for _, said in ends]
    assert sorted(map(bool, spoken)) == [False, True], spoken  # the node of the main process alone


def started(folder: Path, process: subprocess.Popen[str]) -> None:
    """Waits for a step."""
    metrics, deadline = folder / "runs" / "two" / "sft" / "metrics.jsonl", time.monotonic() + SECONDS
    while not (metrics.exists() and metrics.stat().st_size):
        assert process.poll() is None and time.monotonic() < deadline, finish(process)
        time.sleep(0.02)


def to_launcher(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)


def to_all(process: subprocess.Popen[str]) -> None:
    """As a batch system does; the launcher then hands on what they have got already."""
    listed = subprocess.run(["ps", "-eo", "pid,ppid"], capture_output=True, text=True, check=True).stdout.split()[2:]
    workers = [int(pid) for pid, parent in zip(listed[::2], listed[1::2], strict=True) if int(parent) == process.pid]
    assert len(workers) == 2
    for pid in (*workers, process.pid):
        os.kill(pid, signal.SIGTERM)


@pytest.mark.slow
@pytest.mark.parametrize("ask", [to_launcher, to_all])
def test_sigterm_stops_all_processes_and_the_same_command_continues(
    whole, tmp_path, ask: Callable[[subprocess.Popen[str]], None]
):
    slow = [*TWO, *RUN, "--stages.sft.schedule.what", "slow"]
    process = launch(tmp_path, slow)
    started(tmp_path, process)
    ask(process)
    code, said = finish(process, 30)
    # torchrun makes 1 of every code that is not 0
    assert code == 1 and said.count("stage sft: stopped by SIGTERM; step ") == 1, said
    assert said.count("Stopping as soon as the run can go on from there") == 1
    assert "Traceback" not in said.partition("stopped by SIGTERM")[0]
    checkpoints = tmp_path / "runs" / "two" / "sft" / "checkpoints"
    names = {path.name for path in (checkpoints / (checkpoints / "latest").read_text()).iterdir()}
    assert names == {"manifest.json", "state.pt", "rank_0.pt", "rank_1.pt"}
    if ask is to_all:
        code, said = finish(launch(tmp_path, slow))
        assert code == 0 and "sft: continues from step" in said, said
        same(tmp_path, whole[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("raise", "ValueError: something is wrong in process 1"),  # the main process waits for it in a collective
        # torchrun asks the main process to stop while it is at work, and that finds nobody to agree with
        ("kill", "Error: another process of the run has ended without a word"),
    ],
)
def test_an_error_in_one_process_ends_all(tmp_path, what, told):
    process = launch(tmp_path, [*TWO, *RUN, "--stages.sft.schedule.what", what])
    started(tmp_path, process)
    start = time.monotonic()
    code, said = finish(process, 60)
    assert code == 1 and time.monotonic() - start < 30
    assert said.count(told) == 1, said
    errors = re.findall(r"^(?:\[rank\d\]: )?((?:\w+\.)*\w*(?:Error|Exception): .*)$", said, re.MULTILINE)
    assert len([error for error in errors if "torch.distributed.elastic" not in error]) == 1, said  # and no other
    assert f"exitcode  : {-9 if what == 'kill' else 1} " in said
    assert not (tmp_path / "runs" / "two" / "sft" / "model").exists()

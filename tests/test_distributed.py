"""What processes agree on, and that one error is told once."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import free_port

from rlhf import distributed

ROOT = Path(__file__).parent.parent


def test_one_process_agrees_with_itself() -> None:
    assert (distributed.rank(), distributed.world_size(), distributed.is_main()) == (0, 1, True)
    assert distributed.gather("a") == ["a"] and distributed.broadcast("a") == "a" and distributed.total(2.5) == 2.5
    assert distributed.once(lambda: 7) == 7 and distributed.first_to_fail()


def test_before_processes_are_connected_the_launcher_knows_who_failed_first(monkeypatch) -> None:
    port = free_port()
    store = torch.distributed.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    variables = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert not distributed.first_to_fail()  # without torchrun the main process is meant to speak
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    assert distributed.first_to_fail()  # process 1, as where it alone lacks a file
    monkeypatch.setenv("RANK", "0")
    assert not distributed.first_to_fail()
    del store


def agreements() -> dict[str, Any]:
    rank, called = distributed.rank(), []

    def fails() -> None:
        called.append(rank)
        raise ValueError("no answer")

    try:
        distributed.once(fails)
        error = ""
    except ValueError as raised:
        error = str(raised)
    return {
        "gather": distributed.gather(rank),
        "broadcast": distributed.broadcast(f"of {rank}"),
        "total": distributed.total(rank + 1.0),
        "error": error,
        "called": called,
        "first": distributed.gather(distributed.first_to_fail()),
    }


def test_two_processes_agree(two_processes) -> None:
    found = two_processes.run(agreements)
    for answer in found:
        assert answer["gather"] == [0, 1] and answer["broadcast"] == "of 0" and answer["total"] == 3.0
        assert answer["error"] == "no answer" and sum(answer["first"]) <= 1  # of all failures of these processes
    assert [answer["called"] for answer in found] == [[0], []]


CONFIG = """
name: two
stages:
  sft:
    class_path: SFT
    init_args:
      policy:
        class_path: FromScratch
        init_args: {vocab_size: 300, config: {model_type: gpt2, n_layer: 1, n_embd: 16, n_head: 2}}
      data: {sources: {world: {class_path: World, init_args: {form: demonstrations, rows: 40}}}, max_tokens: 64}
      steps: 2
      batch_size: 4
      engine: ENGINE
"""


@pytest.mark.parametrize(
    ("engine", "max_tokens", "code", "said"),
    [
        # before they are connected: a wrong config
        ("Local", 64, 2, "stages.sft.engine: Local runs in 1 process, but 2 were launched"),
        # afterwards: nothing is left to learn from
        pytest.param("Zero", 3, 1, "Error: stage sft: ", marks=pytest.mark.slow),
    ],
)
def test_an_error_ends_all_processes_and_is_told_once(tmp_path, engine, max_tokens, code, said) -> None:
    (tmp_path / "two.yaml").write_text(CONFIG.replace("ENGINE", engine).replace("64", str(max_tokens)))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    start = time.monotonic()
    done = subprocess.run(
        [*command, "-m", "rlhf.run", "--config", "two.yaml"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 1 and f"exitcode  : {code}" in done.stderr  # torchrun tells the processes' own
    assert time.monotonic() - start < 250
    assert (done.stdout + done.stderr).count(said) == 1, done.stderr
    assert not (tmp_path / "runs" / "two" / "sft" / "model").exists()

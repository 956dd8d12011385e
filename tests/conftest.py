"""What all tests share: one thread, no cache, no network, and no GPU test without a GPU."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ["RLHF_CACHE_DIR"] = ""  # nothing is kept, and nobody's own cache is touched
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
import torch

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as of a job in the background: tests send it to themselves
    signal.signal(signal.SIGINT, signal.default_int_handler)
torch.set_num_threads(1)  # sums are cut the same on every machine
sys.path.insert(0, str(Path(__file__).parent))  # importlib mode leaves the tests' own helpers (tiny_runs.py) unfound

from processes import Processes  # noqa: E402

LONGEST = ("test_docs.py", "test_zero_resume.py", "test_launching.py", "test_distributed.py")
"""First, so that no worker is left with one of them when the others have nothing more to do."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in LONGEST)
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a GPU"))


@pytest.fixture(scope="session")
def one_process() -> Iterator[Processes]:
    """A rank on its own, connected as by a launcher."""
    processes = Processes(1)
    yield processes
    processes.end()


@pytest.fixture(scope="session")
def two_processes() -> Iterator[Processes]:
    """Two ranks, started once for all tests that need them."""
    processes = Processes(2)
    yield processes
    processes.end()


@pytest.fixture(scope="session")
def four_processes() -> Iterator[Processes]:
    """Four ranks, for groups of groups."""
    processes = Processes(4)
    yield processes
    processes.end()

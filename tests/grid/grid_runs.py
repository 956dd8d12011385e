"""What tests of whole grids share: tiny grids in a folder, their figures, and grids in processes that can be killed."""

import json
import os
import time
from pathlib import Path

import forked_cells
import tiny_runs

from rlhf.grid.__main__ import main

SECONDS = 240
"""For a grid, on a busy machine."""


def prepare(folder, grid=forked_cells.GRID):
    (folder / "base.yaml").write_text(forked_cells.BASE)
    (folder / "grid.yaml").write_text(grid)


def run(*arguments, report=False):
    """The command; without the report, which takes longer than the tiny cells, unless it is asked for."""
    return main(["--config", "grid.yaml", *arguments, *([] if report else ["--no_report"])])


def figures(folder=Path()):
    """Of every cell and stage, without what no two runs share."""
    found = {}
    for path in sorted((folder / "runs" / "g").glob("*/*/metrics.jsonl")):
        found[f"{path.parts[-3]}/{path.parts[-2]}"] = tiny_runs.metrics(path.parent)
    return found


def made(folder=Path()):
    """The stages that cells made themselves, rather than taken."""
    records = [(path.parent, json.loads(path.read_text())) for path in (folder / "runs/g").glob("*/*/stage.json")]
    return sorted(f"{path.name}" for path, record in records if "taken_from" not in record)


class Process:
    """A grid in a process of its own."""

    def __init__(self, folder, *arguments, **options):
        self.said = folder / f"said-{time.monotonic_ns()}.txt"
        self.pid = forked_cells.fork(lambda: run(*arguments, **options), self.said)

    def until(self, condition):
        end = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < end, self.said.read_text()
            time.sleep(0.005)

    def wait(self):
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

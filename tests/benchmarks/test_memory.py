"""What engines hold is what is worked out, and what a step needs no more is let go."""

from __future__ import annotations

import memory_runs
import pytest

CELLS = [(cell.stage, cell.lora, cell.offload, cell.precision) for cell in memory_runs.script().cells()]
NOISE = 4096
"""Bytes of batches, masks and single numbers."""


def check(stage: int, offload: str, before: dict[str, int], after: dict[str, int], expected: dict[str, int]) -> None:
    for kind, size in expected.items():
        assert before[kind] == pytest.approx(size, rel=0.1, abs=NOISE), kind
        assert after[kind] <= before[kind] + NOISE, kind
    assert expected["weights"] > 100 * NOISE and expected["gradients"] > 10 * NOISE  # so that noise is noise
    if offload == "none" and stage < 3:
        assert after["gradients"] == 0


@pytest.mark.slow
@pytest.mark.parametrize(("stage", "lora", "offload", "precision"), CELLS)
def test_counted_bytes_are_those_worked_out(two_processes, stage, lora, offload, precision) -> None:
    assert len(CELLS) == 32
    for found in two_processes.run(memory_runs.measure, stage, lora, offload, precision):
        check(stage, offload, *found)


@pytest.mark.slow
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_counted_bytes_on_one_process(one_process, stage) -> None:
    for found in one_process.run(memory_runs.measure, stage, False, "none", "bf16"):
        check(stage, "none", *found)


def test_a_row_of_the_table() -> None:
    from rlhf.engines.memory import Bytes

    script = memory_runs.script()
    cell = script.Cell(3, True, "optimiser", "fp32")
    row = script.row(cell, {"weights": 2_000_000, "buffers": 10_000}, {"weights": Bytes(1_000_000, 1_500_000)})
    assert row == "| 3 | adapters | optimiser | 2.00 / 2.50 (host 1.50) | 0.804 |"  # 2.01 / 2.5

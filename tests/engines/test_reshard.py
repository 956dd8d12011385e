"""What a rank samples with is the trained model's, whoever holds which part of it, and only what it lacks is sent."""

from __future__ import annotations

import pytest
import reshard_runs
import torch
from decoders import BASES

from rlhf.engines.reshard import Rectangle

BUCKET = 4096


@pytest.mark.parametrize("width", [1, 3, 7])
def test_the_parts_between_two_places_are_exactly_those(width) -> None:
    rows = 5
    rectangles = [
        Rectangle(top, bottom, left, right)
        for top in range(rows) for bottom in range(top + 1, rows + 1)
        for left in range(width) for right in range(left + 1, width + 1)
    ]  # fmt: skip
    for start in range(0, rows * width, 2):
        for stop in range(start + 1, rows * width + 1, 3):
            for rectangle in rectangles:
                parts = list(rectangle.within(width, start, stop))
                found = [place for part in parts for place in reshard_runs.elements([part], width)]
                wanted = reshard_runs.elements([rectangle], width) & set(range(start, stop))
                assert len(found) == len(set(found)) and set(found) == wanted
                assert len(parts) <= 3


def check(answers: list[dict[str, float]], tp: int) -> None:
    for found in answers:
        assert found["wrong"] == 0
        assert found["lacking"] <= found["received"] <= 1.05 * found["lacking"]
        assert found["received"] > 0
        assert found["peak"] <= BUCKET


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("family", BASES)
def test_two_processes(two_processes, family, tp) -> None:
    check(two_processes.run(reshard_runs.reshard, family, tp, BUCKET, torch.float32), tp)


def test_it_travels_in_the_precision_of_the_sampler(two_processes) -> None:
    check(two_processes.run(reshard_runs.reshard, "llama", 2, BUCKET, torch.bfloat16), 2)


@pytest.mark.slow
@pytest.mark.parametrize("tp", [1, 2, 4])
@pytest.mark.parametrize("family", BASES)
def test_groups_of_ranks_beside_one_another(four_processes, family, tp) -> None:
    check(four_processes.run(reshard_runs.reshard, family, tp, BUCKET, torch.float32), tp)

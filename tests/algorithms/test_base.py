"""Checks that algorithms share: all known before anything loads."""

from dataclasses import dataclass

import pytest
import tiny_runs

from rlhf.algorithms.base import check_batch, check_positive
from rlhf.engines.local import Local


@dataclass(frozen=True, kw_only=True)
class Processes(Local):
    """Says that it has so many processes."""

    processes: int = 1

    @property
    def world_size(self) -> int:
        return self.processes


def test_batch_arithmetic():  # case H4
    eight = Processes(processes=8, micro_batch_size=2)
    (problem,) = check_batch(8, eight)
    assert problem.startswith("batch_size: 8 % 16 = 8, not 0") and "micro-batches of 2 on each of 8" in problem
    assert check_batch(16, eight) == []
    assert check_batch(48, Processes(processes=4, micro_batch_size=4)) == []
    assert check_batch(7, Processes(processes=4)) != [] and check_batch(7, Local()) == []


def test_batch_arithmetic_of_a_stage():  # case H4
    eight = Processes(processes=8, micro_batch_size=2)
    assert "8 % 16" in tiny_runs.sft(batch_size=8, engine=eight).check()[0]
    assert tiny_runs.reward_modelling(batch_size=16, engine=eight).check() == []


def test_positive():
    assert check_positive(steps=0, epochs=1, rows=None) == ["steps: is 0; must be at least 1"]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"batch_size": 0}, "batch_size: is 0; must be at least 1"),
        ({"steps": 0}, "steps: is 0; must be at least 1"),
    ],
)
def test_offline_settings_are_checked(settings, text):
    assert tiny_runs.sft(**settings).check() == [text]
    assert tiny_runs.sft().check() == []


@pytest.mark.parametrize("settings", [{"epochs": 0.0}, {"eval_every": -1}, {"save_every": -1}, {"max_grad_norm": -1.0}])
def test_offline_settings_out_of_range_are_refused(settings):
    with pytest.raises(ValueError, match=f"{next(iter(settings))} is .*; must be "):
        tiny_runs.sft(**settings)

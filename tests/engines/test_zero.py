"""``Zero`` gives what ``Local`` gives: every stage, one process and two, whatever share of the rows each has."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
import zero_runs
from zero_runs import agree, zero

from rlhf.algorithms.optimizers import SGD, AdamW
from rlhf.engines.local import Local

STAGES = (0, 1, 2, 3)
KINDS = ("sft", "reward", "ppo")
TRAINS = ("full", "lora")
CELLS = [
    pytest.param(trains, stage, marks=pytest.mark.slow if trains == "lora" and stage != 3 else ())
    for trains in TRAINS
    for stage in STAGES
]
"""What is trained, and a stage: adapters at stage 3 in the quick tests, at all of them in the slow ones."""


@functools.cache
def local(kind: str, steps: int, trains: str = "full") -> dict[str, Any]:
    return zero_runs.train(kind, Local(micro_batch_size=2), steps, trains=trains, optimizer=SGD(lr=0.1))


@pytest.mark.parametrize(
    ("stage", "offload"),
    [
        (2, {"offload_optimizer": True}),
        (3, {"offload_optimizer": True, "offload_parameters": True}),
    ],
)
def test_offloaded_states_are_stepped_the_same(two_processes, stage, offload) -> None:
    found = two_processes.run(zero_runs.train, "sft", zero(stage, **offload), 2, optimizer=SGD(lr=0.1))
    agree(found[0], local("sft", 2))


@pytest.mark.parametrize(("trains", "stage"), CELLS)
@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_train_as_one_does(two_processes, trains, kind, stage) -> None:
    found = two_processes.run(zero_runs.train, kind, zero(stage), 2, trains=trains, optimizer=SGD(lr=0.1))
    agree(found[0], local(kind, 2, trains))


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("trains", TRAINS)
@pytest.mark.parametrize("world", [1, 2])
def test_ten_steps(request, trains, kind, stage, world) -> None:
    processes = request.getfixturevalue("two_processes" if world == 2 else "one_process")
    engine = zero(stage, micro_batch_size=3 - world)
    found = processes.run(zero_runs.train, kind, engine, 10, trains=trains, optimizer=SGD(lr=0.1))
    agree(found[0], local(kind, 10, trains))


# --------------------------------------------------------------------------------------------------------- checkpoints


QUICK = {("sft", 2, 2), ("sft", 2, 3), ("reward", 1, 0)}
LAYOUTS = [
    pytest.param(kind, world, stage, marks=() if (kind, world, stage) in QUICK else pytest.mark.slow)
    for kind in KINDS
    for world in (1, 2)
    for stage in STAGES
]


@pytest.mark.parametrize(("kind", "world", "stage"), LAYOUTS)
def test_a_state_goes_on_anywhere(request, kind, world, stage) -> None:
    """Adam's state travels: from two processes at stage 3 to any other layout, and to ``Local``."""
    adam = {"optimizer": AdamW(lr=1e-3, eps=1e-4)}
    two, other = (request.getfixturevalue("two_processes" if w == 2 else "one_process") for w in (2, world))
    saved = two.run(zero_runs.train, kind, zero(3), 2, **adam)[0]["state"]
    again = two.run(zero_runs.train, kind, zero(3), 1, start=saved, **adam)[0]
    elsewhere = other.run(zero_runs.train, kind, zero(stage), 1, start=saved, **adam)[0]
    agree(elsewhere, again)
    if (world, stage) == (2, 3):
        whole = two.run(zero_runs.train, kind, zero(3), 3, **adam)[0]
        assert whole["lines"][-len(again["lines"]) :] == again["lines"]  # to the last bit
        assert all(torch.equal(whole["weights"][name], weight) for name, weight in again["weights"].items())
        agree(zero_runs.train(kind, Local(micro_batch_size=2), 1, start=saved, **adam), again)


# ----------------------------------------------------------------------------------------------------------------- EMA


@pytest.mark.parametrize(("trains", "stage"), CELLS)
@pytest.mark.parametrize("micro_batch_size", [pytest.param(4, marks=pytest.mark.slow), 1])  # one pass a step, several
def test_an_average_is_the_closed_form_on_every_process(two_processes, trains, stage, micro_batch_size) -> None:
    engine = zero(stage, micro_batch_size=micro_batch_size)
    for off, moved in two_processes.run(zero_runs.average, engine, 0.9, 3, trains=trains):
        assert off < 5e-7 and moved > 1e-4


@pytest.mark.parametrize(("trains", "stage"), CELLS)
def test_an_average_of_half_precision_moves_as_that_of_the_fp32_masters(two_processes, trains, stage) -> None:
    """A step of 0.1 % is lost in bf16 weights, whose neighbours are 0.4 % apart."""
    engine = zero(stage, precision="bf16")
    (off, moved), (_, other) = two_processes.run(zero_runs.average, engine, 0.999, 3, trains=trains)
    (_, exact) = zero_runs.average(Local(), 0.999, 3, trains=trains)
    assert off < 5e-7 and moved == other == pytest.approx(exact, rel=0.05)

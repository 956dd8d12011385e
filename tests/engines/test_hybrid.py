"""``Hybrid`` trains as its engine does, and samples the same responses from another form of the weights."""

from __future__ import annotations

import functools
from typing import Any

import hybrid_runs
import pytest
import torch
import zero_runs

from rlhf.algorithms.optimizers import SGD
from rlhf.engines.hybrid import Hybrid
from rlhf.engines.inference.tensor_parallel import TensorParallel
from rlhf.engines.local import Local
from rlhf.engines.zero import Zero
from rlhf.errors import UserError

EAGER = {"stage3_max_live_parameters": 0, "stage3_max_reuse_distance": 0, "stage3_prefetch_bucket_size": 0}


def hybrid(stage: int, tp: int, **settings: Any) -> Hybrid:
    config = {"zero_optimization": EAGER} if stage == 3 else {}
    train = Zero(stage=stage, micro_batch_size=1, config=config)  # type: ignore[arg-type]
    return Hybrid(train=train, inference=TensorParallel(tp=tp, **settings))


@functools.cache
def local(steps: int, trains: str = "full") -> dict[str, Any]:
    return zero_runs.train("ppo", Local(micro_batch_size=2), steps, trains=trains, optimizer=SGD(lr=0.1))


def agree(found: dict[str, Any], expected: dict[str, Any], tolerance: float = 1e-4) -> None:
    for mine, its in zip(found["lines"], expected["lines"], strict=True):
        assert its.keys() <= mine.keys()
        assert ("kl/ref_k1" in its) == ("rollout/decoder_calls" in mine)  # iterations, not optimiser steps
        assert {name: mine[name] for name in its} == pytest.approx(its, rel=tolerance, abs=tolerance * 1e-1)
    for part in ("weights", "ema", "critic"):
        for name, weight in expected[part].items():
            assert torch.allclose(found[part][name].to(weight), weight, rtol=0, atol=tolerance), (part, name)


@pytest.mark.parametrize("trains", ["full", "lora"])
def test_alone_it_learns_as_local_does(trains) -> None:
    engine = Hybrid(train=Local(micro_batch_size=2))
    agree(zero_runs.train("ppo", engine, 3, trains=trains, optimizer=SGD(lr=0.1)), local(3, trains))


@pytest.mark.parametrize(
    ("trains", "stage", "tp"),
    [
        ("full", 3, 2),
        ("lora", 3, 2),
        pytest.param("full", 3, 1, marks=pytest.mark.slow),
        pytest.param("full", 2, 2, marks=pytest.mark.slow),
        pytest.param("lora", 2, 1, marks=pytest.mark.slow),
        pytest.param("full", 0, 2, marks=pytest.mark.slow),
    ],
)
def test_two_processes_learn_as_local_does(two_processes, trains, stage, tp) -> None:
    found = two_processes.run(zero_runs.train, "ppo", hybrid(stage, tp), 2, trains=trains, optimizer=SGD(lr=0.1))
    agree(found[0], local(2, trains))


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 4])
def test_ten_steps_by_groups_of_two(request, world) -> None:
    processes = request.getfixturevalue("two_processes" if world == 2 else "four_processes")
    found = processes.run(zero_runs.train, "ppo", hybrid(3, 2), 5, optimizer=SGD(lr=0.1))
    assert len(found[0]["lines"]) >= 10
    agree(found[0], local(5))


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 4])
def test_ten_thousand_draws(request, world) -> None:
    processes = request.getfixturevalue("two_processes" if world == 2 else "four_processes")
    found, expected = processes.run(hybrid_runs.draws, hybrid(3, 2), 512), hybrid_runs.draws(Local(), 512)
    assert sum(len(row) for row in expected) == 10240 and len({tuple(row) for row in expected}) > 500
    assert sum(one != other for one, other in zip(found[-1], expected, strict=True)) <= 1


def test_modes_in_any_order_change_nothing() -> None:
    plain, tried = (hybrid_runs.rollouts(Hybrid(), modes=modes) for modes in (False, True))
    assert plain == tried


@pytest.mark.parametrize("keep", [True, False])
def test_memory_is_given_back_where_that_is_asked(keep) -> None:
    found = hybrid_runs.memory(Hybrid(inference=TensorParallel(keep_cache=keep, keep_weights=keep)))
    assert found["inside"] > 0 and (found["after"] > 0) == keep
    assert found["again"] == found["first"]


def test_an_error_while_sampling_leaves_training_as_it_was() -> None:
    assert hybrid_runs.after_an_error(Hybrid()) == hybrid_runs.after_an_error(Hybrid(), failing=False)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_hundred_switches_leave_the_base_and_show_the_adapter(dtype) -> None:
    found = hybrid_runs.switches(Hybrid(), dtype, 100)
    assert found["base_moved"] == 0 and found["adapter_shows"] and found["gap"] < (1e-4 if dtype == "fp32" else 0.2)


def test_the_average_is_sampled_too() -> None:
    found, expected = (hybrid_runs.averaged(engine) for engine in (Hybrid(), Local()))
    assert found == expected and found["average"] != found["own"]


def test_what_cannot_be_expressed_is_sampled_by_its_own_module(caplog) -> None:
    found = hybrid_runs.rollouts(Hybrid(), model_type="bloom")
    assert "sampled by its Hugging Face module" in caplog.text and "bloom" in caplog.text
    assert found == hybrid_runs.rollouts(Local(), model_type="bloom")


def test_what_a_switch_costs(two_processes) -> None:
    """Bytes received are those that a rank lacks, under ZeRO-3; none where each has all."""
    parted = two_processes.run(hybrid_runs.switch_figures, hybrid(3, 2))
    for figures in parted:
        assert figures["received"] <= 1.05 * figures["lacking"] and figures["received"] > 0
        assert figures["peak"] <= 2**20 * 64
    for figures in two_processes.run(hybrid_runs.switch_figures, hybrid(2, 1)):
        assert figures["received"] == 0


@pytest.mark.parametrize(
    ("launched", "tp", "problem"), [(2, 2, None), (2, 4, "multiple of 4"), (4, 2, None), (3, 2, "multiple of 2")]
)
def test_groups_must_fill_the_processes(launched, tp, problem, monkeypatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", str(launched))
    monkeypatch.setenv("RANK", "0")
    problems = hybrid(3, tp).check(launched)
    assert (problem is None and not problems) or (problem is not None and problem in problems[0])


def test_a_cache_too_small_for_one_response_is_refused() -> None:
    with pytest.raises(UserError, match=r"cache_gib: 1e-06 holds 0 positions, and one prompt with its response"):
        hybrid_runs.rollouts(Hybrid(inference=TensorParallel(cache_gib=1e-6)))


# ------------------------------------------------------------------------------------------------- what must not hang


@functools.cache
def alone(name: str) -> Any:
    return hybrid_runs.scenario(Local(), name)


BLOCK_BYTES = 2 * 2 * 32 * 8 * 4
"""A block of the cache on one of two ranks: layers, keys and values, positions, width of a head, fp32."""
SECONDS = 60


def engine_of(name: str, stage: int, tp: int) -> Hybrid:
    room = {"cache_gib": 3 * 5 * BLOCK_BYTES / 2**30 / tp} if name == "rows give way" else {}
    return hybrid(stage, tp, **room)


QUICK = ("one group ends at once", "fewer prompts than groups", "rows give way", "not finite in one group")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in hybrid_runs.SCENARIOS],
)
def test_nobody_waits_for_ever(two_processes, name) -> None:
    two_processes.run(len, [])  # they are there
    found = two_processes.run(hybrid_runs.scenario, engine_of(name, 3, 1), name, seconds=SECONDS)
    assert found == [alone(name)] * 2


@pytest.mark.slow
@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize("name", hybrid_runs.SCENARIOS)
def test_groups_of_ranks_do_not_wait_for_ever(four_processes, name, stage) -> None:
    four_processes.run(len, [])
    found = four_processes.run(hybrid_runs.scenario, engine_of(name, stage, 2), name, seconds=SECONDS)
    assert found == [alone(name)] * 4

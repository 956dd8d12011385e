"""fp16: a step whose gradient overflows is skipped by all, changes nothing, and is counted."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Sequence
from typing import Any

import precision_runs
import pytest
import torch
import zero_runs

from rlhf.algorithms.optimizers import SGD
from rlhf.engines.local import Local
from rlhf.engines.zero import Zero

STAGES = (0, 1, 2, 3)
EAGER = {"stage3_max_live_parameters": 0, "stage3_max_reuse_distance": 0, "stage3_prefetch_bucket_size": 0}


def cases(quick: Collection[tuple[Any, int]], firsts: Sequence[Any]) -> list[Any]:
    """Every stage with each of the first values; slow but for some."""
    every = [(first, stage) for first in firsts for stage in STAGES]
    return [pytest.param(*case, marks=[] if case in quick else pytest.mark.slow) for case in every]


def some(*quick: int) -> list[Any]:
    """Every stage; slow but for some."""
    return [pytest.param(stage, marks=[] if stage in quick else pytest.mark.slow) for stage in STAGES]


def half(stage: int, **scale: Any) -> Zero:
    """An fp16 engine.

    Args:
        stage: Of ZeRO.
        **scale: DeepSpeed's options of the loss scale.
    """
    config: dict[str, Any] = {"fp16": {"initial_scale_power": 12, "hysteresis": 1, **scale}}
    if stage == 3:
        config["zero_optimization"] = EAGER
    return Zero(stage=stage, precision="fp16", micro_batch_size=1, config=config)  # type: ignore[arg-type]


# ----------------------------------------------------------------------------------------------------- skipped steps


@pytest.mark.parametrize(("world", "stage"), cases({(1, 0), (2, 2)}, (1, 2)))
def test_three_overflows_of_eight(request, world, stage) -> None:  # case E9
    processes = request.getfixturevalue("one_process" if world == 1 else "two_processes")
    found = processes.run(precision_runs.skipping, half(stage), {1, 2, 3}, 8)
    plain = processes.run(precision_runs.skipping, half(stage), (), 5, passed=3)[0]
    for rank in found:
        lines = rank["lines"]
        assert rank["untouched"] == [True] * 3 + [False] * 5
        assert [line["step"] for line in lines] == [0, 0, 0, 1, 2, 3, 4, 5]
        assert [line["skipped_steps"] for line in lines] == [1, 2, 3, 3, 3, 3, 3, 3]
        assert [line["loss_scale/policy"] for line in lines] == [4096, 2048, 1024, *[512] * 5]
        assert not any("grad_norm/policy" in line or "lr/policy" in line for line in lines[:3])
        # the warm-up takes ten steps: these are the first five
        assert [line["lr/policy"] for line in lines[3:]] == pytest.approx([0, 1e-5, 2e-5, 3e-5, 4e-5])
    made, expected = found[0]["state"]["engine"], plain["state"]["engine"]
    assert made["steps"] == expected["steps"] == 5 and made["skipped"] == 3
    for name, weight in expected["model"].items():  # as if the three batches had not been; scales differ by powers of 2
        assert torch.allclose(made["model"][name], weight, rtol=0, atol=1e-6), name


@pytest.mark.parametrize("stage", some(2, 3))
def test_an_overflow_on_one_process_is_one_on_all(two_processes, stage) -> None:
    for rank in two_processes.run(precision_runs.skipping, half(stage), {2}, 3, rank=1):
        assert rank["untouched"] == [False, True, False]
        assert [line["loss_scale/policy"] for line in rank["lines"]] == [4096, 4096, 2048]
        assert rank["state"]["engine"]["steps"] == 2 and rank["state"]["engine"]["skipped"] == 1


@pytest.mark.slow
@pytest.mark.parametrize(("who", "stage"), cases({("loss", 2)}, ("loss", "value_loss")))
def test_policy_and_critic_skip_together(two_processes, who, stage) -> None:  # case E9
    own, other = ("policy", "value") if who == "loss" else ("value", "policy")
    for steps in two_processes.run(precision_runs.joint, half(stage), who, {2, 5, 6}, 3):
        assert [step["counts"] for step in steps] == [
            [(1, 0)] * 2, [(1, 1)] * 2, [(2, 1)] * 2, [(3, 1)] * 2, [(3, 2)] * 2, [(3, 3)] * 2,
        ]  # fmt: skip
        assert [step["figures"]["step"] for step in steps] == [1, 1, 2, 3, 3, 3]
        assert [step["figures"]["skipped_steps"] for step in steps] == [0, 1, 1, 1, 2, 3]
        for number, step in enumerate(steps, 1):
            assert set(step["untouched"].values()) == {number in (2, 5, 6)}
            assert step["average"] == (number in (2, 5, 6))
        scales = [[step["figures"][f"loss_scale/{name}"] for step in steps] for name in (own, other)]
        assert scales == [[4096, 4096, 2048, 2048, 2048, 1024], [4096] * 6]
        half_made, made, none_made = steps[1], steps[3], steps[5]
        assert none_made["coef"][0] == none_made["coef"][1]  # the controller is not told of what nobody learned from
        assert half_made["coef"][0] != half_made["coef"][1] and made["coef"][0] != made["coef"][1]
        assert half_made["iteration"]["update/steps"] == 1 and half_made["iteration"]["update/samples"] == 4
        assert none_made["iteration"]["update/steps"] == 0 and none_made["iteration"]["skipped_steps"] == 3


def test_the_controller_counts_the_samples_of_steps_made(one_process) -> None:
    steps = one_process.run(precision_runs.joint, half(1), "loss", {2}, 1)[0]
    whole = one_process.run(precision_runs.joint, half(1), "loss", (), 1)[0]
    (before, after), (_, full) = steps[1]["coef"], whole[1]["coef"]
    assert after - before == pytest.approx((full - before) / 2) and full != before


@pytest.mark.parametrize("stage", some(2))
def test_a_scale_at_its_end_is_told(two_processes, stage) -> None:  # case E9
    for said, untouched in two_processes.run(precision_runs.not_mended, half(stage, initial_scale_power=0)):
        assert untouched
        assert "overflows in fp16 at the smallest loss scale, 1 (min_loss_scale)" in said
        assert "at optimiser step 1; no weight was changed" in said


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("stage", some(0, 2))
def test_without_a_loss_scale_it_is_an_error(two_processes, stage, precision) -> None:
    engine = Zero(stage=stage, precision=precision, micro_batch_size=1)
    for said, untouched in two_processes.run(precision_runs.not_mended, engine):
        assert untouched and re.search(
            r"the gradient's norm is (inf|nan) at optimiser step 1; no weight was changed", said
        )


def test_a_stage_ends_after_its_batches(one_process) -> None:
    """A skipped step has used its batch: 20 rows in fours are five batches, three of them learned from."""
    lines, said = one_process.run(precision_runs.whole_stage, half(2), {2, 5})[0]
    steps = [line for line in lines if "loss" in line]
    assert [line["step"] for line in steps] == [1, 1, 2, 3, 3]
    assert [line["skipped_steps"] for line in steps] == [0, 1, 1, 1, 2]
    assert [line["step"] for line in lines if "eval/loss" in line] == [1, 3, 3]  # after batches 2, 4 and 5
    assert "2 optimiser steps were skipped" in " ".join(said.split())


def test_an_on_policy_stage_goes_on_after_skips(one_process) -> None:
    lines = one_process.run(precision_runs.on_policy_stage, half(2), {2, 3, 4})[0]
    steps = [line for line in lines if "loss/policy" in line]
    assert [(line["step"], line["iteration"]) for line in steps] == [(1, 1), (1, 1), (1, 2), (1, 2)]
    assert [line["skipped_steps"] for line in steps] == [0, 1, 2, 3]
    assert ["grad_norm/policy" in line for line in steps] == [True, False, False, False]


# ------------------------------------------------------------------------------------------------------- made steps


@pytest.mark.slow
@pytest.mark.parametrize("stage", [2, 3])
def test_offloaded_states_are_skipped_too(two_processes, stage) -> None:
    engine = dataclasses.replace(half(stage), offload_optimizer=True)
    found = two_processes.run(precision_runs.skipping, engine, {2}, 3)[0]
    resident = two_processes.run(precision_runs.skipping, half(stage), {2}, 3)[0]
    assert found["untouched"] == [False, True, False]
    for name, weight in resident["state"]["engine"]["model"].items():
        assert torch.allclose(found["state"]["engine"]["model"][name], weight, rtol=0, atol=1e-6), name


@pytest.mark.parametrize("stage", some(0, 2))
@pytest.mark.parametrize(("kind", "tolerance"), [("sft", 0.02), ("ppo", 0.1)])
def test_training_is_that_of_full_precision(two_processes, stage, kind, tolerance) -> None:
    found = two_processes.run(zero_runs.train, kind, half(stage), 1, optimizer=SGD(lr=0.1))[0]
    exact = zero_runs.train(kind, Local(micro_batch_size=2), 1, optimizer=SGD(lr=0.1))
    norms = [
        [line[name] for line in run["lines"] for name in sorted(line) if "norm/" in name] for run in (found, exact)
    ]
    assert norms[0] == pytest.approx(norms[1], rel=tolerance) and norms[0] != norms[1]
    for name, weight in exact["weights"].items():
        assert torch.allclose(found["weights"][name], weight, rtol=0, atol=2e-3), name


@pytest.mark.parametrize("stage", some(2))
def test_gradients_that_are_compared_are_not_scaled(two_processes, stage) -> None:
    found = two_processes.run(precision_runs.compared, half(stage))[0]
    exact = precision_runs.compared(Local())
    for name in ("policy_norm", "mixture_norm", "cosine"):
        assert found[f"gradient/{name}"] == pytest.approx(exact[f"gradient/{name}"], rel=0.05, abs=0.01)


@pytest.mark.parametrize("stage", some(0, 2))
def test_a_scale_that_grows_changes_no_step(one_process, stage) -> None:
    """DeepSpeed's own order would divide the gradient by the scale of the next step."""
    growing = one_process.run(precision_runs.skipping, half(stage, loss_scale_window=1), (), 5)[0]
    constant = one_process.run(precision_runs.skipping, half(stage, loss_scale=4096.0), (), 5)[0]
    assert [line["loss_scale/policy"] for line in growing["lines"]] == [4096, 4096, 8192, 16384, 32768]
    assert [line["loss_scale/policy"] for line in constant["lines"]] == [4096] * 5
    norms = [[line["grad_norm/policy"] for line in run["lines"]] for run in (growing, constant)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)
    for name, weight in constant["state"]["engine"]["model"].items():
        assert torch.allclose(growing["state"]["engine"]["model"][name], weight, rtol=0, atol=1e-6)


# ------------------------------------------------------------------------------------------------------ checkpoints


@pytest.mark.parametrize("stage", some(2))
def test_the_scale_goes_on_from_a_checkpoint(two_processes, one_process, stage) -> None:
    engine = half(stage, hysteresis=2, loss_scale_window=3)
    whole = two_processes.run(precision_runs.skipping, engine, {1, 2, 3}, 7)[0]
    saved = two_processes.run(precision_runs.skipping, engine, {1, 2, 3}, 4)[0]["state"]
    again = two_processes.run(precision_runs.skipping, engine, (), 3, start=saved)[0]
    assert [line["loss_scale/policy"] for line in whole["lines"]] == [4096, 4096, 2048, *[1024] * 3, 1024]
    assert precision_runs.same(again["state"]["engine"], whole["state"]["engine"])  # to the last bit, scale included
    assert again["lines"][-1]["skipped_steps"] == 3
    for other in (0, 3):
        elsewhere = one_process.run(
            precision_runs.skipping, dataclasses.replace(engine, stage=other), (), 3, start=saved
        )[0]
        assert elsewhere["state"]["engine"]["loss_scale"] == whole["state"]["engine"]["loss_scale"]
    for fresh in (Zero(micro_batch_size=1), half(2)):  # into full precision and back: the scale begins anew
        saved = one_process.run(precision_runs.skipping, fresh, (), 1, start=saved)[0]["state"]
    assert saved["engine"]["loss_scale"]["cur_scale"] == 4096 and saved["engine"]["skipped"] == 3

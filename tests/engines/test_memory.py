"""The arithmetic of memory, worked out by hand on weights that can be counted."""

from __future__ import annotations

from torch import nn

from rlhf.algorithms.optimizers import AdamW
from rlhf.engines.memory import KINDS, Bytes, Sizes, state_bytes
from rlhf.engines.zero import Zero

SIZES = Sizes(trained=((6, 10), (5,)), frozen=(7,))  # P = 21, F = 7
NONE_WHOLE = {"zero_optimization": {"stage3_param_persistence_threshold": 0}}


def numbers(found: dict[str, Bytes]) -> list[int]:
    assert tuple(found) == KINDS and not any(part.host for part in found.values())
    return [part.device for part in found.values()]


def test_stage_0() -> None:
    # 4 · 28, no masters, 4 · 21, 8 · 21, 4 · 21
    assert numbers(state_bytes(SIZES, Zero(stage=0), 2)) == [112, 0, 84, 168, 84, 0]
    # 2 · 28, 4 · 21, 2 · 21, 8 · 21, 4 · 21
    assert numbers(state_bytes(SIZES, Zero(stage=0, precision="bf16"), 2)) == [56, 84, 42, 168, 84, 0]


def test_stage_1() -> None:
    # Of groups of 16 and 5 a process steps 8 and, filled up, 4. Weights 2 · 28, gradients and bucket 2 · 21.
    assert numbers(state_bytes(SIZES, Zero(stage=1, precision="bf16"), 2)) == [56, 48, 42, 96, 48, 42]


def test_stage_2_keeps_gradients_of_whole_weights() -> None:
    # The first process owns 8 of (6, 10), so some of both, and 4 of 5: 2 · 21. On one process the same.
    assert numbers(state_bytes(SIZES, Zero(stage=2, precision="bf16"), 2)) == [56, 48, 42, 96, 48, 0]
    # of (8, 8) each process owns one, and of 5 each has a part
    even = Sizes(trained=((8, 8), (5,)), frozen=(7,))
    assert numbers(state_bytes(even, Zero(stage=2, precision="bf16"), 2)) == [56, 48, 26, 96, 48, 0]


def test_stage_3_parts_each_weight_and_keeps_small_ones_whole_besides() -> None:
    # shares of 3, 5, 3 and, frozen, 4: weights 4 · 15, masters and gradients 4 · 11, Adam 8 · 11, bucket 4 · 21
    parted = Zero(stage=3, config=NONE_WHOLE)
    assert numbers(state_bytes(SIZES, parted, 2)) == [60, 44, 44, 88, 44, 84]
    assert numbers(state_bytes(SIZES, Zero(stage=3), 2)) == [60 + 4 * 28, 44, 44, 88, 44, 84]
    assert numbers(state_bytes(SIZES, Zero(stage=3), 1))[0] == 4 * 28  # a share that is the whole
    some = Zero(stage=3, config={"zero_optimization": {"stage3_param_persistence_threshold": 6}})
    assert numbers(state_bytes(SIZES, some, 2))[0] == 60 + 4 * (6 + 5)


def test_a_bucket_that_is_set_is_counted() -> None:
    settings = Zero(stage=3, config={"zero_optimization": {"reduce_bucket_size": 1000}})
    assert state_bytes(SIZES, settings, 2)["buffers"] == Bytes(4000)


def test_offloaded_optimiser() -> None:
    found = state_bytes(SIZES, Zero(stage=2, precision="bf16", offload_optimizer=True), 2)
    assert found["weights"] == Bytes(56)
    # accumulated 2 · 21, and fp32 ones of the masters 4 · 12
    assert found["gradients"] == Bytes(0, 42 + 48)
    assert (found["masters"], found["optimizer"], found["average"]) == (Bytes(0, 48), Bytes(0, 96), Bytes(0, 48))
    # the largest weight here and there, 2 · 10, and 2 · 12 weights on their way back
    assert found["buffers"] == Bytes(20, 20 + 24)
    first = state_bytes(SIZES, Zero(stage=1, precision="bf16", offload_optimizer=True), 2)
    assert (first["gradients"], first["buffers"]) == (Bytes(42, 48), Bytes(42 + 20, 20 + 24))


def test_offloaded_weights() -> None:
    settings = Zero(stage=3, precision="bf16", offload_optimizer=True, offload_parameters=True, config=NONE_WHOLE)
    found = state_bytes(SIZES, settings, 2)
    assert found["weights"] == Bytes(0, 2 * 15)
    assert found["gradients"] == Bytes(0, 2 * 11 + 4 * 11)
    kept = Zero(stage=3, precision="bf16", offload_optimizer=True, offload_parameters=True)
    # all are small, so whole on the device; the share of the frozen one stays there too
    assert state_bytes(SIZES, kept, 2)["weights"] == Bytes(2 * 28 + 2 * 4, 2 * 11)


def test_a_frozen_model_is_its_weights() -> None:
    found = state_bytes(Sizes(trained=(), frozen=(6, 7)), Zero(stage=3, config=NONE_WHOLE), 2)
    assert numbers(found) == [4 * (3 + 4), 0, 0, 0, 0, 0]


def test_optimisers_and_averages_are_told() -> None:
    found = state_bytes(SIZES, Zero(stage=0), 1, slots=1, averages=2)
    assert (found["optimizer"].total, found["average"].total) == (4 * 21, 8 * 21)


def test_sizes_of_a_model_are_by_group_and_count_tied_weights_once() -> None:
    first, second = nn.Linear(3, 2), nn.Linear(3, 2)
    second.weight = first.weight
    second.bias.requires_grad_(False)
    found = Sizes.of(nn.Sequential(first, second), AdamW(lr=0.1))
    assert found == Sizes(trained=((6,), (2,)), frozen=(2,))

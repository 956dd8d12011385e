"""Weights parted as ZeRO parts them, brought to the ranks of tensor-parallel groups; run in processes by the tests."""

from __future__ import annotations

import torch
from decoders import build

from rlhf import distributed
from rlhf.engines.inference.families import spec_of
from rlhf.engines.inference.shards import load
from rlhf.engines.reshard import Held, Rectangle, Resharder, stored


def elements(rectangles: list[Rectangle], width: int) -> set[int]:
    """Places in the flattened parameter."""
    return {
        row * width + column
        for top, bottom, left, right in rectangles
        for row in range(top, bottom)
        for column in range(left, right)
    }


def reshard(family: str, tp: int, bucket_bytes: int, dtype: torch.dtype, **settings) -> dict[str, float]:
    """What a fill has cost, and how many tensors are not those of a whole model cut; twice, from other weights."""
    world, process = distributed.world_size(), distributed.rank()
    model = build(family, **settings)
    spec = spec_of(model.config)
    resharder = Resharder(
        spec, ranks=[number % tp for number in range(world)], tp=tp, process=process, bucket_bytes=bucket_bytes
    )
    local = {name: torch.full(tensor.shape, 0.0, dtype=dtype) for name, tensor in resharder.plan.items()}
    wrong = 0
    for change in (0.0, 1.0):
        held, lacking = {}, 0
        for name, weight in model.named_parameters():
            weight.data += change
            stretch = -(-weight.numel() // world)
            start = process * stretch
            own = torch.full((stretch,), torch.nan)  # behind the last element lies anything
            part = weight.data.flatten()[start : start + stretch]
            own[: len(part)] = part
            held[name] = Held(tuple(weight.shape), own[: len(part)] if len(part) else own[:0], stretch)
            pieces = [stored(p) for t in resharder.plan.values() for p in t.pieces if p.parameter == name]
            width = weight.shape[1] if weight.ndim == 2 else 1
            needed = elements(pieces, width)
            lacking += len(needed - set(range(start, start + len(part))))
        resharder.fill(local, held)
        expected = load(spec, model, process % tp, tp, dtype=dtype)
        wrong += sum(not torch.equal(local[name], tensor) for name, tensor in expected.items())
    return {
        "wrong": wrong,
        "received": resharder.received,
        "lacking": lacking * dtype.itemsize,
        "peak": resharder.peak,
    }

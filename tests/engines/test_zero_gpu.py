"""``Zero`` on GPUs: NCCL, half precision and pinned offload give what ``Local`` gives on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import zero_runs

from rlhf.algorithms.optimizers import SGD
from rlhf.engines.local import Local
from rlhf.engines.zero import Zero

pytestmark = pytest.mark.gpu

STAGES = (0, 1, 2, 3)
KINDS = ("sft", "reward", "ppo")


def processes(request: pytest.FixtureRequest) -> Any:
    """As many as there are GPUs for, at most two."""
    return request.getfixturevalue("two_processes" if torch.cuda.device_count() > 1 else "one_process")


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("trains", ["full", "lora"])
def test_single_precision_is_that_of_the_cpu(request, trains, kind, stage) -> None:
    settings = {"trains": trains, "optimizer": SGD(lr=0.1)}
    found = processes(request).run(zero_runs.train, kind, Zero(stage=stage), 1, **settings)[0]
    expected = zero_runs.train(kind, Local(), 1, **settings)
    for mine, its in zip(found["lines"], expected["lines"], strict=True):
        assert mine == pytest.approx(its, rel=1e-3, abs=1e-4)
    for name, weight in expected["weights"].items():
        assert torch.allclose(found["weights"][name].cpu().to(weight), weight, rtol=0, atol=1e-4), name


@pytest.mark.parametrize(
    ("stage", "offload"),
    [(2, {"offload_optimizer": True}), (3, {"offload_optimizer": True, "offload_parameters": True})],
)
def test_pinned_offload(request, stage, offload) -> None:
    found = processes(request).run(zero_runs.train, "sft", Zero(stage=stage, **offload), 2, optimizer=SGD(lr=0.1))[0]
    expected = zero_runs.train("sft", Local(), 2, optimizer=SGD(lr=0.1))
    assert found["lines"][-1]["eval/loss"] == pytest.approx(expected["lines"][-1]["eval/loss"], rel=1e-3)


@pytest.mark.parametrize("stage", STAGES)
def test_half_precision_learns_and_its_average_moves_as_fp32(request, stage) -> None:
    engine = Zero(stage=stage, precision="bf16")
    lines = processes(request).run(zero_runs.train, "sft", engine, 6, optimizer=SGD(lr=0.5))[0]["lines"]
    assert lines[5]["loss"] < lines[0]["loss"]
    for off, moved in processes(request).run(zero_runs.average, engine, 0.999, 3):
        assert off < 5e-7 and moved == pytest.approx(zero_runs.average(Local(), 0.999, 3)[1], rel=0.05)

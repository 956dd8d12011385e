"""Runs on two processes that were stopped or killed go on to the same numbers, on the same layout to the last bit."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import cut_runs
import pytest
import tiny_runs
import torch
from safetensors.torch import load_file

from rlhf.engines.zero import Zero
from rlhf.models.policy import Pretrained

KINDS = ("sft", "reward", "ppo")


def zero(stage: int) -> Zero:
    return Zero(stage=stage, micro_batch_size=1)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def whole(two_processes, tmp_path_factory) -> Any:
    """Folder of a stage that nothing has cut."""
    folders: dict[tuple[str, int], Path] = {}

    def run(kind: str, stage: int) -> Path:
        if (kind, stage) not in folders:
            folders[kind, stage] = tmp_path_factory.mktemp(f"{kind}{stage}")
            two_processes.run(cut_runs.whole, kind, zero(stage), folders[kind, stage])
        return folders[kind, stage]

    return run


QUICK = {("sft", 2, 1)}
ALL = [(kind, stage, step) for kind in KINDS for stage in (2, 3) for step in range(cut_runs.STEPS)]


@pytest.mark.parametrize(
    ("kind", "stage", "step"), [pytest.param(*c, marks=() if c in QUICK else pytest.mark.slow) for c in ALL]
)
def test_stopped_and_then_killed_it_goes_on_to_the_same_numbers(two_processes, whole, tmp_path, kind, stage, step):
    two_processes.run(cut_runs.cut_at, kind, zero(stage), step, tmp_path)
    cut_runs.same(tmp_path, whole(kind, stage))


# -------------------------------------------------------------------------------------------------- whole experiments


def pipeline(engine: Zero) -> dict[str, Any]:
    return {
        "sft": tiny_runs.sft(engine=engine, steps=3),
        "ppo": tiny_runs.ppo(engine=engine, policy=Pretrained(path="@sft"), iterations=2),
    }


def test_a_signal_to_one_process_stops_all_stages_wherever_it_arrives(two_processes, tmp_path):
    """In a stage, in the last step of a stage, and in the last stage of all."""
    stages, term = pipeline(zero(2)), int(signal.SIGTERM)
    two_processes.run(cut_runs.run, stages, tmp_path / "whole")
    said = [
        ("sft", 2, "stage sft: stopped by SIGTERM; step 2 of 3 is saved, and the same command continues from there"),
        ("sft", 3, "stopped by SIGTERM; stage sft is finished, and the same command continues from there"),
        (
            "ppo",
            1,
            "stage ppo: stopped by SIGTERM; iteration 1 of 2 is saved, and the same command continues",
        ),
    ]
    for stage, step, text in said:
        sink = tiny_runs.SignalAt(stage=stage, step=step, number=term)
        stops = two_processes.run(cut_runs.run, stages, tmp_path / "cut", sinks=(sink,))
        assert all(text in stopped for _, stopped in stops), stops
    ends = two_processes.run(cut_runs.run, stages, tmp_path / "cut")
    assert "sft: finished before, kept" in ends[0][0] and [console for console, _ in ends[1:]] == [""]
    for stage in stages:
        one, other = (tmp_path / name / "toy" / stage for name in ("cut", "whole"))
        assert tiny_runs.metrics(one) == tiny_runs.metrics(other)
        assert tiny_runs.same_weights(one / "model", other / "model")


def test_a_signal_after_the_last_step_of_a_stage_stops_all_processes(two_processes, tmp_path):
    """When the loop looks no more: the process that was not asked must not wait for the next stage."""
    stops = two_processes.run(cut_runs.stopped_at_the_export, pipeline(zero(2)), tmp_path)
    assert [stopped[:50] for _, stopped in stops] == ["stopped by SIGTERM; stage sft is finished, and the"] * 2
    assert not (tmp_path / "toy" / "ppo").exists()


# ------------------------------------------------------------------------------------------------------ other layouts


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sft", "ppo"])
def test_another_layout_goes_on_to_the_same_numbers_and_says_what_differs(
    one_process, two_processes, whole, tmp_path, kind
):
    """From two processes at stage 3 to one: with the same settings, and at stage 0 from a checkpoint that is named."""
    three, nothing = ({kind: cut_runs.make(kind, zero(stage), dropout=0.0)} for stage in (3, 0))
    two_processes.run(cut_runs.run, three, tmp_path / "whole")
    expected = tmp_path / "whole" / "toy" / kind
    sink = tiny_runs.SignalAt(stage=kind, step=3 if kind == "sft" else 2, number=int(signal.SIGTERM))
    for name in ("auto", "named", "stage"):
        two_processes.run(cut_runs.run, three, tmp_path / name, sinks=(sink,))
    processes = "is of another number of processes: weights, optimisers and positions go on, but sums are cut otherwise"
    step = next((tmp_path / "named" / "toy" / kind / "checkpoints").glob("step_*"))
    (auto, _), (named, _) = (
        one_process.run(cut_runs.run, three, tmp_path / "auto")[0],
        one_process.run(cut_runs.run, nothing, tmp_path / "named", resume=step, overwrite=True)[0],
    )
    stage = tmp_path / "stage" / "toy" / kind / "checkpoints" / step.name
    other = two_processes.run(cut_runs.run, nothing, tmp_path / "stage", resume=stage, overwrite=True)[0][0]
    assert auto.count(processes) == named.count(processes) == 1
    assert f"{step.name} was made by Zero(stage=3, " in other and "the last digits may differ" in other
    assert processes not in other
    for name in ("auto", "named", "stage"):
        assert "continues from step" in {"auto": auto, "named": named, "stage": other}[name]
        close(tmp_path / name / "toy" / kind, expected)


def close(found: Path, expected: Path) -> None:
    for mine, its in zip(tiny_runs.metrics(found), tiny_runs.metrics(expected), strict=True):
        assert mine == pytest.approx(its, rel=1e-4, abs=1e-5)
    for model in ("model", "ema"):
        if (expected / model).exists():
            one, other = (load_file(folder / model / "model.safetensors") for folder in (found, expected))
            assert one.keys() == other.keys()
            assert all(torch.allclose(one[name], other[name], rtol=0, atol=1e-5) for name in one)

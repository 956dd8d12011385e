"""What ``Zero`` saves is loaded by plain transformers and peft, and answers as the live model did."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import tiny_runs
import torch
import zero_exports
from safetensors.torch import load_file

from rlhf.engines.zero import Zero
from rlhf.loops.offline import OfflineTrainer

KINDS = ("sft", "reward", "ppo")
EAGER = {"stage3_max_live_parameters": 0, "stage3_max_reuse_distance": 0, "stage3_prefetch_bucket_size": 0}


def zero(stage: int) -> Zero:
    return Zero(stage=stage, config={"zero_optimization": EAGER} if stage == 3 else {})  # pyright: ignore


def saved_base(directory, width: int):
    stage = tiny_runs.sft(policy=tiny_runs.policy(width=width), steps=1)
    OfflineTrainer(stage, tiny_runs.context(directory)).fit()
    return directory / "model"


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return saved_base(tmp_path_factory.mktemp("base"), 16)


@pytest.mark.slow
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_every_form_answers_in_a_fresh_process_as_the_live_model_did(two_processes, base, tmp_path, stage):
    """Cases E7 and F5."""
    live, folders = {}, []
    plain = load_file(base / "model.safetensors")
    for kind in KINDS:
        for form in zero_exports.FORMS:
            place = tmp_path / kind / form
            for output, said in two_processes.run(zero_exports.save, kind, zero(stage), base, place, form)[0].items():
                folder = place / output
                live[str(folder)] = said
                folders.append((kind, str(folder), str(base), form == "adapter"))
                name = "adapter_model.safetensors" if form == "adapter" else "model.safetensors"
                weights = load_file(folder / name)
                assert all(tensor.numel() and tensor.isfinite().all() for tensor in weights.values())
                if form == "adapter":
                    assert len(weights) == 16 and all(".lora_" in name for name in weights)
                else:
                    names = {name.removeprefix("transformer.") for name in plain} if kind == "reward" else set(plain)
                    assert set(weights) == names
    subprocess.run(
        [sys.executable, "-c", zero_exports.LOAD, str(tmp_path / "answers.pt")],
        input=json.dumps({"folders": folders}), text=True, check=True, timeout=120,
    )  # fmt: skip
    answers = torch.load(tmp_path / "answers.pt")
    assert answers.keys() == live.keys()
    for folder, said in live.items():
        torch.testing.assert_close(
            answers[folder], said, rtol=0, atol=1e-5, msg=lambda text, at=folder: f"{at}: {text}"
        )
    for kind in ("sft", "ppo"):
        assert not torch.allclose(
            live[str(tmp_path / kind / "full/model")], live[str(tmp_path / kind / "merged/model")]
        )


def test_a_head_beside_adapters_is_the_same_on_every_layout(two_processes, tmp_path):
    """Case D5: whole, of its own size, trained; the base under the adapters is not."""
    base = saved_base(tmp_path / "base", 512)
    parted, alone = (
        two_processes.run(zero_exports.adapters_and_head, zero(stage), base, tmp_path / str(stage)) for stage in (3, 0)
    )
    head = parted[0]["before"]["head.layers.0.weight"]
    assert head.shape == (1, 512) and head.isfinite().all()
    assert float(head.std()) == pytest.approx(513**-0.5, rel=0.2)
    for found in (*parted, *alone):
        assert torch.equal(found["before"]["head.layers.0.weight"], head)
    before, after = parted[0]["before"], parted[0]["after"]
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert {name for name in moved if "lora_" not in name} == {"head.layers.0.weight"}  # a pair cancels the bias
    assert {name for name in moved if "lora_" in name} == {
        name for name in before if "lora_B" in name
    }  # A's wait for B
    saved = load_file(tmp_path / "3" / "model" / "value_head.safetensors")["layers.0.weight"]
    assert torch.equal(saved, after["head.layers.0.weight"])
    for name, tensor in alone[0]["after"].items():
        torch.testing.assert_close(after[name], tensor, rtol=0, atol=1e-5)

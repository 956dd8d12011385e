"""What presets choose, and that it runs."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import tiny_runs
from rich.console import Console
from shapes import OPT, write_shapes

from rlhf.config import load
from rlhf.deployment.presets import MultiNode, SingleGPU, SingleNode
from rlhf.engines.hybrid import Hybrid
from rlhf.engines.local import Local
from rlhf.engines.zero import Zero
from rlhf.errors import ConfigError
from rlhf.experiment import Experiment
from rlhf.models.policy import FromScratch, Pretrained
from rlhf.models.rewards import ScalarReward

ROOT = Path(__file__).parents[2]
RECIPES = [*(f"opt/{size}" for size in OPT), "llama3_8b", "qwen3_4b"]


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A working folder in which the hub's names lead to configs."""
    write_shapes(tmp_path)
    monkeypatch.chdir(tmp_path)


def recipe(name: str, *overrides: tuple[str, str]) -> Experiment:
    return load([ROOT / "experiments" / f"{name}.yaml"], overrides)


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in ("opt/30b", "opt/66b", "opt/175b") else ())
        for name in RECIPES
    ],
)
def test_recipes_fit_where_they_say(name):
    experiment = recipe(name)
    assert experiment.deployment is not None
    deployed, lines = experiment.deployed()
    assert deployed.deployment is None and experiment.check() == []
    assert all(isinstance(deployed.stages[stage].engine, Zero) for stage in ("sft", "reward"))
    ppo = deployed.stages["ppo"]
    assert isinstance(ppo.engine, Hybrid) and isinstance(ppo.engine.train, Zero)
    text = "\n".join(lines)
    assert "GB a device" in text and f"tp {ppo.engine.inference.tp}" in text
    if name.startswith("opt/"):
        assert "model 0.33 B" in text and (ppo.policy.lora is not None) == (name not in ("opt/1.3b", "opt/6.7b"))


@pytest.mark.slow
@pytest.mark.usefixtures("hub")
def test_what_is_larger_gets_more_of_what_saves_memory():
    def engine(name, *overrides):
        return recipe(name, *overrides).deployed()[0].stages["ppo"].engine

    small, large = engine("opt/6.7b"), engine("opt/66b")
    assert small.train.stage == 2 and not small.train.offload_optimizer
    assert large.train.stage == 3 and large.inference.tp > small.inference.tp
    with pytest.raises(ConfigError, match=r"deployment: stage sft fits on 64 devices of 2\.1 GB in no way .* use more"):
        recipe("opt/175b", ("deployment.device_gib", "2"))


@pytest.mark.usefixtures("hub")
def test_the_one_liner_takes_models_and_devices():
    experiment = recipe(
        "opt/13b", ("deployment", "SingleNode"), ("stages.sft.policy.path", "facebook/opt-6.7b"),
        ("stages.reward.model.path", "facebook/opt-1.3b"), ("deployment.devices", "4"),
    )  # fmt: skip
    lines = experiment.deployed()[1]
    assert "SingleNode: 4 devices of" in lines[0] and "policy 6." in lines[1] and "model 1.3" in lines[3]


def test_nodes_must_divide_the_processes(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "6")
    assert MultiNode(nodes=3).near == 2 and MultiNode(nodes=3).world == 6
    with pytest.raises(ValueError, match="nodes: 4, but the number of processes launched is 6, which they do not"):
        MultiNode(nodes=4)
    assert MultiNode(nodes=4, devices=8).world == 32


class _Given:
    """A stage that needs no engine: its model is there."""

    def __init__(self, stage):
        self.policy, self.optimizer = stage.policy, stage.optimizer


def test_where_nothing_else_fits_adapters_are_trained():
    config = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12}
    base = tiny_runs.sft(policy=FromScratch(config=config, vocab_size=50000))
    stages = {"sft": tiny_runs.sft(policy=Pretrained(path="@base"))}
    whole, _ = SingleGPU(device_gib=4, precision="fp32").choose({"base": base, **stages})
    assert whole["sft"].policy.lora is None and isinstance(whole["sft"].engine, Local)
    offloaded = SingleGPU(device_gib=0.9, precision="fp32").choose({"base": base, **stages})[0]["sft"]
    assert offloaded.policy.lora is None and offloaded.engine.offload_optimizer
    given: Any = _Given(base)
    little, lines = SingleGPU(device_gib=0.3, precision="fp32").choose({"base": given, **stages})
    assert little["sft"].policy.lora is not None and any("too large" in line for line in lines)
    with pytest.raises(ConfigError, match=r"on 1 device of 322 MB in no way \(with least memory: ZeRO-3 with offload"):
        SingleGPU(device_gib=0.3, precision="fp32", adapters=False).choose({"base": given, **stages})


def test_a_cpu_offloads_nothing(monkeypatch):
    monkeypatch.setattr(SingleGPU, "memory", lambda self: 1.0)
    with pytest.raises(ConfigError, match="in no way") as error:
        SingleGPU().choose({"sft": tiny_runs.sft()})
    assert "offload" not in str(error.value)


def test_a_run_wants_as_many_processes_as_were_planned_for(tmp_path):
    experiment = Experiment(
        name="two", output_dir=str(tmp_path), deployment=SingleNode(devices=2), stages={"sft": tiny_runs.sft()}
    )
    assert experiment.check() == []
    with pytest.raises(ConfigError, match="plans for 2 devices, one process each, but 1 were launched"):
        experiment.run()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["opt", "llama", "qwen3"])
def test_what_is_chosen_trains(tmp_path, kind):
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 64}
    own = {"ffn_dim": 64, "word_embed_proj_dim": 32}
    if kind != "opt":
        own = {"intermediate_size": 64, "num_key_value_heads": 1, "head_dim": 16}
    policy = FromScratch(config={"model_type": kind, **sizes, **own}, vocab_size=280)
    experiment = Experiment(
        name=kind,
        output_dir=str(tmp_path),
        deployment=SingleNode(device_gib=1.0, precision="fp32"),
        stages={
            "sft": tiny_runs.sft(policy=policy, steps=2),
            "reward": tiny_runs.reward_modelling(model=Pretrained(path="@sft"), steps=2),
            "ppo": tiny_runs.ppo(
                policy=Pretrained(path="@sft"), reward=ScalarReward(path="@reward"), iterations=1, averaging=None
            ),
        },
        stage_cache=None,
    )
    figures = experiment.run(console=Console(file=io.StringIO()))
    assert figures["ppo"]["rollout/decoder_calls"] > 0
    written = load([tmp_path / kind / "config.yaml"])
    assert written.deployment is None and isinstance(written.stages["ppo"].engine, Hybrid)

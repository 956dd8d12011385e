"""What ``Zero`` saves, beside what its live models answer; run in processes by the tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tiny_runs
import torch
from torch import Tensor

from rlhf.algorithms.averaging import EMA
from rlhf.algorithms.optimizers import AdamW
from rlhf.interfaces import Engine
from rlhf.loops.offline import OfflineTrainer
from rlhf.loops.stage import OnlineStage
from rlhf.models.lora import LoRA
from rlhf.models.policy import Pretrained

IDS = [[5, 6, 7, 8, 9, 10, 11], [20, 30, 40, 17, 2, 3, 60]]
FORMS = {"full": None, "merged": "merged", "adapter": "adapter"}
"""How a stage trains and what it saves, and what its adapters' settings call that."""


def _policy(base: Path, form: str) -> Pretrained:
    export: Any = FORMS[form]
    return Pretrained(path=str(base), lora=None if export is None else LoRA(rank=4, export=export))


@torch.no_grad()
def _logits(model: Any) -> Tensor:
    model.eval()
    return model.lm(torch.tensor(IDS)).logits.clone()


@torch.no_grad()
def _scores(model: Any) -> Tensor:
    model.eval()
    hidden = model.trunk(torch.tensor(IDS)).last_hidden_state[:, -1]
    return (model.head(hidden) - model.mean) / model.std


def save(kind: str, engine: Engine, base: Path, folder: Path, form: str) -> dict[str, Tensor]:
    """Two steps, then what the stage saves. Answers by output what the live model says of :data:`IDS`."""
    context, policy, optimizer = tiny_runs.context(folder), _policy(base, form), AdamW(lr=1e-2)
    if kind == "ppo":
        settings = {"averaging": EMA(decay=0.5), "engine": engine, "optimizer": optimizer}
        stage = OnlineStage(tiny_runs.ppo(policy=policy, **settings), context)
        stage.trainer.train_rlhf(stage.trainer.generate_experience())
        stage.save()
        live = stage.trainer.policy
        assert stage.trainer.average is not None
        with live.substituted(stage.trainer.average.shards):
            averaged = _logits(live.model)
        return {"model": _logits(live.model), "ema": averaged}
    make, named = {"sft": (tiny_runs.sft, "policy"), "reward": (tiny_runs.reward_modelling, "model")}[kind]
    trainer = OfflineTrainer(make(engine=engine, optimizer=optimizer, **{named: policy}), context)
    for _ in range(2):
        trainer.train_step(trainer.next_batch())
    trainer.save()
    return {"model": _scores(trainer.model) if kind == "reward" else _logits(trainer.model)}


def adapters_and_head(engine: Engine, base: Path, folder: Path) -> dict[str, dict[str, Tensor]]:
    """A reward model that trains adapters and its head, before and after a step, whole on every process."""
    policy = _policy(base, "merged")
    trainer = OfflineTrainer(tiny_runs.reward_modelling(model=policy, engine=engine), tiny_runs.context(folder))
    before = {name: tensor.clone() for name, tensor in trainer.engine.full_state().items()}
    trainer.train_step(trainer.next_batch())
    after = {name: tensor.clone() for name, tensor in trainer.engine.full_state().items()}
    trainer.save()
    return {"before": before, "after": after}


LOAD = """
import json, sys
import torch
from safetensors.torch import load_file
from transformers import AutoModel, AutoModelForCausalLM

def load(kind, folder, base, adapter):
    cls = AutoModel if kind == "reward" else AutoModelForCausalLM
    if not adapter:
        return cls.from_pretrained(folder)
    from peft import PeftModel
    return PeftModel.from_pretrained(cls.from_pretrained(base), folder)

answers = {}
for kind, folder, base, adapter in json.load(sys.stdin)["folders"]:
    model = load(kind, folder, base, adapter).eval()
    with torch.no_grad():
        out = model(torch.tensor(IDS))
    if kind == "reward":
        head = load_file(folder + "/value_head.safetensors")
        said = json.load(open(folder + "/value_head.json"))
        raw = out.last_hidden_state[:, -1] @ head["layers.0.weight"].T + head["layers.0.bias"]
        answers[folder] = (raw.squeeze(-1) - said["mean"]) / said["std"]
    else:
        answers[folder] = out.logits
torch.save(answers, sys.argv[1])
""".replace("IDS", repr(IDS))
"""A program that loads saved models with nothing of ours, and writes what they say."""

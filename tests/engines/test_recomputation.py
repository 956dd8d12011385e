"""Gradient checkpointing: blocks are run again in the backward pass, in training alone, and results stay the same."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import tiny_runs
import torch
from recomputation_runs import Calls, counted
from torch import nn

from rlhf.algorithms.optimizers import SGD
from rlhf.engines.inference.sampling import Sampling
from rlhf.engines.local import Local
from rlhf.engines.recomputation import blocks, recomputed
from rlhf.engines.zero import Zero
from rlhf.errors import UserError
from rlhf.loops.offline import OfflineTrainer
from rlhf.loops.online import OnlineTrainer
from rlhf.models.lora import LoRA
from rlhf.models.policy import FromScratch, Pretrained

EAGER = {"stage3_max_live_parameters": 0, "stage3_max_reuse_distance": 0, "stage3_prefetch_bucket_size": 0}
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 64}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {**SIZES, "intermediate_size": 32, "num_key_value_heads": 1, "attention_dropout": 0.1},
    "opt": {**SIZES, "ffn_dim": 32, "word_embed_proj_dim": 16, "dropout": 0.1, "layerdrop": 0.0},
    "gpt_neox": {**SIZES, "intermediate_size": 32, "hidden_dropout": 0.1, "attention_dropout": 0.1},
}


def local(on: bool, **settings: Any) -> Local:
    return Local(micro_batch_size=2, gradient_checkpointing=on, **settings)


def supervised(on: bool, context: Any, **settings: Any) -> OfflineTrainer[Any]:
    return OfflineTrainer(tiny_runs.sft(engine=local(on), **settings), context)


def policy(family: str) -> FromScratch:
    return FromScratch(config={"model_type": family, **FAMILIES[family]}, vocab_size=280)


# ----------------------------------------------------------------------------------------------- where blocks run twice


@pytest.mark.parametrize("on", [False, True])
def test_blocks_run_again_in_training_and_nowhere_else(tmp_path, on) -> None:
    trainer = supervised(on, tiny_runs.context(tmp_path))
    calls = Calls(trainer.model)
    trainer.train_step(trainer.next_batch())
    assert calls.since() == (4 if on else 2)  # of two micro-batches
    trainer.evaluate()
    assert calls.since() == 2


@pytest.mark.parametrize("on", [False, True])
def test_blocks_run_again_in_updates_without_dropout(tmp_path, on) -> None:
    trainer = OnlineTrainer(tiny_runs.ppo(engine=local(on)), tiny_runs.context(tmp_path))
    assert trainer.critic is not None
    policy, critic = Calls(trainer.policy.model), Calls(trainer.critic.model)
    experience = trainer.generate_experience()
    assert critic.since() == 4 and policy.since() > 0
    trainer.train_rlhf(experience)
    micro_batches = 4 * trainer.algorithm.epochs
    assert policy.since() == critic.since() == (2 if on else 1) * micro_batches


def saved_bytes(trainer: OfflineTrainer[Any]) -> int:
    """What autograd keeps for the backward pass of a step, weights apart."""
    weights, kept = {p.untyped_storage().data_ptr() for p in trainer.model.parameters()}, 0

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal kept
        if tensor.untyped_storage().data_ptr() not in weights:
            kept += tensor.numel() * tensor.element_size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        trainer.train_step(trainer.next_batch())
    return kept


def test_less_is_kept_for_the_backward_pass(tmp_path) -> None:
    without, with_it = (saved_bytes(supervised(on, tiny_runs.context(tmp_path))) for on in (False, True))
    assert with_it < without / 3


# --------------------------------------------------------------------------------------------------- the same results


@pytest.mark.parametrize("family", ["gpt2", *FAMILIES])
def test_supervised_steps_are_bit_equal_with_dropout(tmp_path, family) -> None:
    model = tiny_runs.policy(dropout=0.1) if family == "gpt2" else policy(family)
    without, with_it = (supervised(on, tiny_runs.context(tmp_path), policy=model) for on in (False, True))
    for _ in range(3):
        state = torch.get_rng_state()
        first = without.train_step(without.next_batch())
        torch.set_rng_state(state)
        second = with_it.train_step(with_it.next_batch())
        assert first["loss"] == second["loss"] and first["grad_norm/policy"] == second["grad_norm/policy"]
    assert all(map(torch.equal, without.model.state_dict().values(), with_it.model.state_dict().values()))


@pytest.mark.parametrize("family", ["gpt2", *FAMILIES])
def test_dropout_stays_off_in_updates(tmp_path, family) -> None:
    """Blocks of OPT read the mode of the block itself for their dropout."""
    found = []
    for on in (False, True):
        settings = {"policy": tiny_runs.policy(dropout=0.1) if family == "gpt2" else policy(family)}
        trainer = OnlineTrainer(tiny_runs.ppo(engine=local(on), **settings), tiny_runs.context(tmp_path))
        figures = trainer.train_rlhf(trainer.generate_experience())
        found.append({name: value for name, value in figures.items() if not name.startswith(tiny_runs.TIMED)})
    assert found[0] == found[1]


@pytest.mark.parametrize("settings", [{"trainable_layers": 1}, {"lora": LoRA(rank=2)}])
def test_inputs_of_blocks_need_no_gradient(tmp_path, settings) -> None:
    """Embeddings are frozen here."""
    start = supervised(False, tiny_runs.context(tmp_path / "base"), steps=1)
    start.fit()
    found = []
    for on in (False, True):
        model = Pretrained(path=str(tmp_path / "base" / "model"), **settings)
        trainer = supervised(on, tiny_runs.context(tmp_path), policy=model)
        for _ in range(2):
            trainer.train_step(trainer.next_batch())
        found.append(trainer.engine.full_state())
    assert all(torch.equal(found[1][name], weight) for name, weight in found[0].items())


# ------------------------------------------------------------------------------------------------------------ sampling


def test_rollouts_are_the_same_and_leave_everything_as_it_was(tmp_path, monkeypatch) -> None:  # case E6
    found = []
    for on in (False, True):
        algorithm = tiny_runs.ppo(engine=local(on), policy=tiny_runs.policy(dropout=0.1))
        trainer = OnlineTrainer(algorithm, tiny_runs.context(tmp_path))
        trainer.train_rlhf(trainer.generate_experience())  # the blocks have been run again before
        model = trainer.policy.model.train()
        lm: Any = model.lm
        calls = Calls(model)
        before = (lm.config.use_cache, [module.training for module in model.modules()])
        greedy = Sampling(greedy=True, max_new_tokens=8)
        found.append(trainer.sample(trainer.next_prompts(), seed=1, sampling=greedy))
        assert calls.since() <= 8  # a forward pass for each token, with a cache
        with monkeypatch.context() as broken, pytest.raises(RuntimeError, match="broken"):
            broken.setattr(lm, "forward", fail)
            trainer.sample(trainer.next_prompts(), seed=1, sampling=greedy)
        assert (lm.config.use_cache, [module.training for module in model.modules()]) == before
        assert not any("forward" in vars(block) for block in blocks(model))
    assert torch.equal(found[0].sequences.ids, found[1].sequences.ids)


def fail(*_: Any, **__: Any) -> None:
    raise RuntimeError("broken")


def test_blocks_have_their_own_forward_back_after_an_error() -> None:
    block = nn.Linear(1, 1)
    block.forward = own = lambda input: input  # as of somebody who has put another in its place
    other = nn.Linear(1, 1)
    with pytest.raises(RuntimeError), recomputed([block, other]):
        raise RuntimeError
    assert block.forward is own and "forward" not in vars(other)


# ----------------------------------------------------------------------------------------------------- other settings


def test_a_model_that_cannot_is_refused_before_training(tmp_path) -> None:
    with pytest.raises(UserError, match="gradient_checkpointing: Ids has no blocks that can be run again"):
        Local(gradient_checkpointing=True).build(tiny_runs.Ids(), optimizer=SGD(lr=0.1))
    model = supervised(False, tiny_runs.context(tmp_path)).model
    model.lm.supports_gradient_checkpointing = False  # pyright: ignore
    with pytest.raises(UserError, match="gradient_checkpointing: GPT2LMHeadModel has no blocks"):
        Local(gradient_checkpointing=True).build(model, optimizer=SGD(lr=0.1))
    Local(gradient_checkpointing=True).build(model)  # what is frozen has no backward pass


@pytest.mark.slow
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("kind", ["sft", "ppo"])
def test_zero_runs_blocks_again(two_processes, kind, stage) -> None:
    config = {"zero_optimization": EAGER} if stage == 3 else {}
    plain = Zero(stage=stage, micro_batch_size=1, config=config)
    again = dataclasses.replace(plain, gradient_checkpointing=True)
    without, with_it = (two_processes.run(counted, kind, engine) for engine in (plain, again))
    for one, other in zip(without, with_it, strict=True):
        assert other["passes"] == 2 * one["passes"] > 0
    for name, weight in without[0]["weights"].items():
        assert torch.allclose(with_it[0]["weights"][name], weight, rtol=0, atol=1e-6), name

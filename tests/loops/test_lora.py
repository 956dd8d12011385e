"""Stages that train low-rank adapters: the base is never written to, and lies in memory once."""

import copy
import math

import pytest
import tiny_runs
import torch
from safetensors.torch import load_file

from rlhf.algorithms.averaging import EMA
from rlhf.algorithms.critics import OwnTrunk, SharedTrunk
from rlhf.algorithms.objectives import Mixture
from rlhf.algorithms.optimizers import AdamW
from rlhf.config import load
from rlhf.errors import NonFiniteError, UserError
from rlhf.interfaces import LiveEngine
from rlhf.loops.actors import WithoutAdapters
from rlhf.loops.nan_dump import DUMP
from rlhf.loops.offline import OfflineTrainer
from rlhf.loops.online import OnlineTrainer
from rlhf.loops.stage import OnlineStage
from rlhf.models.lora import LoRA
from rlhf.models.modules import PolicyModel
from rlhf.models.policy import Pretrained
from rlhf.models.rewards import ScalarReward
from rlhf.types import Selectable

TARGETS = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A saved policy of two blocks."""
    directory = tmp_path_factory.mktemp("base")
    OfflineTrainer(tiny_runs.sft(steps=1), tiny_runs.context(directory)).fit()
    return directory / "model"


@pytest.fixture(scope="module")
def reward(base, tmp_path_factory):
    """A saved reward model on the same base, merged."""
    directory = tmp_path_factory.mktemp("reward")
    stage = tiny_runs.reward_modelling(model=policy(base), steps=2)
    OfflineTrainer(stage, tiny_runs.context(directory)).fit()
    return directory / "model"


def policy(base, *, dtype="fp32", **settings) -> Pretrained:
    return Pretrained(path=str(base), dtype=dtype, lora=LoRA(**{"rank": 4, **settings}))


def weights(folder, prefix="transformer."):
    return {n.removeprefix(prefix): t for n, t in load_file(folder / "model.safetensors").items()}


def changed(before, after) -> set[str]:
    old, new = weights(before), weights(after)
    assert old.keys() == new.keys()
    return {name for name in old if not torch.equal(old[name], new[name])}


ADAPTED = {f"h.{block}.{target}.weight" for block in (0, 1) for target in TARGETS}


def frozen(model) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters() if not p.requires_grad}


def storages(model, *, trained: bool) -> set[int]:
    return {p.data_ptr() for p in model.parameters() if p.requires_grad is trained}


# ------------------------------------------------------------------------------------------------------------- offline


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_supervised_fine_tuning(base, tmp_path, dtype):
    trainer = OfflineTrainer(tiny_runs.sft(policy=policy(base, dtype=dtype), steps=3), tiny_runs.context(tmp_path))
    before = frozen(trainer.model)
    start = trainer.evaluate()["eval/loss"]
    trainer.fit()
    assert trainer.evaluate()["eval/loss"] < start
    assert all(torch.equal(trainer.model.get_parameter(name), tensor) for name, tensor in before.items())
    assert len(trainer.engine.master()) == len(trainer.engine.state_dict()["optimizer"]) == 16
    assert {tensor.dtype for tensor in trainer.engine.master()} == {torch.float32}
    assert all(p.grad is None for p in trainer.model.parameters())
    if dtype == "fp32":  # else every weight is another for having been rounded
        assert changed(base, tmp_path / "model") == ADAPTED


def test_reward_modelling_trains_adapters_and_head_only(base, tmp_path):  # case D5
    trainer = OfflineTrainer(tiny_runs.reward_modelling(model=policy(base), steps=1), tiny_runs.context(tmp_path))
    names = {name for name, p in trainer.model.named_parameters() if p.requires_grad}
    head = {"head.layers.0.weight", "head.layers.0.bias"}
    assert names > head and all(".lora_" in name for name in names - head)
    assert {trainer.model.get_parameter(name).dtype for name in head} == {torch.float32}
    before = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
    trainer.fit()
    after = trainer.model.state_dict()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    # A gets no gradient while B is zero; the bias of the head cancels in a pair.
    assert {n for n in moved if ".lora_" in n} == {n for n in names if ".lora_B" in n}
    assert moved - {n for n in moved if ".lora_" in n} == {"head.layers.0.weight", "mean", "std"}
    saved = load_file(tmp_path / "model" / "value_head.safetensors")
    assert torch.equal(saved["layers.0.weight"], after["head.layers.0.weight"])
    assert changed(base, tmp_path / "model") <= ADAPTED


def test_a_checkpoint_holds_what_is_trained_and_knows_its_base(base, tmp_path):
    def trainer(path):
        return OfflineTrainer(tiny_runs.sft(policy=policy(path), steps=3), tiny_runs.context(tmp_path))

    first = trainer(base)
    for _ in range(2):
        first.train_step(first.next_batch())
    state = copy.deepcopy(first.state_dict())
    assert {
        name.split(".lora_")[0].removeprefix("lm.transformer.") + ".weight" for name in state["engine"]["model"]
    } == ADAPTED
    assert (
        sum(tensor.nbytes for tensor in state["engine"]["model"].values())
        < sum(p.nbytes for p in first.model.parameters()) / 4
    )
    again = trainer(base)
    again.load_state_dict(state)
    last = [one.train_step(one.next_batch())["loss"] for one in (first, again)]
    assert last[0] == last[1]
    assert all(torch.equal(a, b) for a, b in zip(first.engine.master(), again.engine.master(), strict=True))
    OfflineTrainer(
        tiny_runs.sft(policy=Pretrained(path=str(base)), steps=1), tiny_runs.context(tmp_path / "other")
    ).fit()
    with pytest.raises(UserError, match="frozen weights of the PolicyModel are not those that the checkpoint"):
        trainer(tmp_path / "other" / "model").load_state_dict(state)


# -------------------------------------------------------------------------------------------------------------- online


def rollout_of(trainer):
    return trainer._respond(trainer.next_prompts())


def test_the_reference_is_the_policy_without_its_adapters(base, tmp_path):
    settings = {"policy": policy(base), "averaging": EMA(decay=0.5)}
    trainer = OnlineTrainer(tiny_runs.ppo(**settings), tiny_runs.context(tmp_path))
    explicit = tiny_runs.ppo(**settings, reference=Pretrained(path=str(base)))
    twin = OnlineTrainer(explicit, tiny_runs.context(tmp_path))
    assert isinstance(trainer.reference, WithoutAdapters) and trainer.reference.policy is trainer.policy
    assert isinstance(twin.reference, LiveEngine) and twin.reference.model is not twin.policy.model
    for _ in range(2):
        experiences = [one.generate_experience() for one in (trainer, twin)]
        mine, real = (experience.batch for experience in experiences)
        assert torch.equal(mine.ref_logprobs, real.ref_logprobs)
        assert torch.equal(mine.old_logprobs, real.old_logprobs)
        for one, experience in zip((trainer, twin), experiences, strict=True):
            one.train_rlhf(experience)
    assert (mine.old_logprobs - mine.ref_logprobs).abs().max() > 1e-4
    start = OnlineTrainer(tiny_runs.ppo(policy=policy(base)), tiny_runs.context(tmp_path)).generate_experience().batch
    assert torch.equal(start.old_logprobs, start.ref_logprobs)  # case E6
    rollout = experiences[0].rollout
    with trainer.policy.substituted(trainer.average.shards):
        found = trainer.infer(trainer.reference, rollout, ("logprobs",))["logprobs"]
        averaged = trainer.infer(trainer.policy, rollout, ("logprobs",))["logprobs"]
    assert torch.equal(found, mine.ref_logprobs)
    assert not torch.equal(averaged, trainer.infer(trainer.policy, rollout, ("logprobs",))["logprobs"])


def test_the_adapters_are_on_between_the_references_answers(base, tmp_path):
    trainer = OnlineTrainer(tiny_runs.ppo(policy=policy(base)), tiny_runs.context(tmp_path))
    trainer.train_rlhf(trainer.generate_experience())
    rollout = rollout_of(trainer)
    batches = list(Selectable(rollout.sequences, rollout.mask).split(4))
    want = [out.logprobs for out in trainer.policy.evaluate(batches, want=("logprobs",))]
    answers = trainer.reference.evaluate(batches, want=("logprobs",))
    for batch, right in zip(batches, want, strict=True):
        off = next(answers).logprobs
        (on,) = trainer.policy.evaluate([batch], want=("logprobs",))
        assert torch.equal(on.logprobs, right) and not torch.equal(off, right)


def test_a_policy_that_goes_on_training_an_adapter_has_a_frozen_copy_of_both(base, tmp_path):
    stage = tiny_runs.sft(policy=policy(base, export="adapter"), steps=3)
    OfflineTrainer(stage, tiny_runs.context(tmp_path)).fit()
    assert not (tmp_path / "model" / "model.safetensors").exists()
    settings = tiny_runs.ppo(policy=policy(tmp_path / "model", start="saved", export="both"), iterations=1)
    trainer = OnlineTrainer(settings, tiny_runs.context(tmp_path / "ppo"))
    assert isinstance(trainer.reference, LiveEngine)
    first = trainer.generate_experience()
    assert torch.equal(first.batch.old_logprobs, first.batch.ref_logprobs)  # case E6
    plain = PolicyModel(Pretrained(path=str(base)).build(lambda: (), seed=1).module)
    parts = first.rollout.sequences, first.rollout.mask
    assert not torch.allclose(plain(parts[0], mask=parts[1]).logprobs, first.batch.ref_logprobs, atol=1e-3)
    trainer.train_rlhf(first)
    again = trainer.infer(trainer.reference, first.rollout, ("logprobs",))["logprobs"]
    assert torch.equal(again, first.batch.ref_logprobs)
    # The base lies in memory once; the reference's adapters are its own.
    model = trainer.reference.model
    assert storages(trainer.policy.model, trained=False) < storages(model, trained=False)
    assert not storages(trainer.policy.model, trained=True) & storages(model, trained=False)


def test_policy_critic_and_reward_model_have_their_common_base_once(base, reward, tmp_path):
    """The critic starts from the reward model; a copy of the policy's trunk as critic has the policy's base."""
    settings = tiny_runs.ppo(
        policy=policy(base), reward=ScalarReward(path=str(reward)), critic=OwnTrunk(path=str(reward), lora=LoRA(rank=2))
    )
    trainer = OnlineTrainer(settings, tiny_runs.context(tmp_path))
    assert storages(trainer.critic.model.trunk, trained=False) <= storages(trainer.scorer.engine.model, trained=False)
    names = {n for n, p in trainer.critic.model.named_parameters() if p.requires_grad}
    assert {n for n in names if ".lora_" not in n} == {"head.layers.0.weight", "head.layers.0.bias"}
    rollout = rollout_of(trainer)
    judged = trainer.scorer(rollout).total
    assert torch.equal(trainer.infer(trainer.critic, rollout, ("scores",))["scores"], judged)
    trainer.train_rlhf(trainer.assess(rollout))
    assert torch.equal(trainer.scorer(rollout).total, judged)
    assert not torch.equal(trainer.infer(trainer.critic, rollout, ("scores",))["scores"], judged)

    copied = OnlineTrainer(tiny_runs.ppo(policy=policy(base), critic=OwnTrunk()), tiny_runs.context(tmp_path))
    policy_model, critic = copied.policy.model, copied.critic.model
    assert storages(critic, trained=False) == storages(policy_model, trained=False)
    assert not storages(critic, trained=True) & storages(policy_model, trained=True)


@pytest.mark.parametrize("kind", ["own", "reward model", "shared"])
def test_ppo_with_its_average_resumed(base, reward, tmp_path, kind):
    critic = {
        "own": OwnTrunk(optimizer=AdamW(lr=1e-2)),
        "reward model": OwnTrunk(path=str(reward), lora=LoRA(rank=2, dropout=0.2), optimizer=AdamW(lr=1e-2)),
        "shared": SharedTrunk(warmup_iterations=1),
    }[kind]
    settings = {
        "policy": policy(base, dropout=0.1, export="both"),
        "critic": critic,
        "averaging": EMA(decay=0.8),
        "mixture": Mixture(coef=0.5, data=tiny_runs.data("text", eval_rows=0), gradient_every=1),
        "iterations": 3,
        "save_every": 1,
    }
    stage = OnlineStage(tiny_runs.ppo(**settings), tiny_runs.context(tmp_path / "whole"))
    stage.fit()
    trainer = stage.trainer
    assert len(trainer.policy.master()) == len(trainer.average.shards) == (18 if kind == "shared" else 16)
    assert len(trainer.policy.gradient()) == len(trainer.policy.master())
    for output in ("model", "ema"):
        assert changed(base, tmp_path / "whole" / output) == ADAPTED
        assert (tmp_path / "whole" / output / "adapter" / "adapter_config.json").exists()
    assert changed(tmp_path / "whole" / "model", tmp_path / "whole" / "ema") == ADAPTED
    first = next(line for line in tiny_runs.metrics(tmp_path / "whole") if "policy/ratio_max" in line)
    assert first["policy/ratio_max"] == pytest.approx(1.0, abs=1e-5)  # dropout is off in an update: case E6
    with pytest.raises(tiny_runs.Killed):
        killer = tiny_runs.context(tmp_path / "again", sinks=(tiny_runs.KillAt(step=4),))
        OnlineStage(tiny_runs.ppo(**settings), killer).fit()
    OnlineStage(tiny_runs.ppo(**settings), tiny_runs.context(tmp_path / "again")).fit()
    assert tiny_runs.metrics(tmp_path / "again") == tiny_runs.metrics(tmp_path / "whole")
    for output in ("model", "ema"):
        assert tiny_runs.same_weights(tmp_path / "again" / output, tmp_path / "whole" / output)


def test_the_average_is_that_of_the_factors(base, tmp_path):
    settings = tiny_runs.ppo(policy=policy(base), averaging=EMA(decay=0.25), iterations=1, mini_batch_size=8)
    stage = OnlineStage(settings, tiny_runs.context(tmp_path))
    start = [shard.clone() for shard in stage.trainer.policy.master()]
    stage.fit()  # one step: w̄ = 0.25 w₀ + 0.75 w₁
    now = stage.trainer.policy.master()
    for average, old, new in zip(stage.trainer.average.shards, start, now, strict=True):
        torch.testing.assert_close(average, 0.25 * old + 0.75 * new)
    lm = stage.trainer.policy.model.lm
    names = [name for name, p in stage.trainer.policy.model.named_parameters() if p.requires_grad]
    shards = dict(zip(names, stage.trainer.average.shards, strict=True))
    a, b = (shards[f"lm.transformer.h.0.mlp.c_fc.lora_{factor}.default.weight"] for factor in "AB")
    frozen = lm.transformer.h[0].mlp.c_fc.base_layer.weight
    torch.testing.assert_close(weights(tmp_path / "ema")["h.0.mlp.c_fc.weight"], frozen + 4 * (b @ a).T)


def test_a_broken_adapter_is_named(base, tmp_path):
    trainer = OfflineTrainer(tiny_runs.sft(policy=policy(base), steps=3), tiny_runs.context(tmp_path))
    name = "lm.transformer.h.1.mlp.c_fc.lora_B.default.weight"
    trainer.model.get_parameter(name).data[0, 0] = math.nan
    with pytest.raises(NonFiniteError, match=f"First not finite: weight {name}".replace(".", r"\.")):
        trainer.fit()
    dump = torch.load(tmp_path / DUMP, weights_only=False)
    assert dump["pass"].find(dump["model"]).startswith(f"weight {name}")


# ---------------------------------------------------------------------------------------------------------- experiment

PIPELINE = """
name: lora
output_dir: {runs}
stages:
  sft:
    class_path: SFT
    init_args:
      policy: {{class_path: Pretrained, init_args: {{path: {base}, lora: {{rank: 2, dropout: 0.1}}}}}}
      data: {{sources: {{toy: {{class_path: Generator, init_args: {{function: tiny_runs.rows, arguments: {{form: demonstration, n: 24}}}}}}}}, eval_rows: 4, max_tokens: 32}}
      batch_size: 4
      steps: 3
      optimizer: {{class_path: AdamW, init_args: {{lr: 1.0e-2, groups: {{lora_B: {{lr: 2.0e-2}}}}}}}}
  reward:
    class_path: RewardModelling
    init_args:
      model: {{class_path: Pretrained, init_args: {{path: "@sft", lora: {{rank: 2, export: adapter}}}}}}
      data: {{sources: {{toy: {{class_path: Generator, init_args: {{function: tiny_runs.rows, arguments: {{form: comparison, n: 24}}}}}}}}, eval_rows: 4, max_tokens: 32}}
      batch_size: 4
      steps: 3
      optimizer: {{class_path: AdamW, init_args: {{lr: 1.0e-2}}}}
  ppo:
    class_path: PPO
    init_args:
      policy: {{class_path: Pretrained, init_args: {{path: "@sft", trainable_layers: 1, lora: {{rank: 2, export: both}}}}}}
      reward: {{class_path: ScalarReward, init_args: {{path: "@reward"}}}}
      critic: {{class_path: OwnTrunk, init_args: {{path: "@reward", lora: {{rank: 2}}}}}}
      data: {{sources: {{toy: {{class_path: Generator, init_args: {{function: tiny_runs.rows, arguments: {{form: prompt, n: 24}}}}}}}}, eval_rows: 4, max_tokens: 32}}
      mixture: {{class_path: Mixture, init_args: {{coef: 0.5, data: {{sources: {{toy: {{class_path: Generator, init_args: {{function: tiny_runs.rows, arguments: {{form: text, n: 24}}}}}}}}, eval_rows: 0}}}}}}
      averaging: {{class_path: EMA, init_args: {{decay: 0.5}}}}
      sampling: {{max_new_tokens: 6}}
      evaluation: {{every: 1, prompts: 4}}
      optimizer: {{class_path: AdamW, init_args: {{lr: 1.0e-2}}}}
      iterations: 2
      batch_size: 8
      mini_batch_size: 4
"""  # noqa: E501


def test_the_whole_pipeline_by_adapters(base, tmp_path, monkeypatch):
    (tmp_path / "lora.yaml").write_text(PIPELINE.format(runs=tmp_path / "runs", base=base))
    changes = {"stages.ppo.policy.lora.alpha": "8"}
    experiment = load([tmp_path / "lora.yaml"], [*changes.items()])
    assert experiment.stages["ppo"].policy.lora == LoRA(rank=2, alpha=8, export="both")
    monkeypatch.chdir(tmp_path)
    figures = experiment.run(console=tiny_runs.context(tmp_path).console)
    run = tmp_path / "runs" / "lora"
    assert changed(base, run / "sft" / "model") == ADAPTED
    assert sorted(path.name for path in (run / "reward" / "model").glob("*.safetensors")) == [
        "adapter_model.safetensors", "value_head.safetensors",
    ]  # fmt: skip
    for output in ("model", "ema"):
        assert changed(run / "sft" / "model", run / "ppo" / output) == {n for n in ADAPTED if n.startswith("h.1.")}
        assert (run / "ppo" / output / "adapter" / "adapter_model.safetensors").exists()
    assert math.isfinite(figures["ppo"]["eval/ema/score"]) and figures["ppo"]["kl/coef"] > 0
    again = load([run / "config.yaml"])
    assert again == experiment

"""Critics: with a trunk of their own, or a head on the policy's."""

import pytest
import tiny_runs
import torch

from rlhf.algorithms.critics import OwnTrunk, SharedTrunk
from rlhf.loops.offline import OfflineTrainer
from rlhf.models.freezing import freeze_below
from rlhf.models.heads import Linear
from rlhf.models.lora import LoRA, attach, attached
from rlhf.models.modules import PolicyModel

SEQUENCES, MASK = tiny_runs.right_padded([[5, 6, 7, 8], [9, 10]])


@pytest.fixture
def lm():
    return tiny_runs.policy().build(lambda: ["abc=xyz"], seed=3)


def test_own_trunk_starts_as_a_copy(lm):
    model = OwnTrunk().build(lm, seed=1)
    theirs = dict(lm.module.base_model.named_parameters())
    for name, weight in model.trunk.named_parameters():
        assert torch.equal(weight, theirs[name]) and weight is not theirs[name]
    assert not OwnTrunk.shared
    values = model(SEQUENCES, want=("values",), mask=MASK).values
    again = OwnTrunk().build(lm, seed=1)(SEQUENCES, want=("values",), mask=MASK).values
    other = OwnTrunk().build(lm, seed=2)(SEQUENCES, want=("values",), mask=MASK).values
    assert torch.equal(values, again) and not torch.equal(values, other)


def test_own_trunk_keeps_a_reward_models_head_and_normalisation(tmp_path):  # case D7
    trainer = OfflineTrainer(tiny_runs.reward_modelling(steps=2), tiny_runs.context(tmp_path))
    trainer.fit()
    critic = OwnTrunk(path=str(tmp_path / "model"))
    policy = tiny_runs.policy().build(lambda: trainer.algorithm.data.corpus("reward"), seed=1)
    model = critic.build(policy, seed=9)
    batch = trainer.heldout[0]
    with torch.no_grad():
        kept, read = (m(batch.sequences, want=("scores",)).scores for m in (trainer.model, model))
    torch.testing.assert_close(read, kept)
    assert float(model.std) != 1
    stranger = tiny_runs.policy().build(lambda: ["entirely different text"], seed=1)
    with pytest.raises(ValueError, match="another vocabulary"):
        critic.build(stranger, seed=9)


def test_own_trunk_trains_as_many_layers_as_asked_for_or_as_the_policy(lm, tmp_path):
    def trained(model):
        return {name for name, p in model.named_parameters() if p.requires_grad}

    head = {"head.layers.0.weight", "head.layers.0.bias"}
    freeze_below(lm.module, 1)
    inherited = trained(OwnTrunk().build(lm, seed=1))
    assert {name.split(".")[1] for name in inherited - head} == {"h", "ln_f"}
    assert not any(name.startswith("trunk.h.0.") for name in inherited)
    assert trained(OwnTrunk(trainable_layers=0).build(lm, seed=1)) == head | {"trunk.ln_f.weight", "trunk.ln_f.bias"}
    stage = tiny_runs.reward_modelling(steps=1)
    OfflineTrainer(stage, tiny_runs.context(tmp_path)).fit()
    policy = tiny_runs.policy().build(lambda: stage.data.corpus("reward"), seed=1)
    saved = str(tmp_path / "model")
    assert trained(OwnTrunk(path=saved, trainable_layers=1).build(policy, seed=1)) == inherited
    assert len(trained(OwnTrunk(path=saved).build(policy, seed=1))) == 28 + 2
    with pytest.raises(ValueError, match="trainable_layers is -1"):
        OwnTrunk(trainable_layers=-1)


@pytest.mark.parametrize("detach", [False, True])
def test_shared_trunk_may_keep_its_gradient_from_the_policy(lm, detach):
    critic = SharedTrunk(detach=detach)
    model = PolicyModel(lm.module, critic.build(lm, seed=1))
    outputs = model(SEQUENCES, want=("values",), mask=MASK)
    outputs.values.sum().backward()
    assert critic.shared
    assert (lm.module.base_model.wte.weight.grad is None) == detach
    assert all(parameter.grad is not None for parameter in model.head.parameters())


def test_shared_head_depends_on_the_seed_only(lm):
    torch.manual_seed(0)
    critic = SharedTrunk(head=Linear(init_std=0.5))
    first, before = critic.build(lm, seed=1).state_dict(), torch.rand(1)
    torch.manual_seed(0)
    assert torch.equal(torch.rand(1), before)  # the global random numbers were not touched
    second = critic.build(lm, seed=1).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_own_trunk_with_adapters(lm, tmp_path):
    def trained(model):
        return {name for name, p in model.named_parameters() if p.requires_grad}

    head = {"head.layers.0.weight", "head.layers.0.bias"}
    plain = OwnTrunk().build(lm, seed=1)(SEQUENCES, want=("values",), mask=MASK).values
    model = OwnTrunk(lora=LoRA(rank=2), trainable_layers=1).build(lm, seed=1)
    assert torch.equal(model(SEQUENCES, want=("values",), mask=MASK).values, plain)
    assert trained(model) > head and all(n.startswith("trunk.h.1.") and ".lora_" in n for n in trained(model) - head)
    attach(lm.module, LoRA(rank=3), seed=1, base=None)
    copied = OwnTrunk().build(lm, seed=1)
    assert len(trained(copied) - head) == 16 and attached(copied.trunk).settings.rank == 3
    with pytest.raises(ValueError, match="trainable_layers: 1, but the copy of the policy trains its adapters"):
        OwnTrunk(trainable_layers=1).build(lm, seed=1)
    with pytest.raises(ValueError, match="lora: the model has adapters already; leave it null"):
        OwnTrunk(lora=LoRA()).build(lm, seed=1)
    for settings in ({"start": "saved"}, {"export": "adapter"}):
        with pytest.raises(ValueError, match="lora: a critic is not saved; leave out start and export"):
            OwnTrunk(lora=LoRA(**settings))

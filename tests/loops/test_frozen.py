"""Stages that train the last block of a model only: what is frozen costs nothing, stays as it is and is saved."""

import pytest
import tiny_runs
import torch
from safetensors.torch import load_file

from rlhf.algorithms.averaging import EMA
from rlhf.algorithms.critics import OwnTrunk, SharedTrunk
from rlhf.algorithms.objectives import Mixture
from rlhf.algorithms.optimizers import AdamW
from rlhf.loops.offline import OfflineTrainer
from rlhf.loops.online import OnlineTrainer
from rlhf.loops.stage import OnlineStage
from rlhf.models.policy import Pretrained
from rlhf.models.rewards import ScalarReward


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A saved policy of two blocks."""
    directory = tmp_path_factory.mktemp("base")
    OfflineTrainer(tiny_runs.sft(steps=1), tiny_runs.context(directory)).fit()
    return directory / "model"


def last_block(base) -> Pretrained:
    return Pretrained(path=str(base), trainable_layers=1)


def moved(before, after, prefix: str = "transformer.") -> set[str]:
    """Names of the weights that are not bit-identical in two saved models; both must be complete."""
    old, new = (load_file(folder / "model.safetensors") for folder in (before, after))
    assert {name.removeprefix(prefix) for name in old} == {name.removeprefix(prefix) for name in new}
    new = {name.removeprefix(prefix): tensor for name, tensor in new.items()}
    return {n.removeprefix(prefix) for n, t in old.items() if not torch.equal(t, new[n.removeprefix(prefix)])}


def is_top(name: str) -> bool:
    return name.startswith(("h.1.", "ln_f."))


def test_supervised_fine_tuning(base, tmp_path):
    trainer = OfflineTrainer(tiny_runs.sft(policy=last_block(base), steps=3), tiny_runs.context(tmp_path))
    trainer.fit()
    changed = moved(base, tmp_path / "model")
    assert changed and all(map(is_top, changed))
    names = [name for name, p in trainer.model.named_parameters() if p.requires_grad]
    assert len(trainer.engine.master()) == len(names) == 14  # a block of twelve weights, a norm of two
    assert len(trainer.engine.state_dict()["optimizer"]) == 14
    frozen = [p for _, p in trainer.model.named_parameters() if not p.requires_grad]
    assert frozen and all(p.grad is None for p in frozen)


def reward_model(base, directory):
    stage = tiny_runs.reward_modelling(model=last_block(base), steps=2)
    OfflineTrainer(stage, tiny_runs.context(directory)).fit()
    return directory / "model"


def test_reward_modelling(base, tmp_path):
    changed = moved(base, reward_model(base, tmp_path))
    assert changed and all(map(is_top, changed))


@pytest.mark.parametrize("kind", ["own", "reward model", "shared"])
def test_ppo_with_its_average_resumed(base, tmp_path, kind):
    if kind == "shared":
        critic, weights = SharedTrunk(warmup_iterations=1), 0
    else:
        path = str(reward_model(base, tmp_path / "rm")) if kind == "reward model" else None
        critic, weights = OwnTrunk(path=path, trainable_layers=1 if path else None, optimizer=AdamW(lr=1e-2)), 16
    settings = {
        "policy": last_block(base),
        "critic": critic,
        "reward": ScalarReward(path=critic.path) if kind == "reward model" else tiny_runs.LETTERS,
        "averaging": EMA(decay=0.8),
        "mixture": Mixture(coef=0.5, data=tiny_runs.data("text", eval_rows=0)),
        "iterations": 3,
        "save_every": 1,
    }
    stage = OnlineStage(tiny_runs.ppo(**settings), tiny_runs.context(tmp_path / "whole"))
    stage.fit()
    trainer = stage.trainer
    own = 16 if kind == "shared" else 14  # with the head's two
    assert len(trainer.policy.master()) == own and trainer.average is not None
    assert len(trainer.average.shards) == own
    if trainer.critic is not None:
        assert len(trainer.critic.master()) == weights
    for output in ("model", "ema"):
        changed = moved(base, tmp_path / "whole" / output)
        assert changed and all(map(is_top, changed))
    assert moved(tmp_path / "whole" / "model", tmp_path / "whole" / "ema")

    with pytest.raises(tiny_runs.Killed):
        killer = tiny_runs.context(tmp_path / "again", sinks=(tiny_runs.KillAt(step=4),))
        OnlineStage(tiny_runs.ppo(**settings), killer).fit()
    OnlineStage(tiny_runs.ppo(**settings), tiny_runs.context(tmp_path / "again")).fit()
    assert tiny_runs.metrics(tmp_path / "again") == tiny_runs.metrics(tmp_path / "whole")
    for output in ("model", "ema"):
        assert tiny_runs.same_weights(tmp_path / "again" / output, tmp_path / "whole" / output)


def test_the_first_update_of_the_trained_part_is_that_of_full_training(base, tmp_path):
    """Without clipping of the norm, which sees more weights in full training."""
    found = []
    for layers in (1, None):
        policy = Pretrained(path=str(base), trainable_layers=layers)
        settings = tiny_runs.ppo(policy=policy, critic=SharedTrunk(), max_grad_norm=None)
        trainer = OnlineTrainer(settings, tiny_runs.context(tmp_path))
        experience = trainer.generate_experience()
        trainer._optimiser_step(experience.batch)
        found.append(trainer.policy.full_state())
    part, whole = found
    for name in part:
        if is_top(name.removeprefix("lm.transformer.")) or name.startswith("head."):
            torch.testing.assert_close(part[name], whole[name], atol=1e-6, rtol=1e-4)
    assert not torch.equal(part["lm.transformer.wte.weight"], whole["lm.transformer.wte.weight"])

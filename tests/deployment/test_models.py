"""Which models a stage holds, and what their passes need."""

from __future__ import annotations

import dataclasses

import tiny_runs

from rlhf.algorithms.advantages import Returns
from rlhf.algorithms.averaging import EMA
from rlhf.algorithms.constraints import Constraint
from rlhf.deployment.models import Shape, activation_bytes, models_of
from rlhf.models.policy import Pretrained
from rlhf.models.rewards import ScalarReward


def test_activations_by_hand():
    shape = Shape(layers=2, width=8, heads=2, kv_width=16)
    # 34 bytes in 16 bits for each of 10 tokens and 8 units of width: 2720 a block.
    assert activation_bytes(shape, 10, checkpointing=False, width=2) == 2 * 2720
    assert activation_bytes(shape, 10, checkpointing=True, width=2) == 2 * 2 * 10 * 8 + 2720
    assert activation_bytes(shape, 10, checkpointing=False, width=4) == 4 * 2720


def test_models_of_stages():
    stage = tiny_runs.ppo(policy=Pretrained(path="@sft"), reward=ScalarReward(path="@reward"))
    assert [(model.name, model.optimizer is None, model.whole) for model in models_of(stage)] == [
        ("policy", False, True),
        ("critic", False, False),
        ("reference", True, True),
        ("reward", True, False),
    ]
    more = dataclasses.replace(
        stage,
        averaging=EMA(),
        reference_average=EMA(),
        constraints={"cost": Constraint(cost=ScalarReward(path="@cost"))},
    )
    found = list(models_of(more))
    assert [model.name for model in found] == ["policy", "critic", "reward", "reward"]
    assert found[0].averages == 2 and next(models_of(stage)).averages == 0
    few = dataclasses.replace(stage, kl=None, critic=None, advantage=Returns())
    assert [model.name for model in models_of(few)] == ["policy", "reward"]
    assert [model.name for model in models_of(tiny_runs.sft())] == ["policy"]
    assert [model.name for model in models_of(tiny_runs.reward_modelling())] == ["model"]

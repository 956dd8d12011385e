"""The models of an on-policy stage in the hands of their engines."""

import pytest
import tiny_runs
import torch

from rlhf.algorithms.advantages import GroupNorm
from rlhf.algorithms.critics import OwnTrunk, SharedTrunk
from rlhf.interfaces import LiveEngine
from rlhf.loops.actors import build_actors


@pytest.fixture
def policy():
    return tiny_runs.policy().build(lambda: ["abc=xyz"], seed=1)


def test_the_reference_is_a_frozen_copy(policy, tmp_path):
    reference = build_actors(tiny_runs.ppo(), policy, tiny_runs.context(tmp_path)).reference
    assert isinstance(reference, LiveEngine) and reference.master() == []
    with torch.no_grad():
        policy.module.transformer.wte.weight.zero_()
    assert reference.model.lm.transformer.wte.weight.abs().sum() > 0
    assert not any(parameter.requires_grad for parameter in reference.model.parameters())
    assert build_actors(tiny_runs.ppo(kl=None), policy, tiny_runs.context(tmp_path)).reference is None


def test_steps_of_the_schedules(policy, tmp_path):
    def steps(**settings):
        usual = {"iterations": 5, "epochs": 3}  # two mini-batches each: 30 steps
        actors = build_actors(tiny_runs.ppo(**usual, **settings), policy, tiny_runs.context(tmp_path))
        return [None if engine is None else engine.total_steps for engine in (actors.policy, actors.critic)]

    assert steps() == [30, 30]
    assert steps(critic=OwnTrunk(warmup_iterations=2)) == [18, 30]  # the policy waits for two iterations
    assert steps(critic=OwnTrunk(warmup_iterations=9)) == [0, 30]
    assert steps(critic=SharedTrunk(warmup_iterations=2)) == [30, None]  # one optimiser, which does not wait
    assert steps(advantage=GroupNorm(), samples_per_prompt=2) == [30, None]


def test_a_shared_head_is_trained_with_the_policy(policy, tmp_path):
    engine = build_actors(tiny_runs.ppo(critic=SharedTrunk()), policy, tiny_runs.context(tmp_path)).policy
    names = [name for name, parameter in engine.model.named_parameters() if parameter.requires_grad]
    assert len(engine.master()) == len(names) and any(name.startswith("head.") for name in names)

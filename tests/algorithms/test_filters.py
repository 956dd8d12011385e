"""Which of the sampled responses an iteration learns from."""

import pytest
import tiny_runs
import torch

from rlhf.algorithms.filters import BestOfGroup, InformativeGroups, ScoresAbove
from rlhf.errors import UserError

SCORES, GROUPS = torch.tensor([1.0, 1.0, 0.0, 1.0]), torch.tensor([0, 0, 1, 1])


def test_what_is_kept():
    assert InformativeGroups()(SCORES, GROUPS).tolist() == [False, False, True, True]
    assert not InformativeGroups(tolerance=1.0)(SCORES, GROUPS).any()
    assert BestOfGroup()(SCORES, GROUPS).tolist() == [True, False, False, True]
    assert ScoresAbove(threshold=0.5)(SCORES, GROUPS).tolist() == [True, True, False, True]


def test_how_many_an_iteration_learns_from():
    assert [f.kept(24, 4) for f in (InformativeGroups(), BestOfGroup(keep=2), ScoresAbove())] == [24, 12, 24]
    assert tiny_runs.ppo(batch_size=24, samples_per_prompt=4, filter=BestOfGroup(keep=2)).learnt == 12
    settings = tiny_runs.ppo(batch_size=24, samples_per_prompt=4, filter=BestOfGroup(keep=2), iterations=5, critic=None)
    assert settings.policy_steps == 5 * 3  # 12 responses, 4 to a step


def test_what_is_refused():
    for settings in (
        {"filter": InformativeGroups()},
        {"filter": BestOfGroup(keep=2), "samples_per_prompt": 2},
        {"filter": BestOfGroup(), "samples_per_prompt": 4},  # 2 of 8 responses, and 4 to a step
        {"filter": ScoresAbove(), "replay": "somewhere"},
    ):
        (problem,) = tiny_runs.ppo(**settings).check()
        assert problem.startswith(("samples_per_prompt: ", "batch_size: filter keeps 2", "filter: ")), problem
    for make in (lambda: BestOfGroup(keep=0), lambda: InformativeGroups(max_attempts=0)):
        with pytest.raises(UserError, match="at least 1"):
            make()

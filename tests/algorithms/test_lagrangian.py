"""PPO under constraints: the check of its settings; the multiplier is in test_constraints.py."""

import tiny_runs

from rlhf.algorithms.constraints import Constraint
from rlhf.algorithms.lagrangian import PPOLagrangian


def test_it_must_have_a_constraint():
    (problem,) = tiny_runs.ppo(PPOLagrangian, constraints={}).check()
    assert problem == "constraints: there is none; name one, or use PPO"
    assert tiny_runs.ppo(PPOLagrangian, constraints={"length": Constraint(cost=tiny_runs.LETTERS)}).check() == []

"""A cost, its limit and its multiplier."""

import math

import pytest
import tiny_runs
import torch

from rlhf.algorithms.constraints import Constraint, charged
from rlhf.engines.local import Local
from rlhf.errors import NonFiniteError, UserError
from rlhf.interfaces import Scorer
from rlhf.models.rewards import FunctionReward
from rlhf.types import Scores

COST = FunctionReward(function="tiny_runs.letters")
MASK = torch.tensor([[True, True], [True, False]])


def live(**settings):
    return Constraint(cost=COST, **settings).build(Local(), None)  # pyright: ignore[reportArgumentType]


def test_the_multiplier_follows_the_mean_of_the_window():
    constraint = live(limit=1.0, multiplier=1.0, lr=0.5, window=2)
    constraint.observe(3.0)  # ½ · 1 · (3 − 1) = 1
    assert constraint.multiplier == pytest.approx(math.e)
    constraint.observe(-1.0)  # the mean of 3 and −1 is the limit
    assert constraint.multiplier == pytest.approx(math.e)
    constraint.observe(-1.0)  # 3 is forgotten: ½ · e · (−1 − 1) = −e
    assert constraint.multiplier == pytest.approx(math.exp(1 - math.e))


def test_it_goes_on_from_its_state():
    one = live(window=3)
    one.observe(2.0)
    other = live(window=3)
    other.load_state_dict(one.state_dict())
    for constraint in (one, other):
        constraint.observe(-0.5)
    assert one.multiplier == other.multiplier and list(other.window) == [2.0, -0.5]


def test_scores_are_charged_at_the_end():
    constraints = {"a": live(limit=1.0, multiplier=0.5), "b": live(multiplier=0.5)}
    costs = {"a": torch.tensor([2.0, 1.0]), "b": torch.tensor([0.0, 4.0])}
    # (3 − ½·1 − 0) / 2 = 1.25;  (1 − 0 − ½·4) / 2 = −0.5
    assert charged(torch.tensor([3.0, 1.0]), costs, constraints, MASK).tolist() == [1.25, -0.5]
    per_token = charged(torch.tensor([[1.0, 2.0], [1.0, 0.0]]), costs, constraints, MASK)
    assert per_token.tolist() == [[0.5, 0.75], [-0.5, 0.0]]


class Broken(Scorer):
    def __call__(self, rollout):
        return Scores(torch.tensor([1.0, float("nan")]))


def test_a_cost_that_is_no_number_is_refused():
    constraint = live()
    constraint.scorer = Broken()
    with pytest.raises(NonFiniteError, match="a cost is nan"):
        constraint.cost(type("Rollout", (), {"mask": MASK})())


def test_settings_are_checked():
    with pytest.raises(UserError, match="above maximum"):
        Constraint(cost=COST, multiplier=20.0)
    with pytest.raises(UserError, match="limit is inf"):
        Constraint(cost=COST, limit=float("inf"))
    with pytest.raises(UserError, match="window"):
        Constraint(cost=COST, window=0)
    with pytest.raises(UserError, match="lr"):
        Constraint(cost=COST, lr=0.0)


def test_a_run_holds_its_limit(tmp_path):
    """Letters are what the reward pays for, and what the constraint forbids beyond four."""
    free = tiny_runs.gain(tmp_path / "free", 1)
    held = tiny_runs.gain(
        tmp_path / "held",
        1,
        constraints={"letters": Constraint(cost=COST, limit=4.0, multiplier=1.0, lr=0.5, window=1)},
    )
    assert free > 4.0 and held < free - 1.0

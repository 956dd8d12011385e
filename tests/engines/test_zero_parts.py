"""What an on-policy loop asks of its engine beside training: on two processes the same as on one."""

from __future__ import annotations

from typing import Any

import pytest
import zero_runs
from zero_runs import agree, zero

from rlhf.algorithms.advantages import GreedyBaseline, GroupNorm, OptimalTokenBaseline
from rlhf.algorithms.averaging import Polyak
from rlhf.algorithms.constraints import Constraint
from rlhf.algorithms.covariance_losses import ClipCov
from rlhf.algorithms.filters import BestOfGroup, InformativeGroups
from rlhf.algorithms.kl import KL, Fixed
from rlhf.algorithms.optimizers import SGD
from rlhf.engines.local import Local

GROUPED = {"advantage": GroupNorm(), "samples_per_prompt": 4, "critic": None}
PARTS: dict[str, dict[str, Any]] = {
    "exact KL in the loss": {"kl": KL(estimator="exact", where="loss", controller=Fixed(coef=0.5))},
    "exact KL in the reward": {"kl": KL(estimator="exact", controller=Fixed(coef=0.5))},
    "a reference that follows": {"reference_average": Polyak(tau=0.5)},
    "greedy baseline": {"advantage": GreedyBaseline(), "critic": None},
    "optimal token baseline": {**GROUPED, "advantage": OptimalTokenBaseline()},
    "selected tokens": {**GROUPED, "policy_loss": ClipCov(fraction=0.2, cov_low=0.0)},
    "groups drawn anew": {**GROUPED, "filter": InformativeGroups(tolerance=2.0)},
    "the best of a group": {**GROUPED, "filter": BestOfGroup(keep=2)},
    "a constraint": {"constraints": {"letters": Constraint(cost=zero_runs.tiny_runs.LETTERS, limit=1.0)}},
}
QUICK = {("exact KL in the loss", 3), ("a reference that follows", 3), ("groups drawn anew", 2)}


@pytest.mark.parametrize(
    ("part", "stage"),
    [
        pytest.param(part, stage, marks=() if (part, stage) in QUICK else pytest.mark.slow)
        for part in PARTS
        for stage in (2, 3)
    ],
)
def test_two_processes_do_as_one(two_processes, part, stage) -> None:
    settings = {"optimizer": SGD(lr=0.1), **PARTS[part]}
    expected = zero_runs.train("ppo", Local(micro_batch_size=2), 2, **settings)
    agree(two_processes.run(zero_runs.train, "ppo", zero(stage), 2, **settings)[0], expected)

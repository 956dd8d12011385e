"""PPO learns on two processes what it learns on one."""

from __future__ import annotations

import pytest
import tiny_runs

from rlhf.algorithms.averaging import EMA
from rlhf.algorithms.objectives import Mixture
from rlhf.engines.zero import Zero


@pytest.mark.slow
@pytest.mark.parametrize("stage", [2, 3])
def test_reward_rises(two_processes, tmp_path, stage) -> None:
    """By as much as in one process: see tests/loops/test_learning.py."""
    mixture = Mixture(data=tiny_runs.data("text"), batch_size=4, coef=0.1)
    settings = {"engine": Zero(stage=stage), "mixture": mixture, "averaging": EMA(decay=0.9)}
    found = two_processes.run(tiny_runs.gain, tmp_path, 1, **settings)
    assert found[0] == found[1] > 2

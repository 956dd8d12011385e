"""PPO must learn a task of seconds, for several seeds; and must not where its advantages are nonsense.

The reward is the number of lower-case letters in a response of at most eight tokens. An untrained policy writes about
one: few of its tokens are letters, and 36 of them end the response. Three letters and more are the longest of tokens.
"""

from dataclasses import dataclass

import pytest
import tiny_runs

from rlhf.algorithms.advantages import GAE, GroupNorm, LeaveOneOut, Returns
from rlhf.algorithms.critics import SharedTrunk
from rlhf.algorithms.kl import KL, Fixed
from rlhf.types import Advantages, Scored


@dataclass(frozen=True, kw_only=True)
class Scaled(GAE):
    """GAE times a number."""

    factor: float

    def __call__(self, scored: Scored) -> Advantages:
        advantages, returns = super().__call__(scored)
        return Advantages(self.factor * advantages, returns)


SETTINGS = {
    "GAE": {},
    "shared trunk": {"critic": SharedTrunk(coef=0.1)},
    "GroupNorm": {"advantage": GroupNorm(), "samples_per_prompt": 8},
    "LeaveOneOut": {"advantage": LeaveOneOut(), "samples_per_prompt": 8},
    "Returns": {"advantage": Returns()},
    "KL as a loss": {"kl": KL(estimator="k2", where="loss", controller=Fixed(coef=0.05))},
    "the sampler's log-probabilities": {"rescore": False},
}
VARIANTS = {name: [1, 2] if name in ("GAE", "GroupNorm") else [1] for name in SETTINGS}


@pytest.mark.parametrize(("name", "seed"), [(name, seed) for name, seeds in VARIANTS.items() for seed in seeds])
def test_reward_rises(tmp_path, name, seed):
    assert tiny_runs.gain(tmp_path, seed, **SETTINGS[name]) > 2


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("factor", [0.0, -1.0])
def test_reward_does_not_rise_without_advantages_or_against_them(tmp_path, factor, seed):
    assert tiny_runs.gain(tmp_path, seed, advantage=Scaled(factor=factor)) < 1

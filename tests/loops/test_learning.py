"""Every on-policy algorithm must learn a task of seconds; and must not where its advantages are nonsense.

The reward is the number of lower-case letters in a response of at most eight tokens. An untrained policy writes about
two: few of its tokens are letters, and 36 of them end the response. Three letters and more are the longest of tokens.
"""

import learning
import pytest
import tiny_runs

from rlhf.algorithms.advantages import GroupNorm, LeaveOneOut, OptimalTokenBaseline, Returns
from rlhf.algorithms.critics import SharedTrunk
from rlhf.algorithms.grpo import GRPO
from rlhf.algorithms.kl import KL, Fixed
from rlhf.algorithms.ppo import PPO
from rlhf.registry import REGISTRIES, load_components

VARIANTS = {
    "shared trunk": {"critic": SharedTrunk(coef=0.1)},
    "GroupNorm": {"advantage": GroupNorm(), "samples_per_prompt": 8},
    "LeaveOneOut": {"advantage": LeaveOneOut(), "samples_per_prompt": 8},
    "OptimalTokenBaseline": {"advantage": OptimalTokenBaseline(), "samples_per_prompt": 8},
    "Returns": {"advantage": Returns()},
    "KL as a loss": {"kl": KL(estimator="k2", where="loss", controller=Fixed(coef=0.05))},
    "the sampler's log-probabilities": {"rescore": False},
}
"""PPO with another part."""


def test_every_algorithm_has_a_task():
    load_components()
    ours = {cls for cls in REGISTRIES["algorithms"] if issubclass(cls, PPO) and cls.__module__.startswith("rlhf.")}
    assert ours == set(learning.TASKS)


def _marked(kinds, seeds, quick):
    found = []
    for kind in kinds:
        for seed in seeds:
            marks = () if (kind, seed) in quick else pytest.mark.slow
            found.append(pytest.param(kind, seed, marks=marks, id=f"{kind.__name__}-{seed}"))
    return found


@pytest.mark.parametrize(("kind", "seed"), _marked(learning.TASKS, range(1, 6), [(PPO, 1), (GRPO, 1)]))
def test_it_learns(tmp_path, kind, seed):
    assert learning.gain(tmp_path, seed, kind) > learning.threshold(kind)


@pytest.mark.parametrize("how", learning.SPOILT)
@pytest.mark.parametrize(("kind", "seed"), _marked(learning.TASKS, [1, 2], [(PPO, 1)]))
def test_it_does_not_learn_from_nonsense(tmp_path, kind, seed, how):
    assert learning.gain(tmp_path, seed, kind, how) < learning.threshold(kind) / 2


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_variants_learn(tmp_path, name):
    assert tiny_runs.gain(tmp_path, 1, **VARIANTS[name]) > learning.THRESHOLD

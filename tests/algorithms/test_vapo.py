"""VAPO's parts together; each by hand is in the tests of the part."""

import pytest
import tiny_runs
from objectives import MASK, batch_of, slope

from rlhf.algorithms.vapo import VAPO


def test_the_critic_learns_from_whole_returns_and_the_policy_by_length():
    settings = tiny_runs.ppo(VAPO)
    batch = batch_of(settings)
    assert batch.returns is not None
    assert batch.returns[MASK].tolist() == [1, 0, 0]  # λ = 1, values 0
    assert settings.critic is not None and settings.critic.warmup_iterations == 2


def test_good_responses_are_imitated():
    plain, imitating = (slope(tiny_runs.ppo(VAPO, **more)) for more in ({"imitation": None}, {}))
    # 0.1 · −log π of the one token whose response has a score above 0
    assert [b - a for a, b in zip(plain, imitating, strict=True)] == pytest.approx([-0.1, 0, 0], abs=1e-6)


def test_the_clip_is_wider_upwards():
    settings = tiny_runs.ppo(VAPO, imitation=None)
    assert slope(settings, log_ratio=0.24)[0] < 0 == slope(settings, log_ratio=0.25)[0]  # log 1.28 = 0.247

"""Rejection sampling: likelihood of what is kept, and nothing else."""

import pytest
import tiny_runs
from objectives import slope

from rlhf.algorithms.rejection_sampling import RejectionSampling


def test_what_is_kept_is_learnt_as_supervised_data_are():
    # −1/3 Σ log π of the three tokens, whatever the scores: the filter has chosen before
    settings = tiny_runs.ppo(RejectionSampling, mini_batch_size=1)
    assert slope(settings) == pytest.approx([-1 / 3] * 3)
    assert slope(settings, log_ratio=5.0) == pytest.approx([-1 / 3] * 3)


def test_an_iteration_learns_from_one_of_each_group():
    settings = tiny_runs.ppo(RejectionSampling, batch_size=32, samples_per_prompt=8, mini_batch_size=2)
    assert settings.learnt == 4 and settings.check() == []


def test_without_a_filter_it_would_imitate_everything():
    (problem,) = tiny_runs.ppo(RejectionSampling, filter=None).check()
    assert problem.startswith("filter: is null, so that every response is imitated")

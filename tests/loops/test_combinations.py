"""Every estimator with every loss, KL and average, as the registries have them: parsed, built, two steps.

The quick suite changes one part at a time; the slow one has all combinations.
"""

import itertools
import math

import pytest
import tiny_runs

import rlhf
from rlhf.algorithms.kl import KL
from rlhf.algorithms.ppo import PPO
from rlhf.engines.inference.sampling import Sampling
from rlhf.errors import UserError
from rlhf.loops.online import OnlineTrainer
from rlhf.registry import REGISTRIES, load_components

load_components()


def ours(kind: str) -> list[type]:
    """Components of a kind that are the package's own."""
    return [cls for cls in REGISTRIES[kind] if cls.__module__.startswith("rlhf.")]


ESTIMATORS, LOSSES = ours("advantage-estimators"), ours("policy-losses")
KLS = [None, *itertools.product(("k1", "k2", "k3", "exact"), ("reward", "loss"))]
CONTROLLERS = ours("kl-controllers")
AVERAGES = [None, *ours("weight-averages")]
CORRECTIONS, FILTERS = [None, *ours("sampler-corrections")], [None, *ours("rollout-filters")]


def make(estimator=None, loss=None, kl=("k1", "reward"), average=None, controller=None, correction=None, **more) -> PPO:
    """Settings of a combination; raises what its parts say when they do not go together."""
    made = {} if controller is None else {"controller": controller()}
    return tiny_runs.ppo(
        advantage=rlhf.GAE() if estimator is None else estimator(),
        policy_loss=rlhf.Clip() if loss is None else loss(),
        kl=None if kl is None else KL(estimator=kl[0], where=kl[1], **made),
        averaging=None if average is None else average(),
        correction=None if correction is None else correction(),
        **{
            "samples_per_prompt": 4,
            "iterations": 1,
            "sampling": Sampling(max_new_tokens=4, stop_tokens=tiny_runs.STOPS),
            **more,
        },
    )


def run(settings: PPO, directory) -> None:
    """Two optimiser steps with finite figures."""
    assert settings.check() == []
    trainer = OnlineTrainer(settings, tiny_runs.context(directory))
    figures = trainer.train_rlhf(trainer.generate_experience())
    assert trainer.steps == settings.learnt // settings.mini_batch_size
    undefined = {"value/explained_variance"}  # of constant returns
    assert [name for name, value in figures.items() if not math.isfinite(value) and name not in undefined] == []


def name(part) -> str:
    return "-".join(part) if isinstance(part, tuple) else getattr(part, "__name__", "none")


def senseless(kl) -> bool:
    return kl == ("k1", "loss")


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=name)
def test_estimators(tmp_path, estimator):
    run(make(estimator), tmp_path)


@pytest.mark.parametrize("loss", LOSSES, ids=name)
def test_losses(tmp_path, loss):
    run(make(rlhf.GroupNorm, loss), tmp_path)


@pytest.mark.parametrize("kl", [kl for kl in KLS if not senseless(kl)], ids=name)
def test_kl(tmp_path, kl):
    run(make(rlhf.GroupNorm, kl=kl), tmp_path)


@pytest.mark.parametrize("controller", CONTROLLERS, ids=name)
def test_controllers(tmp_path, controller):
    run(make(rlhf.GroupNorm, controller=controller), tmp_path)


@pytest.mark.parametrize("average", AVERAGES[1:], ids=name)
def test_averages_of_the_policy_and_as_the_reference(tmp_path, average):
    run(make(rlhf.GroupNorm, average=average, reference_average=average()), tmp_path)


@pytest.mark.parametrize("correction", CORRECTIONS[1:], ids=name)
def test_corrections(tmp_path, correction):
    run(make(rlhf.GroupNorm, correction=correction), tmp_path)


@pytest.mark.parametrize("filtering", FILTERS[1:], ids=name)
def test_filters(tmp_path, filtering):
    run(make(rlhf.Ones, filter=filtering(), mini_batch_size=1), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("average", AVERAGES, ids=name)
@pytest.mark.parametrize("estimator", ESTIMATORS, ids=name)
def test_all_combinations(tmp_path, estimator, average):
    for number, (loss, kl) in enumerate(itertools.product(LOSSES, KLS)):
        if not senseless(kl):
            run(make(estimator, loss, kl, average), tmp_path / str(number))


def test_senseless_combinations_are_refused_with_the_reason():
    with pytest.raises(UserError, match="gradient of k1 as a loss has expectation zero"):
        make(kl=("k1", "loss"))
    for cls in ESTIMATORS:
        settings = make(cls, samples_per_prompt=1)
        assert bool(settings.check()) == cls.needs_groups, cls
        assert bool(make(cls, critic=None).check()) == cls.needs_critic, cls
        assert bool(make(cls, rescore=False).check()) == cls.needs_collision, cls
        for problem in (*settings.check(), *make(cls, critic=None).check(), *make(cls, rescore=False).check()):
            assert cls.__name__ in problem and "; set " in problem
    for cls in CORRECTIONS[1:]:
        (problem,) = make(correction=cls, rescore=False).check()
        assert cls.__name__ in problem
    for cls in FILTERS[1:]:
        (problem,) = make(filter=cls(), replay="rollouts", mini_batch_size=1).check()
        assert problem.startswith("filter: ")

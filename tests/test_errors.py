"""Ranges of settings."""

import pytest

from rlhf import GAE, KL, SGD, AdamW, Adaptive, Clip, Fixed, GroupNorm, OwnTrunk, Returns, SharedTrunk
from rlhf.algorithms.ppo import Evaluation
from rlhf.errors import ConfigError, UserError, require


def test_ranges():
    require(at_least=0, below=1, a=0.0, b=0.5, c=None)
    for value in (-0.1, 1.0, float("nan")):
        with pytest.raises(ValueError, match=r"b is .*; must be at least 0 and below 1"):
            require(at_least=0, below=1, a=0.0, b=value)
    with pytest.raises(ValueError, match="x is 0; must be above 0 and at most 2"):
        require(above=0, at_most=2, x=0)
    with pytest.raises(ValueError, match="x is inf; must be at least 0, and finite"):
        require(at_least=0, x=float("inf"))


@pytest.mark.parametrize(
    ("component", "settings"),
    [
        (AdamW, {"lr": -1.0}),
        (AdamW, {"beta1": -1.0}),
        (AdamW, {"beta2": 1.0}),
        (AdamW, {"eps": 0.0}),
        (AdamW, {"weight_decay": -1.0}),
        (SGD, {"lr": float("nan")}),
        (GAE, {"gamma": -1.0}),
        (GAE, {"lam": 5.0}),
        (GAE, {"length_alpha": float("inf")}),
        (Returns, {"gamma": 2.0}),
        (GroupNorm, {"eps": 0.0}),
        (Clip, {"low": 1.0}),
        (Clip, {"low": float("nan")}),
        (Clip, {"high": float("inf")}),
        (Clip, {"dual": float("nan")}),
        (Clip, {"dual": 1.0}),
        (Fixed, {"coef": -1.0}),
        (Adaptive, {"coef": -1.0}),
        (OwnTrunk, {"clip": -1.0}),
        (OwnTrunk, {"max_grad_norm": 0.0}),
        (SharedTrunk, {"coef": -1.0}),
        (Evaluation, {"prompts": -1}),
    ],
)
def test_a_setting_out_of_range_is_named(component, settings):
    (name,) = settings
    with pytest.raises(ValueError, match=f"{name} is .*; must be "):
        component(**settings)


def test_a_config_error_tells_every_problem():
    error = ConfigError(["a: one", "b: two"])
    assert isinstance(error, UserError) and error.problems == ["a: one", "b: two"] and str(error) == "a: one\nb: two"
    assert KL().where == "reward"

"""Policy losses as components; what all of them hold to is in ``test_invariances.py``."""

import math

import pytest
import torch

from rlhf.algorithms.functional.masking import aggregate
from rlhf.algorithms.policy_losses import (
    Clip,
    DetachedClip,
    DualClip,
    GeometricMean,
    KLPenalty,
    PolicyGradient,
    SequenceClip,
)
from rlhf.types import Batch, Sequences


def batch(ratios, advantages) -> Batch:
    width = len(ratios)
    ids = torch.zeros(1, width + 1, dtype=torch.long)
    ones = torch.ones(1, width, dtype=torch.bool)
    old = -torch.tensor([[math.log(ratio) for ratio in ratios]])
    return Batch(
        sequences=Sequences(ids, torch.ones_like(ids, dtype=torch.bool), 1),
        mask=ones,
        rollout_logprobs=torch.full((1, width), float("nan")),
        old_logprobs=old,
        ref_logprobs=None,
        advantages=torch.tensor([advantages]),
        returns=None,
        values=None,
    )


ROWS = batch([10.0, 10.0, 0.5, 1.1], [-1.0, 1.0, -1.0, 2.0])


def test_clip_by_hand():  # case C3
    loss = Clip(dual=3.0)(torch.zeros(1, 4), ROWS)
    torch.testing.assert_close(loss, torch.tensor([[3.0, -1.2, 0.8, -2.2]]))
    loss = Clip()(torch.zeros(1, 4), ROWS)
    torch.testing.assert_close(loss, torch.tensor([[10.0, -1.2, 0.8, -2.2]]))


def test_the_range_may_be_asymmetric():
    loss = Clip(low=0.4, high=0.05)(torch.zeros(1, 4), ROWS)
    torch.testing.assert_close(loss, torch.tensor([[10.0, -1.05, 0.6, -2.1]]))


def test_dual_clip_is_clip_with_its_bound_set():  # case C3
    assert DualClip().dual == 3.0 and DualClip() == DualClip(dual=3.0)
    loss = DualClip(dual=2.0, high=0.05)(torch.zeros(1, 4), ROWS)
    torch.testing.assert_close(loss, torch.tensor([[2.0, -1.05, 0.8, -2.1]]))


ONE = batch([4.0, 0.25, 2.0, 2.0], [1.0] * 4)  # the geometric mean of the ratios is √2


def test_sequence_clip_by_hand():
    torch.testing.assert_close(SequenceClip()(torch.zeros(1, 4), ONE), torch.full((1, 4), -1.0004))
    loss = SequenceClip(high=1.0)(torch.zeros(1, 4), ONE)
    torch.testing.assert_close(loss, torch.full((1, 4), -1.414214))
    total = aggregate(loss, ONE.mask, mode=SequenceClip().aggregation, denominator=1.0)
    assert total.item() == pytest.approx(-1.414214)


def test_geometric_mean_by_hand():
    # log-ratios 1.386294, −1.386294, 0.693147 twice, at most 0.4: mean −0.046574, exp 0.954494
    loss = GeometricMean()(torch.zeros(1, 4), ONE)
    torch.testing.assert_close(loss, torch.full((1, 4), -0.954494), atol=1e-6, rtol=0)
    # at most 1: mean (1 − 1.386294 + 1.386294) / 4 = 0.25, exp 1.284025
    loss = GeometricMean(high=1.0)(torch.zeros(1, 4), ONE)
    torch.testing.assert_close(loss, torch.full((1, 4), -1.284025), atol=1e-6, rtol=0)
    assert GeometricMean().aggregation == "sequence"


def test_detached_clip_by_hand():
    # logprobs −1 for all, so the ratios of ROWS · e^−1: 3.678794, 3.678794, 0.183940, 0.404667; at most 5, then 1.2
    at_one = torch.full((1, 4), -1.0)
    loss = DetachedClip()(at_one, ROWS)
    torch.testing.assert_close(loss, torch.tensor([[-3.678794, 3.678794, -0.183940, 0.809334]]))
    loss = DetachedClip(low=0.2, high=0.2)(at_one, ROWS)
    torch.testing.assert_close(loss, torch.tensor([[-1.2, 1.2, -0.8, 1.6]]))


def test_kl_penalty_by_hand():
    # 10 + 2 (9 − log 10), −10 + 2 (9 − log 10), 0.5 + 2 (−0.5 + log 2), −2.2 + 2 (0.1 − log 1.1)
    loss = KLPenalty(coef=2.0)(torch.zeros(1, 4), ROWS)
    torch.testing.assert_close(loss, torch.tensor([[23.394830, 3.394830, 0.886294, -2.190620]]))


def test_policy_gradient_reads_no_old_policy():
    logprobs = torch.tensor([[-1.0, -2.0, -3.0, -0.5]])
    loss = PolicyGradient()(logprobs, batch([float("nan")] * 4, [-1.0, 1.0, -1.0, 2.0]))
    torch.testing.assert_close(loss, torch.tensor([[-1.0, 2.0, -3.0, 1.0]]))


@pytest.mark.parametrize(
    ("loss", "settings", "text"),
    [
        (Clip, {"low": 1.0}, r"low is 1\.0"),
        (Clip, {"high": -0.1}, r"high is -0\.1"),
        (Clip, {"dual": 1.0}, r"dual is 1\.0"),
        (DualClip, {"dual": 0.5}, r"dual is 0\.5"),
        (SequenceClip, {"low": 1.0}, r"low is 1\.0"),
        (SequenceClip, {"high": -0.1}, r"high is -0\.1"),
        (GeometricMean, {"low": -0.1}, r"low is -0\.1"),
        (GeometricMean, {"high": -0.1}, r"high is -0\.1"),
        (DetachedClip, {"low": 1.1}, r"low is 1\.1"),
        (DetachedClip, {"high": -0.1}, r"high is -0\.1"),
        (KLPenalty, {"coef": -1.0}, r"coef is -1\.0"),
    ],
)
def test_settings_are_checked(loss, settings, text):
    with pytest.raises(ValueError, match=text):
        loss(**settings)

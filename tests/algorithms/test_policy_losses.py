"""The policy loss as a component."""

import math

import pytest
import torch

from rlhf.algorithms.policy_losses import Clip
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


@pytest.mark.parametrize(
    ("settings", "text"),
    [({"low": 1.0}, r"low is 1\.0"), ({"high": -0.1}, r"high is -0\.1"), ({"dual": 1.0}, r"dual is 1\.0")],
)
def test_settings_are_checked(settings, text):
    with pytest.raises(ValueError, match=text):
        Clip(**settings)

"""No reward."""

from types import SimpleNamespace
from typing import Any

import torch

from rlhf.engines.local import Local
from rlhf.models.rewards import NoReward


class Three(SimpleNamespace):
    def __len__(self) -> int:
        return 3


def test_every_response_is_worth_nothing():
    stands_for: Any = Three(mask=torch.ones(3, 2, dtype=torch.bool))
    scores = NoReward().build(Local(), stands_for)(stands_for)
    assert scores.total.tolist() == [0, 0, 0] and not scores.parts

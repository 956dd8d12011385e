"""What length costs. Rollouts of ``tiny_models`` have responses of 1, 2, 3 … tokens."""

from typing import Any, cast

import pytest
from tiny_models import ForwardEngine, rollout

from rlhf.interfaces import RewardModel
from rlhf.models.rewards import LengthPenalty, OverlongPenalty, Weighted


def scores(reward: RewardModel, rows: int) -> list[float]:
    return reward.build(ForwardEngine(), cast(Any, None))(rollout(["x"] * rows)).total.tolist()


def test_each_token_beyond_the_target_costs_the_same():
    assert scores(LengthPenalty(target=2, per_token=0.5), 5) == [0.0, 0.0, -0.5, -1.0, -1.5]
    assert scores(LengthPenalty(target=0, per_token=1.0), 2) == [-1.0, -2.0]


def test_the_overlong_punishment_of_the_paper():
    # L_max 6, L_cache 4: nothing up to 2 tokens, then a quarter each, −1 from 6 on
    found = scores(OverlongPenalty(max_tokens=6, buffer=4), 8)
    assert found == [0.0, 0.0, -0.25, -0.5, -0.75, -1.0, -1.0, -1.0]
    assert [str(score) for score in found[:2]] == ["0.0", "0.0"]  # not −0, which files would show


def test_it_is_a_part_of_a_sum():
    penalty = LengthPenalty(target=1, per_token=1.0)
    assert scores(Weighted(models={"length": penalty}, weights={"length": 2.0}), 3) == [0.0, -2.0, -4.0]


@pytest.mark.parametrize(("make", "message"), [
    (lambda: LengthPenalty(target=-1, per_token=1.0), "target is -1"),
    (lambda: LengthPenalty(target=1, per_token=-1.0), "per_token is -1"),
    (lambda: OverlongPenalty(max_tokens=4, buffer=0), "buffer is 0"),
    (lambda: OverlongPenalty(max_tokens=4, buffer=5), r"buffer: 5, more than max_tokens \(4\)"),
])  # fmt: skip
def test_settings_out_of_range(make, message):
    with pytest.raises(ValueError, match=message):
        make()

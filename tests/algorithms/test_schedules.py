"""Learning rates over a stage."""

import pytest

from rlhf.algorithms.schedules import Constant, CosineDecay, LinearDecay


def test_cosine_by_hand():  # case F2
    schedule = CosineDecay(warmup=2)
    # progress (step − 2) / 8: ½ (1 + cos(π/4)) and ½ (1 + cos(3π/8))
    assert 1e-5 * schedule.factor(4, 10) == pytest.approx(8.535534e-6, abs=1e-12)
    assert 1e-5 * schedule.factor(5, 10) == pytest.approx(6.913417e-6, abs=1e-12)
    assert [schedule.factor(step, 10) for step in (0, 1, 2)] == [0, 0.5, 1]


@pytest.mark.parametrize("schedule", [CosineDecay(), LinearDecay()])
def test_decay_ends_at_its_floor_and_never_rises(schedule):  # case F2
    factors = [schedule.factor(step, 5) for step in range(8)]
    assert factors[0] == 1 and factors[5:] == [0, 0, 0]
    assert factors == sorted(factors, reverse=True)


def test_linear_by_hand():
    schedule = LinearDecay(warmup=1, floor=0.5)
    assert [schedule.factor(step, 5) for step in range(6)] == [0, 1, 0.875, 0.75, 0.625, 0.5]


def test_floor_of_the_cosine():
    assert CosineDecay(floor=0.1).factor(4, 4) == pytest.approx(0.1)
    assert CosineDecay(floor=0.1).factor(2, 4) == pytest.approx(0.55)


def test_constant():
    assert [Constant().factor(step, 3) for step in range(4)] == [1, 1, 1, 1]
    assert [Constant(warmup=4).factor(step, 3) for step in range(6)] == [0, 0.25, 0.5, 0.75, 1, 1]


@pytest.mark.parametrize("kind", [Constant, LinearDecay, CosineDecay])
def test_warmup_must_not_be_negative(kind):
    with pytest.raises(ValueError, match="warmup is -1"):
        kind(warmup=-1)


@pytest.mark.parametrize("kind", [LinearDecay, CosineDecay])
def test_floor_is_a_factor(kind):
    with pytest.raises(ValueError, match=r"floor is 1\.5"):
        kind(floor=1.5)

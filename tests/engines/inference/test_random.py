import math

import pytest
import torch
from torch import Tensor

from rlhf.engines.inference.random import splitmix64, uniform

ROWS = torch.arange(1 << 14)


def correlation(x: Tensor, y: Tensor) -> float:
    return float(torch.corrcoef(torch.stack([x, y]))[0, 1])


def test_splitmix64_gives_the_published_outputs_of_seed_1234567():
    golden = 0x9E3779B97F4A7C15 - (1 << 64)
    outputs = splitmix64(1234567 + torch.arange(5) * golden)
    assert [int(x) % (1 << 64) for x in outputs] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


@pytest.mark.parametrize(
    ("seed", "counter", "position", "expected"),
    [
        # From arithmetic on Python's unbounded integers.
        (0, 0, 0, 0.13870941014555427),
        (0, 1, 0, 0.18383979100743952),
        (0, 0, 1, 0.9711020828012883),
        (1, 0, 0, 0.6935121390102292),
        (1, 2, 3, 0.5211329322530508),
        (-1, 5, 7, 0.014685432376463803),
        (1 << 63, 1 << 62, 127, 0.20456160228858988),
        ((1 << 64) + 1, 2, 3, 0.5211329322530508),  # seeds are taken modulo 2⁶⁴: the same as seed 1
    ],
)
def test_golden_values(seed: int, counter: int, position: int, expected: float):
    assert uniform(seed, torch.tensor([counter]), position).tolist() == [expected]


def test_a_number_depends_on_its_own_address_only():
    counters = torch.tensor([3, 1 << 40, 0, 3])
    together = uniform(7, counters, 5)
    assert together.dtype == torch.float64
    assert torch.equal(together, torch.cat([uniform(7, counters[i : i + 1], 5) for i in range(4)]))
    assert torch.equal(together[[2, 0, 1]], uniform(7, counters[[2, 0, 1]], 5))
    assert together[0] == together[3]
    assert torch.equal(together, uniform(7, counters, torch.full((4,), 5)))
    table = uniform(7, counters.unsqueeze(1), torch.arange(6))
    assert table.shape == (4, 6)
    assert torch.equal(together, table[:, 5])


def test_all_lie_in_the_half_open_interval_and_none_repeats():
    x = uniform(0, ROWS.unsqueeze(1), torch.arange(16))
    assert float(x.min()) >= 0
    assert float(x.max()) < 1
    assert x.unique().numel() == x.numel()


@pytest.mark.parametrize("along", ["counters", "positions", "seeds"])
def test_uniform_by_chi_square(along: str):
    if along == "counters":
        x = uniform(11, ROWS, 3)
    elif along == "positions":
        x = uniform(11, torch.tensor([3]), ROWS)
    else:
        x = torch.cat([uniform(seed, torch.arange(4), 3) for seed in range(1 << 12)])
    observed = torch.bincount((x * 64).long(), minlength=64).double()
    expected = len(x) / 64
    statistic = float(((observed - expected) ** 2 / expected).sum())
    # 63 degrees of freedom: mean 63, standard deviation 11.2; five of them to either side.
    assert 63 - 5 * 11.2 < statistic < 63 + 5 * 11.2


@pytest.mark.parametrize("step", [1, 2, 64, 1 << 32])
def test_neighbours_are_uncorrelated(step: int):
    bound = 5 / math.sqrt(len(ROWS))
    x = uniform(0, ROWS, 0)
    assert abs(correlation(x, uniform(0, ROWS + step, 0))) < bound
    assert abs(correlation(x, uniform(0, ROWS, step))) < bound
    assert abs(correlation(x, uniform(step, ROWS, 0))) < bound
    # Counter and position (or seed and counter) must not act through their sum.
    assert abs(correlation(uniform(0, ROWS + step, 0), uniform(0, ROWS, step))) < bound
    assert abs(correlation(uniform(step, ROWS, 0), uniform(0, ROWS + step, 0))) < bound


def test_pairs_of_neighbouring_positions_fill_the_square():
    x, y = uniform(5, ROWS, 0), uniform(5, ROWS, 1)
    observed = torch.bincount((x * 8).long() * 8 + (y * 8).long(), minlength=64).double()
    expected = len(ROWS) / 64
    assert float(((observed - expected) ** 2 / expected).sum()) < 63 + 5 * 11.2


def test_other_types_are_refused():
    with pytest.raises(ValueError, match=r"counters: torch.float32.*give int64"):
        uniform(0, torch.zeros(2), 0)
    with pytest.raises(ValueError, match=r"position: torch.int32.*give int64"):
        uniform(0, torch.arange(2), torch.zeros(2, dtype=torch.int32))

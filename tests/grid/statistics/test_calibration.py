"""Whether the intervals hold what they say, on experiments whose truth is known.

A thousand experiments each: a proportion of them has a standard error of at most √(0.05 · 0.95 / 1000) = 0.7%, so that
95% ± 2% is three of them, and a false-discovery rate of 5% may be seen as up to 5% + 3 · 0.7% = 7.1%.
"""

import numpy as np
import pandas as pd
import pytest

from rlhf.grid.statistics.comparisons import differences
from rlhf.grid.statistics.factorial import effects

EXPERIMENTS = 1000
NAMES = [f"m{index}" for index in range(EXPERIMENTS)]


def normal(generator, shape):
    return generator.normal(size=shape)


def skewed(generator, shape):
    """Mean 0, deviation 1, skewness 2: runs that fail badly now and then."""
    return 1.0 - generator.exponential(size=shape)


def experiments(noise, seeds, means, *, spreads=None, rng=0):
    """A table whose metrics are a thousand experiments: a seed's effect of deviation 2, and noise of each run.

    Args:
        noise: Of deviation 1.
        seeds: How many.
        means: True mean of each variant.
        spreads: Deviation of each variant's noise.
    """
    generator = np.random.default_rng(rng)
    runs = noise(generator, (seeds, len(means), EXPERIMENTS)) * np.reshape(spreads or [1.0] * len(means), (-1, 1))
    values = 2 * generator.normal(size=(seeds, 1, EXPERIMENTS)) + np.reshape(means, (-1, 1)) + runs
    index = pd.MultiIndex.from_product([range(1, seeds + 1), [f"v{i}" for i in range(len(means))]])
    frame = pd.DataFrame(values.reshape(-1, EXPERIMENTS), columns=NAMES, index=index.set_names(["seed", "variant"]))
    return frame.reset_index()


def coverage(table, truth):
    return float(((table["low"] <= truth) & (truth <= table["high"])).mean())


@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_intervals_of_paired_differences_cover(seeds):
    table = differences(experiments(normal, seeds, [0.0, 0.7]), NAMES, "v0", family="metric")
    assert len(table) == EXPERIMENTS
    assert coverage(table, 0.7) == pytest.approx(0.95, abs=0.02)
    # and a seed's effect, which is twice the noise, is not in their width: that is of the noise of two runs
    assert np.sqrt((table["std"] ** 2).mean()) == pytest.approx(np.sqrt(2), rel=0.05)


@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_false_discoveries_under_the_null(seeds):
    """Of families of four comparisons without any difference, at most 5% may find one."""
    table = differences(experiments(normal, seeds, [0.0] * 5), NAMES, "v0", family="metric")
    assert set(table["family"]) == {4}
    found = table.groupby("metric")["differs"].any()
    assert len(found) == EXPERIMENTS
    assert found.mean() <= 0.05 + 0.021
    # without the correction it is far more, and the simultaneous intervals hold as it does
    assert (table["p"] <= 0.05).groupby(table["metric"]).any().mean() > 0.1
    holds = (table["simultaneous_low"] <= 0) & (table["simultaneous_high"] >= 0)
    assert holds.groupby(table["metric"]).all().mean() >= 0.95 - 0.021


def test_skewed_noise_of_both_leaves_the_differences_symmetric():
    """As both fail alike, their difference is symmetric, and the interval errs on the safe side."""
    table = differences(experiments(skewed, 5, [0.0, 0.7]), NAMES, "v0", family="metric")
    assert 0.93 <= coverage(table, 0.7) <= 0.99


def test_variants_that_vary_differently():
    """Paired differences do not mind that one variant varies five times as much as the other."""
    table = differences(experiments(normal, 5, [0.0, 0.7], spreads=[1.0, 5.0]), NAMES, "v0", family="metric")
    assert coverage(table, 0.7) == pytest.approx(0.95, abs=0.02)


@pytest.mark.slow
def test_intervals_of_effects_cover():
    """Contrasts of 2 × 2 cells, one of which varies five times as much; fewer experiments, as each is a fit."""
    rows = experiments(normal, 5, [0.0, 1.0, 2.0, 5.0], spreads=[1.0, 1.0, 1.0, 5.0])
    number = rows["variant"].str[1:].astype(int)
    rows = rows.assign(a=(number // 2).astype(str), b=(number % 2).astype(str))
    truth = np.array([3.0, 2.0, 2.0])  # (2 + 4) / 2, (1 + 3) / 2, 3 − 1
    found = [effects(rows, name, ["a", "b"]).effects for name in NAMES[:100]]
    held = [((table["low"] <= truth) & (truth <= table["high"])).to_numpy() for table in found]
    assert np.mean(held, axis=0).min() >= 0.95 - 3 * np.sqrt(0.05 * 0.95 / 100)

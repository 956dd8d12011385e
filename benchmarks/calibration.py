"""How often the intervals and tests of a grid hold what they say, on simulated experiments whose truth is known.

    python benchmarks/calibration.py

Prints Markdown. An experiment is a table of runs: a variant's mean, a seed's effect of deviation 2 that all runs of the
seed share, and each run's own noise of deviation 1. Everything is worked out by the functions that reports are made
with. Of N experiments a proportion p has a standard error of √(p (1 − p) / N): 0.7% for 95% of a thousand. Needs the
extra ``grid``; some ten minutes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import numpy as np

Noise = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]
SEED_EFFECT = 2.0


def normal(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Noise of runs that differ by many small causes."""
    return generator.normal(size=shape)


def skewed(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Skewness −2: runs that fail badly now and then."""
    return 1.0 - generator.exponential(size=shape)


def heavy(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Student's t with three degrees of freedom, scaled to deviation 1: outliers to both sides."""
    return generator.standard_t(3, size=shape) / np.sqrt(3)


NOISES: dict[str, Noise] = {"normal": normal, "skewed": skewed, "heavy tails": heavy}


def middle_mean(noise: Noise) -> float:
    """The interquartile mean of a noise, of a million draws; 0 of a symmetric one."""
    if noise is not skewed:
        return 0.0
    values = np.sort(noise(np.random.default_rng(0), (1_000_000,)))
    return float(values[250_000:750_000].mean())


def experiments(
    noises: Sequence[Noise], seeds: int, means: Sequence[float], count: int, spreads: Sequence[float] | None = None
) -> Any:
    """A table of results with a metric for each experiment: ``seed``, ``variant`` and ``m0``, ``m1``, ….

    Args:
        noises: Of each variant.
        seeds: How many.
        means: True mean of each variant.
        count: Experiments.
        spreads: Deviation of each variant's noise; None for 1.
    """
    from pandas import DataFrame, MultiIndex

    generator = np.random.default_rng(seeds)
    own = [noise(generator, (seeds, count)) for noise in noises]
    scaled = np.stack(own, axis=1) * np.reshape(spreads or [1.0] * len(means), (-1, 1))
    values = SEED_EFFECT * generator.normal(size=(seeds, 1, count)) + np.reshape(means, (-1, 1)) + scaled
    index = MultiIndex.from_product([range(1, seeds + 1), [f"v{i}" for i in range(len(means))]])
    columns = [f"m{index}" for index in range(count)]
    frame = DataFrame(values.reshape(-1, count), columns=columns, index=index.set_names(["seed", "variant"]))
    return frame.reset_index()


def covered(low: Any, high: Any, truth: Any) -> float:
    """Share of intervals that hold the truth; one that could not be had holds nothing."""
    return float(((np.asarray(low) <= truth) & (truth <= np.asarray(high))).mean())


def paired(seeds: int, count: int) -> dict[str, float]:
    """Coverage of 95% intervals of a difference of 0.7: paired, and unpaired beside it."""
    from scipy import stats

    from rlhf.grid.statistics.comparisons import differences

    cases = {
        "normal": experiments([normal, normal], seeds, [0.0, 0.7], count),
        "skewed": experiments([skewed, skewed], seeds, [0.0, 0.7], count),
        "one variant skewed": experiments([normal, skewed], seeds, [0.0, 0.7], count, [0.2, 1.0]),
        "heavy tails": experiments([heavy, heavy], seeds, [0.0, 0.7], count),
        "one varies five times as much": experiments([normal, normal], seeds, [0.0, 0.7], count, [1.0, 5.0]),
    }
    names = [f"m{index}" for index in range(count)]
    found = {}
    for name, rows in cases.items():
        table = differences(rows, names, "v0")
        found[f"paired t, {name}"] = covered(table["low"], table["high"], 0.7)
        if name == "normal":
            one, other = (rows[rows["variant"] == variant][names].to_numpy() for variant in ("v1", "v0"))
            welch = stats.ttest_ind(one, other, equal_var=False).confidence_interval()
            found["unpaired (Welch), normal"] = covered(welch.low, welch.high, 0.7)
            ratio = np.median((welch.high - welch.low) / (table["high"] - table["low"]).to_numpy())
            found["… its width in that of the paired one"] = float(ratio)
    return found


def false_discoveries(seeds: int, count: int, comparisons: int = 4) -> dict[str, float]:
    """Share of families without any difference in which one is found."""
    from rlhf.grid.statistics.comparisons import differences

    found = {}
    for name, noise in NOISES.items():
        rows = experiments([noise] * (comparisons + 1), seeds, [0.0] * (comparisons + 1), count)
        table = differences(rows, [f"m{index}" for index in range(count)], "v0", family="metric")
        by = table.groupby("metric")
        found[f"Holm, {name}"] = float(by["differs"].any().mean())
        wide = (table["simultaneous_low"] > 0) | (table["simultaneous_high"] < 0)
        found[f"simultaneous intervals, {name}"] = float(wide.groupby(table["metric"]).any().mean())
        found[f"uncorrected, {name}"] = float((table["p"] <= 0.05).groupby(table["metric"]).any().mean())
    return found


def means_and_iqm(seeds: int, count: int, resamples: int) -> dict[str, float]:
    """Coverage of 95% intervals of a variant's mean and of its interquartile mean."""
    from pandas import DataFrame

    from rlhf.grid.statistics.comparisons import per_variant
    from rlhf.grid.statistics.robust import interquartile_means

    found = {}
    for name, noise in NOISES.items():
        values = noise(np.random.default_rng(seeds), (count, seeds))
        variants = np.repeat([f"v{index:06d}" for index in range(count)], seeds)
        rows = DataFrame({"variant": variants, "seed": np.tile(np.arange(seeds), count), "gold": values.ravel()})
        table = per_variant(rows, "gold")
        found[f"mean, Student's t, {name}"] = covered(table["low"], table["high"], 0.0)
        for method in ("BCa", "percentile"):
            table = interquartile_means(rows, "gold", method=method, resamples=resamples)
            found[f"IQM, {method}, {name}"] = covered(table["low"], table["high"], middle_mean(noise))
    return found


def factorial(seeds: int, count: int) -> dict[str, float]:
    """Coverage of 95% intervals of the effects of an axis with four choices, by both methods.

    The last choice varies as much as the others, or five times as much; then its effect and that of a steady choice are
    told apart.
    """
    from rlhf.grid.statistics.factorial import effects

    found, truth = {}, np.array([1.0, 2.0, 5.0])
    for last in (1.0, 5.0):
        rows = experiments([normal] * 4, seeds, [0.0, *truth], count, [1.0, 1.0, 1.0, last])
        for method in ("repeated", "blocks"):
            tables = [effects(rows, f"m{index}", ["variant"], method=method).effects for index in range(count)]
            low, high = (np.array([table[side] for table in tables]) for side in ("low", "high"))
            parts = {"all vary alike": slice(None)}
            if last > 1:
                parts = {"a steady choice": slice(0, 1), "one that varies five times as much": slice(2, 3)}
            for name, part in parts.items():
                found[f"{method}, {name}"] = covered(low[:, part], high[:, part], truth[part])
                found[f"… median width: {method}, {name}"] = float(np.median((high - low)[:, part]))
    return found


def powers(seeds: int, count: int) -> dict[str, float]:
    """Share of experiments that find a difference which 80% should find, and which the formula says."""
    from rlhf.grid.statistics.comparisons import differences
    from rlhf.grid.statistics.power import power, smallest_effect

    found, names = {}, [f"m{index}" for index in range(count)]
    for name, noise in {"normal": normal, "skewed": skewed}.items():
        rows = experiments([noise, noise], seeds, [0.0, smallest_effect(seeds) * np.sqrt(2)], count)
        table = differences(rows, names, "v0")
        found[f"found of an effect that 80% should find, {name}"] = float((table["p"] <= 0.05).mean())
        if noise is normal:
            needed = power(table)["seeds_needed"].quantile([0.1, 0.5, 0.9]).tolist()
            for share, value in zip((10, 50, 90), needed, strict=True):
                found[f"seeds said to be needed, {share}% of the experiments say fewer"] = value
    return found


def markdown(title: str, columns: dict[int, dict[str, float]], counts: Sequence[str] = ()) -> str:
    """A table with a column for each number of seeds; proportions as percentages, ``counts`` as they are."""
    lines = [f"### {title}", "", "| | " + " | ".join(f"{seeds} seeds" for seeds in columns) + " |"]
    lines.append("|---|" + "---|" * len(columns))
    for name in next(iter(columns.values())):
        plain = any(part in name for part in counts)
        cells = [f"{column[name]:.2g}" if plain else f"{100 * column[name]:.1f}%" for column in columns.values()]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[3, 5, 10, 20], help="numbers of seeds")
    parser.add_argument(
        "--experiments", type=int, default=1000, help="of each kind; half where each is a bootstrap, a tenth a fit"
    )
    parser.add_argument("--resamples", type=int, default=999, help="of a bootstrap")
    given = parser.parse_args(arguments)
    count = given.experiments
    bootstraps, fits = max(count // 2, 1), max(count // 10, 1)
    tables: list[tuple[str, Callable[[int], dict[str, float]], tuple[str, ...]]] = [
        ("95% intervals of a difference hold the truth", lambda n: paired(n, count), ("width",)),
        ("A family of four without a difference finds one (5% wanted)", lambda n: false_discoveries(n, count), ()),
        (
            f"95% intervals of one variant hold the truth ({bootstraps} experiments)",
            lambda n: means_and_iqm(n, bootstraps, given.resamples),
            (),
        ),
        (f"95% intervals of effects hold the truth ({fits} experiments)", lambda n: factorial(n, fits), ("width",)),
        ("Power", lambda n: powers(n, count), ("needed",)),
    ]
    # statsmodels collects garbage at each correction; there are thousands, and nothing to collect
    with mock.patch("gc.collect"):
        for title, make, counts in tables:
            print(markdown(title, {seeds: make(seeds) for seeds in given.seeds}, counts), flush=True)


if __name__ == "__main__":
    main()

"""Tables of results for the tests of the statistics."""

import pandas as pd


def results(**variants):
    """One row per run: values by variant, of seeds 1, 2, …; None for a run that failed."""
    rows = [
        {"cell": f"{variant}-{seed}", "variant": variant, "seed": seed, "gold": value}
        for variant, values in variants.items()
        for seed, value in enumerate(values, start=1)
    ]
    return pd.DataFrame(rows)


def crossed(values, **levels):
    """One row per run of two axes: values[seed][a][b], the choices by axis."""
    (first, choices_a), (second, choices_b) = levels.items()
    rows = [
        {first: a, second: b, "variant": f"{a}, {b}", "seed": seed, "gold": values[seed - 1][i][j]}
        for seed in range(1, len(values) + 1)
        for i, a in enumerate(choices_a)
        for j, b in enumerate(choices_b)
    ]
    return pd.DataFrame(rows)

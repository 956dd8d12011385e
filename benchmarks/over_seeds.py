"""What the scripts over seeds share: figures in units, and a table of means with intervals."""

from __future__ import annotations

from collections.abc import Sequence


def per(amount: float, unit: float) -> float:
    """The amount in units; NaN where the unit is 0, as the deviation of responses that are all alike."""
    return amount / unit if unit else float("nan")


def table(results: Sequence[dict[str, float]], seeds: Sequence[int]) -> str:
    """Markdown: mean, Student-t 95% interval and every seed's value."""
    import numpy as np
    from scipy import stats

    lines = ["| figure | mean | 95% interval | " + " | ".join(f"seed {seed}" for seed in seeds) + " |"]
    lines.append("|---|" + "---|" * (2 + len(seeds)))
    for name in results[0]:
        values = np.array([result[name] for result in results])
        interval = "n/a"
        if len(values) > 1:
            half = stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)
            interval = f"{values.mean() - half:.2f} … {values.mean() + half:.2f}"
        each = " | ".join(f"{value:.2f}" for value in values)
        lines.append(f"| {name} | {values.mean():.2f} | {interval} | {each} |")
    return "\n".join(lines)

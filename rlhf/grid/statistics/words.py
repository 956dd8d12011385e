"""A row of statistics as a sentence for a report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pandas import DataFrame


def figure(value: float, decimals: int) -> str:
    """A number with so many decimals and a typographic minus; "—" for NaN."""
    return "—" if math.isnan(value) else f"{value:.{decimals}f}".replace("-", "−")


def decimals_for(values: Sequence[float]) -> int:
    """Decimals that show two digits of the narrower side of an interval (value, low, high), or of the value alone."""
    value, *bounds = values
    sizes = [abs(bound - value) for bound in bounds if not math.isnan(bound)]
    size = min((size for size in sizes if size > 0), default=abs(value))
    if not size or math.isnan(size) or math.isinf(size):
        return 2
    return max(0, 1 - math.floor(math.log10(size)))


def with_interval(value: float, low: float, high: float) -> str:
    """``0.31 [0.12, 0.50]``; the value alone where there is no interval."""
    decimals = decimals_for([value, low, high])
    text = figure(value, decimals)
    return text if math.isnan(low) else f"{text} [{figure(low, decimals)}, {figure(high, decimals)}]"


def probability(p: float) -> str:
    """``= 0.013``, ``< 0.001``, with two digits below 0.1."""
    if p < 0.001:
        return "< 0.001"
    return f"= {p:.2f}" if p >= 0.095 else f"= {p:.3f}" if p < 0.0095 else f"= {p:.2g}"


def seeds(count: int) -> str:
    """``1 seed``, ``5 seeds``."""
    return f"{count} seed" if count == 1 else f"{count} seeds"


def difference(row: Any) -> str:
    """A comparison in words: ``B − A = 0.31 [0.12, 0.50], 5 seeds, p = 0.010 (Holm 0.030)``, and what to mind of it.

    Args:
        row: Of :func:`rlhf.grid.statistics.comparisons.differences`, as a Series or a named tuple.
    """
    what = f"{row.variant} − {row.baseline}"
    if not row.n:
        parts = [f"{what}: no seed has both"]
    else:
        parts = [f"{what} = {with_interval(row.difference, row.low, row.high)}", seeds(int(row.n))]
    if not math.isnan(row.p):
        holm = "" if row.family == 1 else f" (Holm {probability(row.p_holm).removeprefix('= ')})"
        parts.append(f"p {probability(row.p)}{holm}")
    notes = [row.remark] if row.remark and row.n else []
    notes += [f"left out: seed {row.left_out}"] if row.left_out else []
    return "; ".join([", ".join(parts), *notes])


def family(differences: DataFrame, *, confidence: float = 0.95) -> str:
    """What all comparisons of a family say together.

    Args:
        differences: Of :func:`rlhf.grid.statistics.comparisons.differences`, rows of one family.
        confidence: The one it was made with.
    """
    total = len(differences)
    tested = int(differences["p"].notna().sum())
    several, shown = differences["metric"].nunique() > 1, []
    row: Any
    for row in differences.itertuples():
        if row.differs:
            where = f" in {row.metric}" if several else ""
            shown.append(f"{row.variant} is {'higher' if row.difference > 0 else 'lower'} than {row.baseline}{where}")
    comparisons = "1 comparison" if total == 1 else f"{total} comparisons"
    level = f"{100 * (1 - confidence):g}%"
    head = f"{comparisons}, corrected by Holm: the risk that even one difference shown is chance is at most {level}. "
    body = f"Differences shown: {'; '.join(shown)}." if shown else "No difference is shown."
    rest = tested - len(shown)
    if rest:
        body += (
            f" The other {rest} may be there or not: these seeds cannot tell."
            if shown
            else (" That is no evidence that there is none: see what these seeds could have shown.")
        )
    if total > tested:
        body += f" Not testable: {total - tested}."
    return head + body


def needed(row: Any, *, target: float = 0.8) -> str:
    """What a row of :func:`rlhf.grid.statistics.power.power` says of the number of seeds, in words."""
    if row.n < 2:
        return f"{row.variant} − {row.baseline}: {seeds(int(row.n))} cannot show any effect; run at least 3"
    could = f"{seeds(int(row.n))} find an effect of {row.smallest_effect:.2g} deviations"
    if not math.isnan(row.smallest_difference):
        could += f" (a difference of {row.smallest_difference:.2g})"
    text = f"{row.variant} − {row.baseline}: {could} with {100 * target:g}% probability"
    if math.isnan(row.effect):
        return text
    if math.isnan(row.seeds_needed):
        return f"{text}; the observed effect, {figure(row.effect, 2)}, would need more than 1,000 seeds"
    return f"{text}; the observed effect, {figure(row.effect, 2)}, would need {seeds(int(row.seeds_needed))}"

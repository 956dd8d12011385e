"""Curves of several seeds as one, with an interval at each of its places."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlhf.errors import UserError, require
from rlhf.grid.statistics.comparisons import t_tests
from rlhf.grid.statistics.table import checked, refuse_twice

if TYPE_CHECKING:
    from pandas import DataFrame


def over_seeds(points: DataFrame, *, confidence: float = 0.95) -> DataFrame:
    """Mean over seeds at each place, with Student-t intervals.

    Pointwise: each interval holds for its place alone, and a whole curve leaves such a band more often than not. Where
    fewer seeds have a number than elsewhere, ``n`` says so, and the mean may jump for that alone.

    Args:
        points: A row per run and place: ``variant``, ``seed``, ``place`` (iterations, steps or tokens), ``value``.
        confidence: 1 − α.

    Returns:
        A row per variant and place, both rising: ``variant``, ``place``, ``n``, ``mean``, ``low``, ``high``.

    Raises:
        UserError: a column is missing or holds no numbers, or a run has two values at a place.
    """
    from pandas import DataFrame

    require(above=0.0, below=1.0, confidence=confidence)
    frame = checked(points, ["value", "place"], ["variant"])
    if frame["place"].isna().any():
        raise UserError("points: a place is not a number; leave such rows out")
    refuse_twice(frame, ["variant", "place", "seed"])
    frame = frame.sort_values(["variant", "place", "seed"], kind="stable")
    groups = [(*at, part["value"].dropna().to_numpy()) for at, part in frame.groupby(["variant", "place"], sort=False)]
    found = t_tests([values for _, _, values in groups], confidence=confidence)
    table = DataFrame([at for *at, _ in groups], columns=["variant", "place"])
    return table.join(found[["n", "mean", "low", "high"]])

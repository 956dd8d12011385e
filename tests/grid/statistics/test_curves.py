"""Curves over seeds."""

import math

import pandas as pd
import pytest

from rlhf.errors import UserError
from rlhf.grid.statistics.curves import over_seeds

POINTS = pd.DataFrame(
    [
        {"variant": variant, "seed": seed, "place": place, "value": value}
        for variant, curves in {"B": [[1, 2], [2, 4], [3, None]], "A": [[0, 5]]}.items()
        for seed, curve in enumerate(curves, start=1)
        for place, value in zip((0.0, 10.0), curve, strict=True)
    ]
)


def test_means_by_hand():
    found = over_seeds(POINTS)
    assert found[["variant", "place"]].to_numpy().tolist() == [["A", 0.0], ["A", 10.0], ["B", 0.0], ["B", 10.0]]
    assert found["n"].tolist() == [1, 1, 3, 2]
    assert found["mean"].tolist() == [0.0, 5.0, 2.0, 3.0]
    # 2 ± 4.302653 · 1 / √3 and 3 ± 12.706205 · √2 / √2
    assert found["high"].tolist()[2:] == pytest.approx([2 + 2.484138, 3 + 12.706205], abs=1e-6)
    assert found["low"].tolist()[2:] == pytest.approx([2 - 2.484138, 3 - 12.706205], abs=1e-6)
    assert math.isnan(found["low"][0])


def test_the_order_of_rows_changes_nothing():
    assert over_seeds(POINTS).to_csv() == over_seeds(POINTS.sample(frac=1.0, random_state=0)).to_csv()


def test_what_is_no_curve_is_refused():
    with pytest.raises(UserError, match=r"first variant A, place 0\.0, seed 1"):
        over_seeds(pd.concat([POINTS, POINTS]))
    with pytest.raises(UserError, match="a place is not a number"):
        over_seeds(POINTS.assign(place=math.nan))
    with pytest.raises(UserError, match="no column 'place'"):
        over_seeds(POINTS.drop(columns="place"))

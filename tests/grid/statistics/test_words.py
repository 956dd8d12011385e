"""Results as sentences."""

import math

import pytest
from tables import results

from rlhf.grid.statistics import words
from rlhf.grid.statistics.comparisons import differences
from rlhf.grid.statistics.power import power

THREE = results(A=[2.0, 4.0, 3.0], B=[1.0, 2.0, 3.0], C=[4.0, 6.5, 6.0])


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ((0.3123, 0.1234, 0.5012), "0.31 [0.12, 0.50]"),
        ((-0.3123, -0.5012, -0.1234), "−0.31 [−0.50, −0.12]"),
        ((0.0312, 0.0295, 0.0329), "0.0312 [0.0295, 0.0329]"),
        ((1234.5, 1100.2, 1368.8), "1234 [1100, 1369]"),
        ((0.5, math.nan, math.nan), "0.50"),
        ((0.0, math.nan, math.nan), "0.00"),
        ((math.nan, math.nan, math.nan), "—"),
    ],
)
def test_an_interval_has_the_digits_that_it_knows(numbers, text):
    assert words.with_interval(*numbers) == text


@pytest.mark.parametrize(
    ("p", "text"),
    [
        (0.0004, "< 0.001"),
        (0.0013, "= 0.001"),
        (0.0131, "= 0.013"),
        (0.0949, "= 0.095"),
        (0.2254, "= 0.23"),
        (1, "= 1.00"),
    ],
)
def test_probabilities(p, text):
    assert words.probability(p) == text


def test_a_difference():
    rows = list(differences(THREE, "gold", "A").itertuples())
    assert words.difference(rows[0]) == "B − A = −1.0 [−3.5, 1.5], 3 seeds, p = 0.23 (Holm 0.23)"
    assert words.difference(rows[1]) == "C − A = 2.5 [1.3, 3.7], 3 seeds, p = 0.013 (Holm 0.026)"
    alone = differences(THREE, "gold", "A", variants=["C"]).iloc[0]  # a Series will do
    assert words.difference(alone) == "C − A = 2.5 [1.3, 3.7], 3 seeds, p = 0.013"


def test_a_difference_of_which_little_is_known():
    rows = results(A=[1.0, 2.0, None], one=[2.0, None, 3.0], none=[None, None, 1.0], same=[1.0, 2.0, 3.0])
    none, one, same = (words.difference(row) for row in differences(rows, "gold", "A").itertuples())
    assert none.startswith("none − A: no seed has both; left out: seed 1 (no number of none), 2")
    assert one.startswith("one − A = 1.0, 1 seed; one seed shows no spread, so there is no interval and no test")
    assert same.startswith("same − A = 0.00, 2 seeds; all 2 seeds give exactly 0")


def test_a_family():
    assert words.family(differences(THREE, "gold", "A")) == (
        "2 comparisons, corrected by Holm: the risk that even one difference shown is chance is at most 5%. "
        "Differences shown: C is higher than A. The other 1 may be there or not: these seeds cannot tell."
    )
    one = words.family(differences(THREE, "gold", "C", variants=["A"], confidence=0.99), confidence=0.99)
    assert one.startswith(
        "1 comparison, corrected by Holm: the risk that even one difference shown is chance is at most 1%."
    )
    assert "No difference is shown. That is no evidence that there is none" in one
    several = differences(THREE.assign(x=THREE["gold"]), ["gold", "x"], "C", confidence=0.9)
    assert "A is lower than C in gold" in words.family(several)
    untested = words.family(differences(results(A=[1.0], B=[2.0]), "gold", "A"))
    assert untested.endswith("No difference is shown. Not testable: 1.")


def test_seeds_that_are_needed():
    table = power(differences(THREE, "gold", "A"))
    assert words.needed(table.iloc[1]) == (
        "C − A: 3 seeds find an effect of 3.3 deviations (a difference of 1.6) with 80% probability; the observed "
        "effect, 2.82, would need 4 seeds"
    )
    rows = results(A=[1.0, 2.0, 3.0, 4.0], one=[2.0, None, None, None], two=[2.0, 1.0, None, None], tiny=[0, 3, 4, 3.0])
    found = {row.variant: words.needed(row) for row in power(differences(rows, "gold", "A")).itertuples()}
    assert found["one"] == "one − A: 1 seed cannot show any effect; run at least 3"
    assert found["two"].endswith("with 80% probability")
    assert "more than 1,000 seeds" in found["tiny"]

"""Means and paired differences: by hand, against scipy and statsmodels, and what cannot be said."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from statsmodels.stats.multitest import multipletests
from tables import results

from rlhf.errors import UserError
from rlhf.grid.statistics import comparisons
from rlhf.grid.statistics.comparisons import differences, hedges, holm, per_variant

# B − A: −1, −2, 0 and C − A: 2, 2.5, 3
THREE = results(A=[2.0, 4.0, 3.0], B=[1.0, 2.0, 3.0], C=[4.0, 6.5, 6.0])


def noise(*shape):
    return np.random.default_rng(0).normal(size=shape)


def table_of(values):
    """Variants v0, v1, … by seeds."""
    return results(**{f"v{index}": row.tolist() for index, row in enumerate(values)})


# --------------------------------------------------------------------------------------------------------- by variant


def test_mean_and_interval_by_hand():
    # of 1, 2, 3: mean 2, deviation 1, t(0.975, 2) = 4.302653, half width 4.302653 / √3 = 2.484138
    row = per_variant(THREE, "gold", variants=["B"]).iloc[0]
    assert (row["variant"], row["n"], row["missing"], row["remark"]) == ("B", 3, "", "")
    assert (row["mean"], row["std"]) == (2.0, 1.0)
    assert (row["low"], row["high"]) == pytest.approx((2 - 2.484138, 2 + 2.484138), abs=1e-6)


def test_missing_seeds_are_told():
    row = per_variant(results(A=[1.0, None, 3.0, math.inf]), "gold").iloc[0]
    assert (row["n"], row["missing"], row["mean"]) == (2, "2, 4", 2.0)
    assert "12.7 standard errors" in row["remark"]
    assert not math.isnan(row["low"])


def test_too_few_seeds_are_told_in_words():
    found = per_variant(results(one=[4.0, None], none=[None, None], same=[0.1, 0.1]), "gold").set_index("variant")
    assert found.loc["one", "mean"] == 4.0
    assert "one seed shows no spread" in found.loc["one", "remark"]
    assert "no seed has a number" in found.loc["none", "remark"]
    assert "all 2 seeds give exactly 0.1" in found.loc["same", "remark"]
    assert (found.loc["same", "mean"], found.loc["same", "std"]) == (0.1, 0.0)
    assert found.loc["none", "n"] == 0
    assert found[["low", "high"]].isna().all(axis=None)


def test_a_wider_confidence_is_a_wider_interval():
    narrow, wide = (per_variant(THREE, "gold", confidence=c).iloc[0] for c in (0.5, 0.99))
    assert wide["low"] < narrow["low"] < narrow["high"] < wide["high"]
    with pytest.raises(UserError, match="confidence is 95"):
        per_variant(THREE, "gold", confidence=95)


# -------------------------------------------------------------------------------------------------------- differences


def test_paired_differences_by_hand():
    # B − A: mean −1, deviation 1, t = −√3; of two degrees of freedom p = 1 − |t| / √(2 + t²) = 1 − √3 / √5 = 0.2254033
    # C − A: mean 2.5, deviation ½, t = 5√3 = 8.660254, p = 1 − 8.660254 / √77 = 0.0130725
    found = differences(THREE, "gold", "A").set_index("variant")
    assert found["difference"].tolist() == [-1.0, 2.5]
    assert found["std"].tolist() == [1.0, 0.5]
    assert found["p"].tolist() == pytest.approx([0.2254033, 0.0130725], abs=1e-7)
    # half widths 4.302653 / √3 and half of that
    assert found["low"].tolist() == pytest.approx([-1 - 2.484138, 2.5 - 1.242069], abs=1e-6)
    assert found["high"].tolist() == pytest.approx([-1 + 2.484138, 2.5 + 1.242069], abs=1e-6)
    # Holm: the smaller p twice, the larger as it is
    assert found["p_holm"].tolist() == pytest.approx([0.2254033, 0.0261449], abs=1e-7)
    assert found["differs"].tolist() == [False, True]
    # Bonferroni: t(1 − 0.025 / 2, 2) = 0.975 √(2 / (1 − 0.975²)) = 6.205347, times ½ / √3 = 1.791330
    assert found.loc["C", "simultaneous_low"] == pytest.approx(2.5 - 1.791330, abs=1e-6)
    assert found.loc["C", "simultaneous_high"] == pytest.approx(2.5 + 1.791330, abs=1e-6)
    # J(2) = Γ(1) / (√1 Γ(½)) = 1 / √π
    assert found["effect"].tolist() == pytest.approx([-1 / math.sqrt(math.pi), 5 / math.sqrt(math.pi)])
    assert found["above"].tolist() == [0, 3]
    assert found["family"].tolist() == [2, 2]
    assert (found["remark"] == "").all()
    assert (found["left_out"] == "").all()


def test_as_scipy_and_statsmodels_have_it():
    values = noise(4, 7)
    found = differences(table_of(values), "gold", "v0", confidence=0.9)
    tests = [stats.ttest_rel(row, values[0]) for row in values[1:]]
    assert found["p"].tolist() == pytest.approx([test.pvalue for test in tests], rel=1e-12)
    for column, alpha in (("", 0.1), ("simultaneous_", 0.1 / 3)):
        bounds = [test.confidence_interval(1 - alpha) for test in tests]
        assert found[f"{column}low"].tolist() == pytest.approx([bound.low for bound in bounds], rel=1e-10)
        assert found[f"{column}high"].tolist() == pytest.approx([bound.high for bound in bounds], rel=1e-10)
    assert found["p_holm"].tolist() == multipletests([test.pvalue for test in tests], method="holm")[1].tolist()


def test_what_moves_both_of_a_seed_alike_cancels():
    values, shifts = noise(2, 5), 100 * noise(5)
    before, after = (differences(table_of(v), "gold", "v0").iloc[0] for v in (values, values + shifts))
    for name in ("difference", "std", "low", "high", "p"):
        assert after[name] == pytest.approx(before[name], rel=1e-10)


def test_the_other_way_round_is_the_negative():
    there, back = (differences(THREE, "gold", base, variants=["A", "C"]).iloc[0] for base in ("A", "C"))
    assert (back["difference"], back["low"], back["high"]) == (-there["difference"], -there["high"], -there["low"])
    assert (back["p"], back["effect"]) == (there["p"], -there["effect"])


def test_seeds_that_lack_a_partner_are_left_out_and_told():
    rows = results(A=[1.0, None, 3.0, 4.0, None], B=[2.0, 2.0, None, 6.0, None])
    row = differences(rows, "gold", "A").iloc[0]
    assert row["n"] == 2
    assert row["difference"] == 1.5  # of seeds 1 and 4
    assert row["left_out"] == "2 (no number of A), 3 (no number of B), 5 (no number of B and A)"


def test_too_few_seeds():
    rows = results(A=[1.0, 2.0, None], one=[2.0, None, 3.0], two=[3.0, 3.0, None], none=[None, None, 1.0])
    found = differences(rows, "gold", "A").set_index("variant")
    assert found["n"].to_dict() == {"none": 0, "one": 1, "two": 2}
    assert found.loc["one", "difference"] == 1.0
    assert "one seed shows no spread" in found.loc["one", "remark"]
    assert "says almost nothing" in found.loc["two", "remark"]
    assert math.isnan(found.loc["two", "effect"])
    assert found.loc[["one", "none"], ["low", "high", "p", "p_holm", "effect"]].isna().all(axis=None)
    assert not found.loc[["one", "none"], "differs"].any()
    # those that could not be tested count in the family
    assert found.loc["two", "p_holm"] == pytest.approx(3 * found.loc["two", "p"])


@pytest.mark.parametrize(("shift", "told"), [(0.0, "exactly 0"), (0.3, "exactly 0.3")])
def test_differences_without_spread_are_no_proof(shift, told):
    base = np.array([0.1, 0.7, 1.9, 2.3])  # 0.1 + 0.3 − 0.1 is not 0.3: a t test would take the rounding for spread
    row = differences(results(A=base.tolist(), B=(base + shift).tolist()), "gold", "A").iloc[0]
    assert row["difference"] == pytest.approx(shift)
    assert row["std"] == 0.0
    assert told in row["remark"]
    assert row[["low", "high", "p", "p_holm", "effect"]].isna().all()
    assert not row["differs"]


def test_small_true_differences_are_not_taken_for_rounding():
    row = differences(results(A=[1.0, 2.0, 3.0], B=[1.0 + 1e-9, 2.0 + 3e-9, 3.0 + 2e-9]), "gold", "A").iloc[0]
    assert row["difference"] == pytest.approx(2e-9, rel=1e-6)
    assert row["p"] < 0.1


def test_families():
    rows = THREE.assign(length=noise(len(THREE)))
    both = differences(rows, ["gold", "length"], "A")
    assert list(zip(both["metric"], both["variant"], strict=True)) == [
        ("gold", "B"),
        ("gold", "C"),
        ("length", "B"),
        ("length", "C"),
    ]
    assert set(both["family"]) == {4}
    assert both["p_holm"].tolist() == holm(both["p"].to_numpy()).tolist()
    apart = differences(rows, ["gold", "length"], "A", family="metric")
    assert set(apart["family"]) == {2}
    for name in ("gold", "length"):
        alone = differences(rows, name, "A").reset_index(drop=True)
        part = apart[apart["metric"] == name].reset_index(drop=True)
        pd.testing.assert_frame_equal(part, alone)


def test_every_pair():
    found = differences(THREE, "gold", variants=["B", "A", "C"])
    assert list(zip(found["variant"], found["baseline"], strict=True)) == [("A", "B"), ("C", "B"), ("C", "A")]
    assert found["difference"].tolist() == [1.0, 3.5, 2.5]


def test_the_order_of_rows_changes_nothing():
    rows = table_of(noise(4, 6))
    shuffled = rows.sample(frac=1.0, random_state=3)
    for make in (lambda t: differences(t, "gold", "v1"), lambda t: per_variant(t, "gold")):
        assert make(rows).to_csv(index=False) == make(shuffled).to_csv(index=False)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"baseline": "D"}, "baseline: no variant 'D'; known: A, B, C"),
        ({"baseline": "D", "variants": ["A"]}, "no variant 'D'"),
        ({"baseline": "A", "variants": ["A"]}, "name at least two"),
        ({"metrics": [], "baseline": "A"}, "metrics: none is named"),
        ({"baseline": "A", "confidence": 1.0}, "confidence is 1.0"),
    ],
)
def test_what_cannot_be_compared_is_refused(settings, message):
    with pytest.raises(UserError, match=message):
        differences(THREE, **{"metrics": "gold", **settings})


# -------------------------------------------------------------------------------------------------------------- parts


def test_hedges_is_without_bias():
    """Of ten thousand experiments of four differences with d = 0.8, the mean of g is 0.8 (± 0.01), that of d̂ 1.11."""
    samples = 0.8 + np.random.default_rng(0).normal(size=(10_000, 4))
    assert np.mean([hedges(sample) for sample in samples]) == pytest.approx(0.8, abs=0.03)
    assert np.mean(samples.mean(1) / samples.std(1, ddof=1)) > 1.05


def test_holm_keeps_what_is_not_known():
    assert holm(np.array([])).tolist() == []
    found = holm(np.array([0.01, math.nan, 0.04]))
    assert found[[0, 2]].tolist() == pytest.approx([0.03, 0.08])
    assert math.isnan(found[1])


def test_samples_of_different_lengths_are_as_each_alone():
    samples = [noise(n) for n in (3, 5, 3, 1, 0, 2)]
    together = comparisons.t_tests(samples, confidence=0.95, family=3)
    for index, sample in enumerate(samples):
        alone = comparisons.t_tests([sample], confidence=0.95, family=3)
        pd.testing.assert_frame_equal(together.iloc[[index]].reset_index(drop=True), alone, check_exact=True)

"""Main effects and interactions: by hand, against statsmodels' formulas, and what is no factorial."""

import math

import numpy as np
import pandas as pd
import pytest
import statsmodels.formula.api as formulas
from statsmodels.stats.anova import anova_lm
from tables import crossed

from rlhf.errors import UserError
from rlhf.grid.statistics.comparisons import differences
from rlhf.grid.statistics.factorial import effects, weights

LEVELS = {"a": ["0", "1"], "b": ["0", "1"]}
# [seed][a][b]; effects of a: (2 + 6) / 2 = 4, (4 + 2) / 2 = 3, (1 + 3) / 2 = 2; of b: (1 + 5) / 2 = 3, (1 − 1) / 2 = 0,
# (2 + 4) / 2 = 3; of both: 6 − 2 = 4, 2 − 4 = −2, 3 − 1 = 2
BY_HAND = crossed([[[0, 1], [2, 7]], [[1, 2], [5, 4]], [[0, 2], [1, 5]]], **LEVELS)


def simulated(seeds, *counts, rng=0):
    """Runs of as many axes as counts, with seeds that shift all cells of theirs."""
    generator = np.random.default_rng(rng)
    values = generator.normal(size=(seeds, *counts)) + 3 * generator.normal(size=(seeds, *[1] * len(counts)))
    rows = [
        {
            "variant": str(at),
            "seed": seed + 1,
            "gold": values[(seed, *at)],
            **{f"axis.{i}": f"c{c}" for i, c in enumerate(at)},
        }
        for seed in range(seeds)
        for at in np.ndindex(*counts)
    ]
    return pd.DataFrame(rows)


def test_effects_by_hand():
    found = effects(BY_HAND, "gold", ["a", "b"])
    table = found.effects.set_index("term")
    assert table["contrast"].to_dict() == {"a": "1 − 0", "b": "1 − 0", "a × b": "(1 − 0) × (1 − 0)"}
    assert table["estimate"].tolist() == pytest.approx([3, 2, 4 / 3])
    assert table["n"].tolist() == [3, 3, 3]
    # t = mean / (deviation / √3) with deviations 1, √3, √(28 / 3): 3√3, 2, 0.755929; p = 1 − t / √(2 + t²)
    assert table["p"].tolist() == pytest.approx([0.0350987, 0.1835034, 0.5285955], abs=1e-7)
    # a: 3 ± 4.302653 · 1 / √3
    assert (table.loc["a", "low"], table.loc["a", "high"]) == pytest.approx((3 - 2.484138, 3 + 2.484138), abs=1e-6)
    # Holm over the three: 3 p, then 2 p, then p
    assert table["p_holm"].tolist() == pytest.approx([0.1052961, 0.3670068, 0.5285955], abs=1e-6)
    assert found.remarks == []


def test_of_two_choices_the_test_of_the_term_is_the_square_of_t():
    terms = effects(BY_HAND, "gold", ["a", "b"]).terms.set_index("term")
    assert terms["F"].to_dict() == pytest.approx({"a": 27, "b": 4, "a × b": 4 / 7})
    assert terms["p"].tolist() == pytest.approx([0.0350987, 0.1835034, 0.5285955], abs=1e-7)
    assert terms["df"].tolist() == [1, 1, 1]
    assert terms["df_error"].tolist() == [2, 2, 2]


def test_one_axis_is_the_paired_difference():
    rows = simulated(5, 2)
    row = effects(rows.rename(columns={"axis.0": "x"}), "gold", ["x"]).effects.iloc[0]
    pair = differences(rows, "gold", "(0,)").iloc[0]
    for one, other in (("estimate", "difference"), ("low", "low"), ("high", "high"), ("p", "p")):
        assert row[one] == pytest.approx(pair[other], rel=1e-12)


def test_weights_by_hand():
    # cells 00, 01, 02, 10, 11, 12 of two choices by three
    levels = {"a": ["x", "y"], "b": ["p", "q", "r"]}
    third = 1 / 3
    assert weights(levels, ["a"]).tolist() == [pytest.approx([-third] * 3 + [third] * 3)]
    assert weights(levels, ["b"]).tolist() == [[-0.5, 0.5, 0, -0.5, 0.5, 0], [-0.5, 0, 0.5, -0.5, 0, 0.5]]
    assert weights(levels, ["a", "b"]).tolist() == [[1, -1, 0, -1, 1, 0], [1, 0, -1, -1, 0, 1]]


@pytest.mark.parametrize("missing", [[], [4], [0, 11, 29]])
def test_blocks_are_the_analysis_of_variance(missing):
    """Against statsmodels' formula with sum coding, type III, on whole and on incomplete tables."""
    rows = simulated(5, 2, 3)
    rows.loc[missing, "gold"] = math.nan
    found = effects(rows, "gold", ["axis.0", "axis.1"], method="blocks")
    plain = rows.rename(columns={"axis.0": "a", "axis.1": "b"}).dropna()
    fit = formulas.ols("gold ~ C(seed, Sum) + C(a, Sum) * C(b, Sum)", plain).fit()
    expected = anova_lm(fit, typ=3)
    for term, name in (("axis.0", "C(a, Sum)"), ("axis.1", "C(b, Sum)"), ("axis.0 × axis.1", "C(a, Sum):C(b, Sum)")):
        row = found.terms.set_index("term").loc[term]
        assert (row["F"], row["p"]) == pytest.approx((expected.loc[name, "F"], expected.loc[name, "PR(>F)"]), rel=1e-9)
        assert (row["df"], row["df_error"]) == (expected.loc[name, "df"], fit.df_resid)
    # under sum coding the effect of two choices is −2 times the first one's coefficient
    first = found.effects.iloc[0]
    assert first["estimate"] == pytest.approx(-2 * fit.params["C(a, Sum)[S.c0]"])
    low, high = -2 * fit.conf_int().loc["C(a, Sum)[S.c0]"]
    assert (first["low"], first["high"]) == pytest.approx((high, low))
    assert any("no number" in remark for remark in found.remarks) == bool(missing)


def test_both_methods_estimate_the_same_of_a_whole_table():
    rows = simulated(4, 2, 2, 3)
    names = ["axis.0", "axis.1", "axis.2"]
    one, other = (effects(rows, "gold", names, method=method, order=3) for method in ("repeated", "blocks"))
    assert one.effects["estimate"].tolist() == pytest.approx(other.effects["estimate"].tolist())
    assert list(one.terms["term"]) == list(other.terms["term"])
    assert len(one.terms) == 7
    assert list(one.effects["term"]).count("axis.0 × axis.1 × axis.2") == 2
    assert len(effects(rows, "gold", names).effects) == 1 + 1 + 2 + 1 + 2 + 2
    assert set(other.terms["df_error"]) == {3 * 11}


def test_a_term_of_several_degrees_says_what_it_assumes():
    terms = effects(simulated(4, 2, 3), "gold", ["axis.0", "axis.1"]).terms.set_index("term")
    assert terms.loc["axis.0", "remark"] == ""
    assert "assumes that differences of any two choices vary alike" in terms.loc["axis.1", "remark"]


def test_the_first_choice_is_what_others_are_compared_with():
    there = effects(BY_HAND, "gold", ["a", "b"]).effects
    back = effects(BY_HAND, "gold", {"a": ["1", "0"], "b": ["0", "1"]}).effects
    assert back["contrast"].tolist()[0] == "0 − 1"
    assert back["estimate"].tolist() == pytest.approx([-3, 2, -4 / 3])
    assert back["p"].tolist() == pytest.approx(there["p"].tolist())


def test_choices_that_are_not_named_are_left_out_and_told():
    rows = simulated(3, 2, 3)
    found = effects(rows, "gold", {"axis.0": ["c0", "c1"], "axis.1": ["c2", "c0"]})
    assert found.remarks == ["6 of 18 runs have other choices and are left out"]
    kept = effects(rows[rows["axis.1"] != "c1"], "gold", ["axis.0", "axis.1"])
    assert found.terms["F"].tolist() == pytest.approx(kept.terms["F"].tolist())


def test_a_seed_that_lacks_a_cell_is_left_out_and_told():
    rows = simulated(4, 2, 2)
    gap = rows.copy()
    gap.loc[(gap["seed"] == 3) & (gap["axis.0"] == "c1") & (gap["axis.1"] == "c0"), "gold"] = math.nan
    found = effects(gap, "gold", ["axis.0", "axis.1"])
    assert "seeds 3; method 'blocks' would use them" in found.remarks[0]
    without = effects(rows[rows["seed"] != 3], "gold", ["axis.0", "axis.1"])
    pd.testing.assert_frame_equal(found.effects, without.effects)


@pytest.mark.parametrize("method", ["repeated", "blocks"])
def test_no_spread_is_no_proof(method):
    # the seed shifts all cells alike, by amounts that round
    values = [[[0.1 + s, 0.4 + s], [0.2 + s, 0.5 + s]] for s in (0.0, 0.7, 1.9)]
    found = effects(crossed(values, **LEVELS), "gold", ["a", "b"], method=method)
    assert found.effects["estimate"].tolist() == pytest.approx([0.1, 0.3, 0.0])
    assert found.effects[["low", "high", "p", "p_holm"]].isna().all(axis=None)
    assert found.terms[["F", "p", "p_holm"]].isna().all(axis=None)
    assert found.effects["remark"].str.contains("no spread").all()
    assert found.terms["remark"].str.contains("no spread").all()


@pytest.mark.parametrize("method", ["repeated", "blocks"])
def test_the_order_of_rows_changes_nothing(method):
    rows = simulated(4, 2, 3)
    one, other = (
        effects(table, "gold", ["axis.0", "axis.1"], method=method)
        for table in (rows, rows.sample(frac=1.0, random_state=5))
    )
    assert one.effects.to_csv() == other.effects.to_csv()
    assert one.terms.to_csv() == other.terms.to_csv()


def test_an_empty_cell_is_refused():
    rows = BY_HAND[~((BY_HAND["a"] == "1") & (BY_HAND["b"] == "0"))]
    with pytest.raises(UserError, match="no run has a number at a=1 & b=0; effects need every combination"):
        effects(rows, "gold", ["a", "b"], method="blocks")


@pytest.mark.parametrize(
    ("rows", "factors", "settings", "message"),
    [
        (BY_HAND[BY_HAND["a"] == "0"], ["a", "b"], {}, "a has one choice, 0"),
        (BY_HAND, ["a"], {}, "12 runs share choices and seed with another, first a 0, seed 1; name every axis"),
        (BY_HAND, ["a", "c"], {}, "no column 'c'"),
        (BY_HAND[BY_HAND["seed"] == 1], ["a", "b"], {}, "1 seeds have a number in every cell"),
        (BY_HAND[BY_HAND["seed"] == 1], ["a", "b"], {"method": "blocks"}, "run more seeds"),
        (BY_HAND, ["a", "b"], {"order": 0}, "order is 0"),
    ],
)
def test_what_is_no_factorial_is_refused(rows, factors, settings, message):
    with pytest.raises(UserError, match=message):
        effects(rows, "gold", factors, **settings)

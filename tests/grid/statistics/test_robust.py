"""IQM, performance profiles, probability of improvement: by hand, strata, and what cannot be said."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from tables import results

from rlhf.errors import UserError
from rlhf.grid.statistics.robust import interquartile_means, performance_profiles, probabilities_of_improvement


def noise(*shape):
    return np.random.default_rng(0).normal(size=shape)


def tasks(**by_task):
    """Runs of several tasks: values by variant in each."""
    return pd.concat([results(**variants).assign(task=name) for name, variants in by_task.items()], ignore_index=True)


# ---------------------------------------------------------------------------------------------------------------- IQM


def test_iqm_by_hand():
    # of eight, the two lowest and the two highest are left out: (3 + 4 + 5 + 6) / 4
    row = interquartile_means(results(A=[8, 100, 3, 4, 5, 6, -50, 2]), "gold").iloc[0]
    assert (row["variant"], row["n"], row["iqm"]) == ("A", 8, 4.5)
    assert row["low"] < 4.5 < row["high"]
    assert "fewer than 10 runs" in row["remark"]


def test_iqm_is_of_all_runs_of_all_tasks():
    # 1, 2, 3, 4, 5, 6, 7, 8 over two tasks
    row = interquartile_means(tasks(x={"A": [1, 8, 3, 5]}, y={"A": [2, 4, 6, 7]}), "gold", task="task").iloc[0]
    assert (row["n"], row["iqm"]) == (8, 4.5)


def test_iqm_of_three_is_their_mean():
    row = interquartile_means(results(A=[1.0, 2.0, 6.0]), "gold").iloc[0]
    assert row["iqm"] == 3.0
    assert "nothing is trimmed" in row["remark"]


def test_runs_are_resampled_within_their_task():
    """Of tasks that do not vary within, resampling gives the same again, though the tasks differ."""
    rows = tasks(x={"A": [0.0] * 4}, y={"A": [10.0] * 4})
    row = interquartile_means(rows, "gold", task="task", method="percentile").iloc[0]
    assert (row["iqm"], row["low"], row["high"]) == (5.0, 5.0, 5.0)
    apart = interquartile_means(results(A=[0.0] * 4 + [10.0] * 4), "gold", method="percentile").iloc[0]
    assert apart["high"] - apart["low"] > 5


def test_bca_of_a_large_sample_is_near_the_normal_interval():
    values = noise(400)
    row = interquartile_means(results(A=values.tolist()), "gold", resamples=2000).iloc[0]
    # the IQM of normal values has about 1.08 times the standard error of the mean
    half = 1.96 * 1.08 / math.sqrt(400)
    assert (row["high"] - row["low"]) / 2 == pytest.approx(half, rel=0.15)
    assert row["remark"] == ""


@pytest.mark.parametrize(
    ("values", "told"),
    [([1.0], "one run in a task"), ([2.0] * 5, "all runs give the same"), ([None, None], "no run has a number")],
)
def test_no_interval_is_told(values, told):
    row = interquartile_means(results(A=values), "gold").iloc[0]
    assert math.isnan(row["low"]) and math.isnan(row["high"])
    assert told in row["remark"]


def test_a_task_without_a_run_is_told():
    row = interquartile_means(tasks(x={"A": [1.0, 2.0]}, y={"A": [None, None]}), "gold", task="task").iloc[0]
    assert math.isnan(row["iqm"])
    assert "no run has a number in y" in row["remark"]


# ----------------------------------------------------------------------------------------------------------- profiles


def test_profile_by_hand():
    found = performance_profiles(results(A=[1, 2, 3, 4]), "gold", thresholds=[0, 1, 2.5, 4])
    assert found["threshold"].tolist() == [0, 1, 2.5, 4]
    assert found["share"].tolist() == [1.0, 0.75, 0.5, 0.0]  # above it, not at it
    assert ((found["low"] <= found["share"]) & (found["share"] <= found["high"])).all()
    assert found["low"].tolist()[2] < 0.5 < found["high"].tolist()[2]
    lower = performance_profiles(results(A=[1, 2, 3, 4]), "gold", thresholds=[0, 1, 2.5, 4], higher_is_better=False)
    assert lower["share"].tolist() == [0.0, 0.0, 0.5, 0.75]


def test_a_profile_is_the_mean_over_tasks():
    rows = tasks(x={"A": [1, 1, 1, 5]}, y={"A": [5, 5]})  # ¼ and 1
    assert performance_profiles(rows, "gold", task="task", thresholds=[3])["share"].tolist() == [0.625]


def test_a_profile_falls_from_one_to_zero():
    found = performance_profiles(results(A=noise(6).tolist(), B=noise(12)[6:].tolist()), "gold")
    assert len(found) == 2 * 101
    for _, part in found.groupby("variant"):
        assert (np.diff(part["share"]) <= 0).all()
        assert part["share"].iloc[-1] == 0.0
    assert found["share"].max() >= 5 / 6


def test_a_profile_of_what_has_no_number():
    found = performance_profiles(results(A=[None, None], B=[1.0, 2.0]), "gold", thresholds=[1.5])
    assert found.set_index("variant")["share"].isna().to_dict() == {"A": True, "B": False}
    assert len(performance_profiles(results(A=[None]), "gold")) == 101


# ------------------------------------------------------------------------------------------------------- improvement


def test_probability_by_hand():
    # 1 > 2 no, 1 > 3 no, 3 > 2 yes, 3 = 3 half: 1.5 of 4
    row = probabilities_of_improvement(results(A=[2, 3], B=[1, 3]), "gold", "A").iloc[0]
    assert (row["variant"], row["baseline"], row["probability"]) == ("B", "A", 0.375)
    lower = probabilities_of_improvement(results(A=[2, 3], B=[1, 3]), "gold", "A", higher_is_better=False).iloc[0]
    assert lower["probability"] == 0.625


def test_probability_is_the_statistic_of_mann_and_whitney():
    a, b = noise(7), noise(20)[11:] + 0.5
    row = probabilities_of_improvement(results(A=a.tolist(), B=b.tolist()), "gold", "A").iloc[0]
    assert row["probability"] == pytest.approx(stats.mannwhitneyu(b, a).statistic / (7 * 9))
    assert row["low"] < row["probability"] < row["high"]
    assert (row["n"], row["n_baseline"]) == (9, 7)


def test_probability_is_the_mean_over_tasks():
    rows = tasks(x={"A": [1, 2], "B": [3, 4]}, y={"A": [3, 4], "B": [1, 2]}, z={"A": [0, 0], "B": [0, 0]})
    row = probabilities_of_improvement(rows, "gold", "A", task="task").iloc[0]
    assert (row["probability"], row["low"], row["high"]) == (0.5, 0.5, 0.5)  # 1, 0 and ½, whatever is drawn


def test_what_resampling_cannot_see_is_told():
    row = probabilities_of_improvement(results(A=[1, 2, 3], B=[4, 5, 6]), "gold", "A").iloc[0]
    assert (row["probability"], row["low"], row["high"]) == (1.0, 1.0, 1.0)
    assert "resampling shows no spread" in row["remark"]
    one = probabilities_of_improvement(results(A=[1], B=[4], C=[None]), "gold", "A").set_index("variant")
    assert "one run in a task" in one.loc["B", "remark"]
    assert math.isnan(one.loc["B", "low"]) and one.loc["B", "probability"] == 1.0
    assert "no number" in one.loc["C", "remark"] and math.isnan(one.loc["C", "probability"])


def test_an_unknown_baseline_is_refused():
    with pytest.raises(UserError, match="no variant 'Z'"):
        probabilities_of_improvement(results(A=[1]), "gold", "Z")


# ---------------------------------------------------------------------------------------------------------------- all

ALL = {
    "iqm": lambda rows, variants=None: interquartile_means(rows, "gold", variants=variants),
    "profiles": lambda rows, variants=None: performance_profiles(rows, "gold", variants=variants, thresholds=[0, 1]),
    "improvement": lambda rows, variants=None: probabilities_of_improvement(rows, "gold", "A", variants=variants),
}


@pytest.mark.parametrize("make", ALL.values(), ids=ALL)
def test_the_same_table_gives_the_same_bytes(make):
    values = noise(3, 6)
    rows = results(**{name: row.tolist() for name, row in zip("ABC", values, strict=True)})
    assert make(rows).to_csv() == make(rows.sample(frac=1.0, random_state=1)).to_csv()
    # and what else is in the table changes nothing
    part = make(rows, ["A", "B"])
    whole = make(rows)
    pd.testing.assert_frame_equal(whole[whole["variant"].isin(part["variant"])].reset_index(drop=True), part)

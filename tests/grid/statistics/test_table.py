"""The table of results: what is refused, and in which order it is read."""

import math

import numpy as np
import pandas as pd
import pytest
from tables import results

from rlhf.errors import UserError
from rlhf.grid.statistics import table


def test_variants_by_seeds():
    rows = results(b=[1.0, 2.0], a=[3.0, None]).assign(length=[5.0, 6.0, 7.0, 8.0])
    found = table.by_seed(rows, ["gold", "length"])
    assert (found.variants, found.seeds) == (["a", "b"], [1, 2])
    np.testing.assert_array_equal(found.values, [[[3.0, 1.0], [math.nan, 2.0]], [[7.0, 5.0], [8.0, 6.0]]])
    only = table.by_seed(rows, ["gold"], ["b"])
    assert (only.variants, only.values.tolist()) == (["b"], [[[1.0], [2.0]]])


def test_a_run_that_is_not_there_is_a_gap():
    rows = results(a=[1.0, 2.0, 3.0], b=[4.0, 5.0, 6.0]).drop(index=[1, 5])
    np.testing.assert_array_equal(table.by_seed(rows, ["gold"]).values, [[[1, 4], [math.nan, 5], [3, math.nan]]])


def test_infinite_is_no_number():
    np.testing.assert_array_equal(table.by_seed(results(a=[1.0, math.inf]), ["gold"]).values, [[[1.0], [math.nan]]])


def test_the_table_is_not_written_to():
    rows = results(a=[1, 2], b=[3, math.inf])
    before = rows.copy()
    table.by_seed(rows, ["gold"])
    pd.testing.assert_frame_equal(rows, before)


def test_by_task():
    rows = pd.concat([results(a=[1.0, 2.0]).assign(task="x"), results(a=[None, 5.0]).assign(task="y")])
    found = table.by_task(rows.iloc[::-1], "gold", "task")
    assert {name: values.tolist() for name, values in found["a"].items()} == {"x": [1.0, 2.0], "y": [5.0]}
    assert table.by_task(results(a=[1.0, 2.0]), "gold", None)["a"][""].tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("rows", "settings", "message"),
    [
        (results(a=[1.0]), {"metrics": ["golt"]}, "no column 'golt'; did you mean 'gold'"),
        (results(a=[1.0]).drop(columns="seed"), {}, "no column 'seed'"),
        (results(a=[1.0]).iloc[:0], {}, "no rows"),
        (results(a=["good"]), {}, "must be numbers"),
        (results(a=[1.0]).assign(seed="one"), {}, "must be numbers"),
        (results(first=[1.0]), {"variants": ["frist"]}, "no variant 'frist'; did you mean 'first'"),
        (results(a=[1.0]), {"variants": ["a", "a"]}, "twice"),
        (pd.concat([results(a=[1.0])] * 2), {}, "2 rows are no runs of their own, first variant a, seed 1"),
    ],
)
def test_what_is_no_table_is_refused(rows, settings, message):
    with pytest.raises(UserError, match=message):
        table.by_seed(rows, **{"metrics": ["gold"], **settings})


def test_two_runs_of_one_seed_in_a_task_are_refused():
    rows = pd.concat([results(a=[1.0]).assign(task="x")] * 2)
    with pytest.raises(UserError, match="first variant a, task x, seed 1"):
        table.by_task(rows, "gold", "task")


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(table.importlib.util, "find_spec", lambda name: None if name == "statsmodels" else object())
    with pytest.raises(UserError, match=r"statsmodels is missing; pip install 'rlhf\[grid\]'"):
        table.by_seed(results(a=[1.0]), ["gold"])

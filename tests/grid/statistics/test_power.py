"""How many seeds: against published numbers and statsmodels, by its inverse, and what is not known."""

import math

import numpy as np
import pytest
from statsmodels.stats.power import TTestPower
from tables import results

from rlhf.errors import UserError
from rlhf.grid.statistics.comparisons import differences
from rlhf.grid.statistics.power import power, seeds_needed, smallest_effect, t_power

COUNTS = np.arange(2, 60)


@pytest.mark.parametrize("alpha", [0.05, 0.001])
@pytest.mark.parametrize("effect", [0.0, 0.2, -0.8, 1.5, 4.0])
def test_power_is_statsmodels(effect, alpha):
    expected = TTestPower().power(abs(effect), COUNTS, alpha)
    answered = ~np.isnan(expected)  # it loses the tails
    assert answered.sum() > 20
    np.testing.assert_allclose(t_power(effect, COUNTS, alpha=alpha)[answered], expected[answered], rtol=1e-9)


def test_power_has_no_holes():
    for effect in (0.5, 3.0, 50.0, 1e4):
        found = t_power(effect, np.arange(2, 1001), alpha=0.0005)
        assert not np.isnan(found).any()
        assert (np.diff(found) >= -1e-12).all()


def test_power_without_an_effect_is_the_level():
    np.testing.assert_allclose(t_power(0.0, COUNTS, alpha=0.05), 0.05)


def test_power_of_simulated_experiments():
    """Ten thousand experiments of five differences with d = 1.5; the share that finds it, ± three standard errors."""
    samples = 1.5 + np.random.default_rng(0).normal(size=(10_000, 5))
    t = samples.mean(1) / samples.std(1, ddof=1) * math.sqrt(5)
    found = float((np.abs(t) > 2.776445).mean())  # t(0.975, 4)
    assert t_power(1.5, np.array([5]), alpha=0.05)[0] == pytest.approx(found, abs=0.014)


@pytest.mark.parametrize(("effect", "needed"), [(0.2, 199), (0.5, 34), (0.8, 15), (1.0, 10)])
def test_the_number_that_tables_have(effect, needed):
    """Paired t test, two-sided, 5%, 80%: what G*Power and R's pwr.t.test answer, rounded up."""
    assert seeds_needed(effect) == seeds_needed(-effect) == needed


def test_the_number_needed_at_its_ends():
    assert seeds_needed(1e6) == 2
    assert math.isnan(seeds_needed(0.01))
    assert math.isnan(seeds_needed(math.nan))


@pytest.mark.parametrize("n", [2, 3, 5, 30])
@pytest.mark.parametrize("alpha", [0.05, 0.0005])
def test_the_smallest_effect_is_found_with_the_targets_probability(n, alpha):
    effect = smallest_effect(n, alpha=alpha)
    assert t_power(effect, np.array([n]), alpha=alpha)[0] == pytest.approx(0.8, abs=1e-8)
    assert seeds_needed(effect * (1 + 1e-6), alpha=alpha) == n
    assert math.isnan(smallest_effect(1))


def test_of_a_table():
    rows = results(A=[2.0, 4.0, 3.0], B=[1.0, 2.0, 3.0], C=[4.0, 6.5, 6.0])
    found = power(differences(rows, "gold", "A")).set_index("variant")
    assert found["n"].tolist() == [3, 3]
    # 3.2640 deviations, as TTestPower().solve_power(nobs=3, alpha=0.05, power=0.8) has it; deviations 1 and ½
    assert found["smallest_effect"].tolist() == pytest.approx([3.26404, 3.26404], abs=1e-4)
    assert found["smallest_difference"].tolist() == pytest.approx([3.26404, 1.63202], abs=1e-4)
    assert (found["smallest_difference_corrected"] > found["smallest_difference"]).all()
    assert found["seeds_needed"].tolist() == [seeds_needed(-1 / math.sqrt(math.pi)), 4]
    assert (found["seeds_needed_corrected"] >= found["seeds_needed"]).all()
    assert found.loc["C", "power"] == pytest.approx(t_power(5 / math.sqrt(math.pi), np.array([3]), alpha=0.05)[0])
    assert found["remark"].str.contains("3 seeds know the size of an effect badly").all()


def test_what_is_not_known_is_told():
    rows = results(
        A=[1.0, 2.0, 3.0], none=[None] * 3, one=[1.5, None, None], two=[1.5, 3.0, None], same=[2.0, 3.0, 4.0]
    )
    found = power(differences(rows, "gold", "A")).set_index("variant")
    for variant in ("none", "one"):
        assert "fewer than two seeds" in found.loc[variant, "remark"]
        assert math.isnan(found.loc[variant, "smallest_effect"])
        assert math.isnan(found.loc[variant, "power"])
    for variant in ("two", "same"):
        assert "not known" in found.loc[variant, "remark"]
        assert math.isnan(found.loc[variant, "seeds_needed"])
    assert found.loc["two", "smallest_effect"] == pytest.approx(11.5499, abs=1e-3)
    assert math.isnan(found.loc["same", "smallest_difference"])


def test_a_small_effect_would_need_too_many():
    rows = results(A=[0.0] * 4, B=[-1.0, 1.0, 1.0, -1.0001])
    assert "more than 1,000 seeds" in power(differences(rows, "gold", "A")).iloc[0]["remark"]


def test_what_is_out_of_range_is_refused():
    with pytest.raises(UserError, match="target is 80"):
        power(differences(results(A=[1, 2, 3], B=[2, 4, 1]), "gold", "A"), target=80)

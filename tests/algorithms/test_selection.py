"""How good an evaluation is, by the figure that a selection names."""

import math

import pytest

from rlhf import Averaged, Best, Last
from rlhf.errors import UserError

FIGURES = {"step": 4, "iteration": 2, "eval/score": 1.5, "eval/kl": 3.0, "eval/ema/score": 2.0}


def test_which_evaluate_and_which_take_the_average():
    assert (Last.evaluates, Averaged.evaluates, Best.evaluates) == (False, False, True)
    assert (Last.averaged, Averaged.averaged, Best.averaged) == (False, True, False)


def test_more_is_better_and_less_where_that_is_asked_for():
    assert Best().worth(FIGURES) == (1.5, False, "eval/score 1.5")
    assert Best(metric="kl", higher_is_better=False).worth(FIGURES) == (-3.0, False, "eval/kl 3")


def test_the_averages_figure_takes_the_averages_weights():
    assert Best(metric="ema/score").worth(FIGURES) == (2.0, True, "eval/ema/score 2")


def test_at_the_start_there_is_no_average_yet():
    found = Best(metric="ema/score").worth({"eval/score": 1.0})
    assert math.isnan(found.value) and found.averaged


@pytest.mark.parametrize("name", ["scores", "ema/scores"])
def test_a_figure_that_is_not_there_is_told(name):
    with pytest.raises(UserError, match=rf"select\.metric: .* no figure '{name}'; did you mean .*Known: ema/score, kl"):
        Best(metric=name).worth(FIGURES)

"""How figures went."""

import pytest
from run_folders import curve, stage

from rlhf.report.runs import StageRecord
from rlhf.report.trends import number, peak, trend


def test_trends_by_hand(tmp_path):
    made = StageRecord("ppo", stage(tmp_path, curve("x", *range(1, 21))), {})  # a tenth of twenty is two
    assert trend(made, "x") == (1.5, 19.5) and trend(made, "y") is None
    assert peak(made, "x") == (20, "iteration 20") and peak(made, "y") is None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (3.0, "3"),
        (-1.25, "−1.25"),
        (1234567.0, "1.23e+06"),
        (1e-5, "1.00e−05"),
        (None, "—"),
        (12.345, "12.3"),
    ],
)
def test_numbers(value, text):
    assert number(value) == text

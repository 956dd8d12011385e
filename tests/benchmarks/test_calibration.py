"""The calibration of the grid's statistics: its arithmetic, and the whole of it on few experiments."""

from pathlib import Path

import numpy as np
import pytest
from tiny_world import load_script

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "calibration.py"


@pytest.fixture(scope="module")
def script():
    return load_script(SCRIPT)


def test_noise_has_mean_0_and_deviation_1(script):
    for noise in (script.normal, script.skewed):
        values = noise(np.random.default_rng(0), (100_000,))
        assert values.mean() == pytest.approx(0, abs=0.02)
        assert values.std() == pytest.approx(1, abs=0.02)
    # of Student's t with three degrees of freedom half lies within ± 0.7649
    values = script.heavy(np.random.default_rng(0), (100_000,))
    assert np.median(np.abs(values)) == pytest.approx(0.7649 / 3**0.5, abs=0.01)


def test_the_middle_of_a_skewed_noise(script):
    # mean of 1 − x over the middle half of an exponential: ∫ x e^−x from ln 4/3 to ln 4 is
    # ¾ (ln 4/3 + 1) − ¼ (ln 4 + 1) = 0.369188, twice that 0.738376
    assert script.middle_mean(script.skewed) == pytest.approx(1 - 0.738376, abs=0.005)
    assert script.middle_mean(script.normal) == 0.0


def test_coverage_counts_what_could_not_be_had_as_missed(script):
    assert script.covered([0.0, 0.0, np.nan, 2.0], [1.0, 0.2, np.nan, 3.0], 0.5) == 0.25


def test_seeds_move_all_runs_of_theirs(script):
    rows = script.experiments([script.normal] * 2, 200, [0.0, 5.0], 3)
    one, other = (rows[rows["variant"] == variant]["m0"].to_numpy() for variant in ("v0", "v1"))
    assert (other - one).mean() == pytest.approx(5.0, abs=0.4)
    assert np.corrcoef(one, other)[0, 1] == pytest.approx(4 / 5, abs=0.1)  # 2² of 2² + 1²


def test_whole(script, capsys):
    script.main(["--seeds", "3", "4", "--experiments", "5", "--resamples", "9"])
    text = capsys.readouterr().out
    assert text.count("| | 3 seeds | 4 seeds |") == 5
    assert "| Holm, normal | " in text
    assert "| IQM, BCa, skewed | " in text
    assert "nan" not in text

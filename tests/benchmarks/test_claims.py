"""The script behind the findings on mixture and EMA: its arithmetic by hand, and once end to end."""

import math

import pytest
from tiny_world import ROOT, load_script, run_script

SCRIPT = ROOT / "benchmarks" / "claims.py"


@pytest.fixture(scope="module")
def script():
    return load_script(SCRIPT)


def curve(scores, perplexities, gold=(0.0, 0.0, 0.0), ema=(0.0, 0.0, 0.0)):
    return [
        {
            "eval/score": score,
            "eval/text_perplexity": perplexity,
            "eval/gold_score": own,
            "eval/gold_score_std": 0.5,
            "eval/ema/gold_score": average,
            "eval/kl": 2.0 * score,
            "eval/ema/kl": score,
        }
        for score, perplexity, own, average in zip(scores, perplexities, gold, ema, strict=True)
    ]


def test_a_level_is_reached_between_evaluations(script):
    rising = curve([0.0, 1.0, 3.0], [10.0, 20.0, 40.0])
    assert script.crossing(rising, "eval/score", 2.0) == 1.5  # halfway from 1 to 3
    assert script.at(rising, "eval/text_perplexity", 1.5) == 30.0
    assert script.crossing(rising, "eval/score", 9.0) == 2.0  # never: the last
    assert script.at(rising, "eval/text_perplexity", 2.0) == 40.0


def test_movement_is_of_the_second_half(script):
    values = [9.0, -9.0, 1.0, 4.0, 0.0]  # from the third on: +3, −4
    assert script.movement([{"x": value} for value in values], "x") == pytest.approx(math.sqrt((9 + 16) / 2))


def test_figures_by_hand(script):
    with_mixture = curve(
        [0.0, 0.5, 0.8, 1.0, 2.0], [10.0] * 5, gold=(0.0, 0.0, 0.0, 1.0, 2.0), ema=(0.0, 0.0, 0.0, 0.5, 2.5)
    )
    without = curve([0.0, 2.0, 4.0], [10.0, 20.0, 40.0], gold=(0.0, 0.0, 1.0))
    found = script.compare(with_mixture, without)
    assert found["mixture: log-perplexity, with − without, at the end"] == pytest.approx(math.log(10 / 40))
    # the lower final score is 2: reached at the end with it, and at the second evaluation without
    assert found["mixture: log-perplexity, with − without, at equal score"] == pytest.approx(math.log(10 / 20))
    assert found["mixture: gold, with − without (deviations)"] == 2.0
    assert found["mixture: KL, with − without (nats)"] == -4.0
    assert found["EMA: gold, average − last policy (deviations)"] == 1.0
    assert found["EMA: KL, average − last policy (nats)"] == -2.0
    assert found["EMA: movement, average − policy (deviations)"] == pytest.approx((2.0 - 1.0) / 0.5)


@pytest.mark.slow
def test_the_script_runs(tmp_path):
    printed = run_script(SCRIPT, "--seeds", "1", "2", "--output_dir", str(tmp_path), "--every", "1")
    assert "| EMA: gold, average − last policy (deviations) | " in printed

"""The script behind the figure of proxy and gold: its arithmetic by hand, and once end to end."""

import pytest
from tiny_world import ROOT, load_script, run_script

SCRIPT = ROOT / "benchmarks" / "overoptimisation.py"


@pytest.fixture(scope="module")
def script():
    return load_script(SCRIPT)


def evaluation(kl, score, gold):
    return {
        "eval/kl": kl,
        "eval/score": score,
        "eval/score_std": 2.0,
        "eval/gold_score": gold,
        "eval/gold_score_std": 0.5,
    }


def test_gains_are_in_deviations_of_the_start_and_the_onset_is_the_top_of_gold(script):
    curve = script.points([evaluation(-1e-9, 1.0, 1.0), evaluation(4.0, 3.0, 2.0), evaluation(9.0, 5.0, 0.5)])
    assert [tuple(point) for point in curve] == [(0.0, 0.0, 0.0), (4.0, 1.0, 2.0), (9.0, 2.0, -1.0)]
    assert script.onset(curve) == curve[1]
    cell = script.Cell(96, 8000)
    line = script.table({cell: curve}, {cell: 0.75}).splitlines()[-1]
    assert line == "| 96 | 8,000 | 0.75 | 2.00 | 4.00 | -1.00 | 2.00 | 9.00 |"


def test_the_figure_is_drawn(script, tmp_path):
    pytest.importorskip("matplotlib")
    curve = script.points([evaluation(0.0, 1.0, 1.0), evaluation(4.0, 3.0, 2.0)])
    script.draw({script.Cell(32, 500): curve, script.Cell(96, 8000): curve}, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.slow
def test_the_script_runs(tmp_path):
    printed = run_script(SCRIPT, "--output_dir", str(tmp_path), "--widths", "32", "--pairs", "64", "96", "--every", "1")
    assert "| 32 | 96 | " in printed and (tmp_path / "overoptimisation.png").is_file()

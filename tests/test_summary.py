"""The table and the picture at the end of a run."""

import io
from contextlib import closing

import pytest
from rich.console import Console

from rlhf.metrics import MetricsFile
from rlhf.summary import draw_curves, print_summary


@pytest.fixture
def run(tmp_path):
    with closing(MetricsFile(tmp_path / "sft")) as file:
        for step in (1, 2, 3):
            file.write({"step": step, "loss": 4.0 - step, "time/score": 1.0, "value/explained_variance": float("nan")})
        file.write({"step": 3, "eval/perplexity": 7.25})
    with closing(MetricsFile(tmp_path / "ppo")) as file:
        file.write({"step": 0, "eval/ema/score": 0.5, "eval/gold_score": -1.0})
    return tmp_path


def test_first_and_last_value_of_the_headline_figures(run):
    out = io.StringIO()
    print_summary(run, ["sft", "ppo", "missing"], Console(file=out, width=100))
    lines = [line.replace("│", " ").split() for line in out.getvalue().splitlines()]
    assert ["sft", "loss", "3", "1"] in lines and ["eval/perplexity", "7.25", "7.25"] in lines
    assert ["ppo", "eval/ema/score", "0.5", "0.5"] in lines and ["eval/gold_score", "-1", "-1"] in lines
    # neither times nor what was never a number
    assert "time/score" not in out.getvalue() and "explained_variance" not in out.getvalue()


def test_curves(run):
    pytest.importorskip("matplotlib")
    path = draw_curves(run, ["sft", "ppo"])
    assert path == run / "curves.png" and path.read_bytes().startswith(b"\x89PNG")
    assert draw_curves(run, ["ppo"]) is None  # a single point is no curve


def test_without_matplotlib_nothing_is_drawn(run, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert draw_curves(run, ["sft"]) is None and not (run / "curves.png").exists()

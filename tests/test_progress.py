"""What a person sees while a stage runs."""

import io

from rich.console import Console

from rlhf.progress import StageProgress, brief


def test_brief():
    assert brief({"loss": 1.23456, "other": 1}, ("loss", "missing")) == "loss 1.23"


def test_lines_without_a_terminal():
    out = io.StringIO()
    with StageProgress("sft", 3, console=Console(file=out), line_every=1000) as progress:
        progress.say("[5 rows] for training")
        for step in (1, 2, 3):
            progress.update(step, f"loss {step}")
    assert out.getvalue() == "[5 rows] for training\nsft 3/3  loss 3\n"
    with StageProgress("sft", 3, console=Console(file=out), line_every=0) as progress:
        progress.update(1, "loss 1")
    assert out.getvalue().endswith("sft 1/3  loss 1\n")


def test_a_bar_in_a_terminal():
    out = io.StringIO()
    with StageProgress("ppo", 2, console=Console(file=out, force_terminal=True, width=100)) as progress:
        progress.update(1, "reward 2")
        progress.say("a line above")
        progress.update(2, "reward 3")
    text = out.getvalue()
    assert "ppo" in text and "2/2" in text and "reward 3" in text and "a line above" in text

"""What a person sees while a stage runs."""

import io

import pytest
from rich.console import Console

from rlhf import progress as module
from rlhf.progress import StageProgress, brief


@pytest.fixture
def clock(monkeypatch):
    """Seconds that only a test lets pass."""

    class Clock:
        now = 0.0

    monkeypatch.setattr(module.time, "monotonic", lambda: Clock.now)
    return Clock


def test_brief():
    assert brief({"loss": 1.23456, "other": 1}, ("loss", "missing")) == "loss 1.23"


def test_lines_without_a_terminal_after_some_seconds_on_demand_and_at_the_end(clock):
    out = io.StringIO()
    with StageProgress("sft", 50, console=Console(file=out)) as progress:
        progress.say("[5 rows] for training")
        for step in range(1, 51):
            clock.now = 4.0 * step
            progress.update(step, f"loss {step}", line=step == 6)
            if step == 7:
                break
        clock.now = 200.0
        progress.update(50, "loss 50")
    assert out.getvalue().splitlines() == [
        "[5 rows] for training",
        "sft 4/50  loss 4  (0:03:04 left)",
        "sft 6/50  loss 6  (0:02:56 left)",
        "sft 50/50  loss 50",
    ]


def test_no_line_is_printed_twice(clock):
    out = io.StringIO()
    with StageProgress("ppo", 2, console=Console(file=out)) as progress:
        for done in (1, 1, 2, 2):
            progress.update(done, "reward 1", line=True)
    assert [line.split()[1] for line in out.getvalue().splitlines()] == ["1/2", "2/2"]


def test_time_left_of_a_continued_stage_counts_what_this_process_made(clock):
    out = io.StringIO()
    with StageProgress("ppo", 10, done=6, console=Console(file=out)) as progress:
        clock.now = 90.0
        progress.update(7, "reward 1")
    assert out.getvalue() == "ppo 7/10  reward 1  (0:04:30 left)\n"


def test_a_bar_in_a_terminal():
    out = io.StringIO()
    with StageProgress("[ppo]", 2, console=Console(file=out, force_terminal=True, width=100)) as progress:
        progress.update(1, "reward [2]")
        progress.say("a line above")
        progress.update(2, "reward [3]")
    text = out.getvalue()
    assert "[ppo]" in text and "2/2" in text and "reward [3]" in text and "a line above" in text


def test_a_narrow_terminal_cuts_the_figures_and_keeps_the_bar():
    out = io.StringIO()
    with StageProgress("ppo", 2, console=Console(file=out, force_terminal=True, width=70)) as progress:
        progress.update(2, "reward/score 1.07  kl/sequence 0.000639  policy/entropy 5.7")
    last = next(line for line in reversed(out.getvalue().splitlines()) if "ppo" in line)
    assert "━" * 24 in last and "2/2" in last and "…" in last


def test_quiet_is_silent_with_and_without_a_terminal():
    for terminal in (False, True):
        out = io.StringIO()
        console = Console(file=out, quiet=True, force_terminal=terminal)
        with StageProgress("ppo", 1, console=console) as progress:
            progress.say("a line")
            progress.update(1, "reward 1", line=True)
        assert out.getvalue() == ""

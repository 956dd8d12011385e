"""What is shown of running cells, from files as they stand at some moment."""

import io
import json

import tiny_runs
from rich.console import Console

from rlhf.experiment import Experiment
from rlhf.grid.progress import Running, View, position


def experiment(tmp_path):
    stages = {"sft": tiny_runs.sft(steps=4), "ppo": tiny_runs.ppo(iterations=5)}
    return Experiment(name="a", output_dir=str(tmp_path), stages=stages)


def write(tmp_path, stage, *lines, done=False, rest=""):
    folder = tmp_path / "a" / stage
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + rest)
    if done:
        (folder / "done.json").write_text("{}")


def test_a_position_follows_the_files(tmp_path):
    run = experiment(tmp_path)
    assert position(run).told(()) == "starts"
    write(
        tmp_path, "sft", {"step": 1, "loss": 2.5}, {"step": 2, "loss": 2.0, "eval/loss": None}, rest='{"step": 3, "lo'
    )
    found = position(run)
    assert (found.stage, found.done, found.total, found.part) == ("sft", 2, 4, 0.25)  # half of the first of two
    assert found.told(()) == "sft 2/4  loss 2"
    write(tmp_path, "sft", {"step": 4}, done=True)
    assert position(run).told(()) == "ppo 0/5" and position(run).part == 0.5
    lines = [{"step": 3, "iteration": 1, "reward/score": 0.5, "own": 7.0}, {"step": 4, "policy/entropy": 1.0}]
    write(tmp_path, "ppo", *lines)
    assert position(run).told(["own"]) == "ppo 1/5  own 7  reward/score 0.5  policy/entropy 1"
    write(tmp_path, "ppo", {"step": 9}, done=True)
    assert position(run).part == 1.0


def view(tmp_path, terminal):
    out = io.StringIO()
    environment = {"TERM": "xterm"}  # whatever that of the tests is
    console = Console(file=out, force_terminal=terminal, width=100, height=20, color_system=None, _environ=environment)
    return View("g", 8, console, ["own"]), out


def test_a_terminal_has_a_table_and_elsewhere_events_are_lines(tmp_path):
    shown, out = view(tmp_path, True)
    with shown:
        shown.running["clip=on"] = Running(experiment(tmp_path), 0.0)
        shown.counts = {"done": 3, "running": 1, "failed": 0, "waiting": 4}
        shown.say("clip=on: starts")
        shown.update()
    text = out.getvalue()
    assert "clip=on: starts" in text and "clip=on  " in text and "g: 3 done, 1 running, 4 waiting of 8" in text

    plain, out = view(tmp_path, False)
    with plain:
        plain.say("clip=on: starts")
        plain.update()
    (line,) = out.getvalue().splitlines()
    assert line.endswith(" clip=on: starts") and len(line) == len("00:00:00 clip=on: starts")


def test_the_time_left_is_told_by_the_cells_that_were_run(tmp_path):
    shown, _ = view(tmp_path, False)
    shown.slots, shown.counts = 2, {"waiting": 3}
    assert shown.left(100.0) is None
    shown.seconds = [30.0, 50.0]
    shown.running = {"a": Running(experiment(tmp_path), 90.0), "b": Running(experiment(tmp_path), 0.0)}
    # 40 s a cell: 30 left of a, b is overdue and counts a tenth; three more: (30 + 4 + 120) / 2
    assert shown.left(100.0) == 77.0


def test_a_quiet_console_says_nothing(tmp_path):
    out = io.StringIO()
    shown = View("g", 1, Console(file=out, force_terminal=True, quiet=True))
    with shown:
        shown.say("x")
        shown.update()
    assert out.getvalue() == ""

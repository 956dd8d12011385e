"""The order of events, with an executor that does what the test says in the place of running anything."""

import io
import os
import signal
from pathlib import Path

import forked_cells
import pytest
import tiny_runs
from rich.console import Console

from rlhf.errors import UserError
from rlhf.experiment import Experiment
from rlhf.files import only_one
from rlhf.grid import conduct
from rlhf.grid.cells import Cell
from rlhf.grid.conduct import Conductor
from rlhf.grid.ledger import Ledger
from rlhf.grid.progress import View
from rlhf.interfaces import Ended, LiveExecutor
from rlhf.interruption import Stopped
from rlhf.stages.folder import DONE, RECORD, write_json


class Scripted(LiveExecutor):
    """Jobs end when their turn comes in ``script``: (name, code) each, in order; by default with 0 as they started."""

    def __init__(self, slots=2, script=(), on_start=lambda name: None, endless=False):
        self.slots, self.script, self.on_start, self.endless = slots, list(script), on_start, endless
        self.running, self.started, self.asked, self.killed = [], [], 0, False

    def start(self, job):
        self.running.append(job.name)
        self.started.append(job.name)
        self.on_start(job.name)

    def flush(self):
        self.flushed = list(self.started)

    def ended(self):
        if not self.running or (self.endless and not self.asked):
            return []
        name, code = self.script.pop(0) if self.script else (self.running[0], 143 if self.asked else 0)
        self.running.remove(name)
        return [Ended(name, code)]

    def stop(self):
        self.asked += 1

    def kill(self):
        self.killed = True
        self.running.clear()


def cells(folder, names, **settings):
    found = []
    for index, name in enumerate(names):
        stages = {"sft": tiny_runs.sft(steps=1), "own": tiny_runs.sft(steps=2 + index)}
        experiment = Experiment(name=name, output_dir=str(folder / "g"), stages=stages, cache_dir=None, **settings)
        found.append(Cell(name, name, {}, 1, (), experiment))
    return found


@pytest.fixture(autouse=True)
def quickly(monkeypatch):
    monkeypatch.setattr(conduct, "POLL", 0.0)
    monkeypatch.setattr(conduct, "LOOK", 0.0)


def conductor(found, executor, **settings):
    out = io.StringIO()
    view = View("g", len(found), Console(file=out, width=200))
    return Conductor(found, Ledger(found), executor, view, **settings), out


def finish(cell, stage, key):
    """The stage of a cell as a run leaves it."""
    folder = cell.experiment.directory / stage
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / RECORD, {"key": key})
    write_json(folder / DONE, {"figures": {}, "seconds": 1.0})


def test_the_shared_stage_is_made_by_one_and_then_every_slot_is_used(tmp_path):
    found = cells(tmp_path, "abcd", stage_cache=str(tmp_path / "cache"))
    executor = Scripted(slots=2, script=[])
    work, _ = conductor(found, executor)
    folder = tmp_path / "cache" / f"sft-{work.ledger.keys['a']['sft']}"

    def started(name):
        if name == "a":
            assert work._missing("a")[0] == work._missing("b")[0]  # the same stage
            assert executor.started == ["a"]  # the second slot is kept free, as others would wait in it
            folder.mkdir(parents=True)

    executor.on_start = started
    work._fill()
    assert executor.started == ["a"] and executor.running == ["a"]
    (folder / "index.json").write_text("")  # a has made it, and goes on with its own
    work._fill()
    assert executor.started == ["a", "b"]
    assert executor.ended() == [Ended("a", 0)]


def test_without_a_cache_nobody_waits(tmp_path):
    executor = Scripted(slots=3)
    work, _ = conductor(cells(tmp_path, "abcd", stage_cache=None), executor)
    work._fill()
    assert executor.started == ["a", "b", "c"]


def test_a_stage_whose_maker_has_failed_is_made_by_the_next(tmp_path):
    executor = Scripted(slots=2, script=[("a", 1)])
    work, out = conductor(cells(tmp_path, "ab", stage_cache=str(tmp_path / "cache")), executor)
    outcome = work.run()
    assert executor.started == ["a", "b"] and outcome.states == {"a": "failed", "b": "done"}
    assert outcome.errors == {"a": "exit code 1, and no word"}
    assert (
        "a: failed (g: 1 failed, 1 waiting of 2); " in out.getvalue() and "(g: 1 done, 1 failed of 2)" in out.getvalue()
    )


def test_an_error_is_the_end_of_what_a_cell_has_said(tmp_path):
    found = cells(tmp_path, "a", stage_cache=None)
    log = found[0].experiment.directory / "output.log"

    def say(_):
        with log.open("a") as file:
            file.write("Error: of long ago\nx\n\nError: stage sft: it broke\n  here\n\n")

    work, out = conductor(found, Scripted(script=[("a", -9)], on_start=say))
    outcome = work.run()
    assert outcome.errors["a"].splitlines() == [
        "Error: stage sft: it broke",
        "  here",
        "its process was ended by SIGKILL (by the system for want of memory, say)",
    ]
    again, out = conductor(found, Scripted(script=[("a", 1)], on_start=lambda _: log.open("a").write("other\n")))
    assert again.errors == outcome.errors and again.run().errors == outcome.errors  # not run again
    assert "a: failed before, and is not run again without --retry" in out.getvalue()
    retried, _ = conductor(found, Scripted(script=[("a", 1)], on_start=lambda _: log.write_text("new\n")), retry=True)
    assert retried.errors == {} and retried.run().errors == {"a": "exit code 1, and no word"}


def test_a_failed_cell_with_other_settings_waits_again(tmp_path):
    found = cells(tmp_path, "a", stage_cache=None)
    conductor(found, Scripted(script=[("a", 1)]))[0].run()
    changed = cells(tmp_path, "a", stage_cache=None, keep_checkpoints=3)
    assert conductor(changed, Scripted())[0].states == {"a": "waiting"}


def test_a_cell_that_somebody_stops_is_left_alone(tmp_path):
    executor = Scripted(slots=1, script=[("a", 143), ("b", 0)])
    work, out = conductor(cells(tmp_path, "ab", stage_cache=None), executor)
    assert work.run().states == {"a": "stopped", "b": "done"}
    assert executor.started == ["a", "b"] and "a: stopped, and can be continued" in out.getvalue()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_cells_and_starts_no_other(tmp_path, number):
    asked = lambda name: os.kill(os.getpid(), number) if name == "b" else None  # noqa: E731
    executor = Scripted(slots=2, on_start=asked, endless=True)
    work, out = conductor(cells(tmp_path, "abcd", stage_cache=None), executor)
    with pytest.raises(Stopped) as error:
        work.run()
    assert error.value.exit_code == 128 + number and executor.asked == 1 and executor.started == ["a", "b"]
    assert f"{number.name}: 2 running cells save and stop" in out.getvalue()
    assert str(error.value) == (
        f"stopped by {number.name}; g: 2 waiting, 2 stopped of 4; running cells were saved, and the same command "
        "continues from there"
    )


def test_a_second_signal_ends_them_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(conduct, "GRACE", 0.0)

    class Deaf(Scripted):
        def ended(self):
            if self.asked == 1:
                os.kill(os.getpid(), signal.SIGINT)
            return []

    executor = Deaf(on_start=lambda _: os.kill(os.getpid(), signal.SIGINT))
    work, _ = conductor(cells(tmp_path, "a", stage_cache=None), executor)
    with pytest.raises(KeyboardInterrupt):
        work.run()
    assert executor.asked >= 2 and executor.killed


def test_an_error_of_the_grid_leaves_no_cell_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(conduct, "GRACE", 0.0)
    executor = Scripted(slots=2)
    work, _ = conductor(cells(tmp_path, "ab", stage_cache=None), executor)
    executor.on_start = lambda name: 1 / 0 if name == "b" else None
    with pytest.raises(ZeroDivisionError):
        work.run()
    assert executor.killed


def test_a_cell_that_another_process_runs_is_waited_for(tmp_path):
    found = cells(tmp_path, "ab", stage_cache=None)
    holding = only_one(found[0].experiment.directory)
    holding.__enter__()
    executor = Scripted(slots=2, on_start=lambda name: holding.__exit__(None, None, None) if name == "b" else None)
    work, out = conductor(found, executor)
    assert work.states == {"a": "busy", "b": "waiting"}
    assert work.run().states == {"a": "done", "b": "done"} and executor.started == ["b", "a"]
    assert "a: another process runs it; it is waited for" in out.getvalue()
    assert "a: is let go of, and waiting" in out.getvalue()


class Left(Scripted):
    """An executor that has jobs of an earlier grid."""

    def __init__(self, left, **settings):
        super().__init__(**settings)
        self.left, self.asked_for = left, []

    def adopt(self, jobs):
        self.asked_for = [job.name for job in jobs]
        self.running += self.left
        return {name: f"job {name}" for name in self.left}


def started_before(found, name):
    """A cell as a grid leaves it that was killed."""
    ledger = Ledger(found)
    ledger.begin(name)
    with (ledger.folder(name) / "output.log").open("a") as file:
        file.write("Error: of long ago\n--- 2026-11-30 10:00:00\nError: it broke\n")


def test_what_an_earlier_grid_has_left_running_is_waited_for_and_not_started(tmp_path):
    found = cells(tmp_path, "abc", stage_cache=None)
    for name in "ab":
        started_before(found, name)
    executor = Left(["a", "b"], slots=2, script=[("b", 0), ("a", 1)])
    work, out = conductor(found, executor)
    assert executor.asked_for == ["a", "b", "c"] and list(work.view.running) == ["a", "b"]
    outcome = work.run()
    assert executor.started == ["c"] and outcome.states == {"a": "failed", "b": "done", "c": "done"}
    assert outcome.errors == {"a": "Error: it broke"}  # of this try, wherever that began
    assert "a: was started by an earlier grid, and goes on (job a)" in out.getvalue()
    assert "b: done (g: " in out.getvalue() and len(work.view.seconds) == 1  # how long it took is not known
    assert work.ledger.status("a")["tries"] == 1


def test_what_an_earlier_grid_has_left_with_other_settings_is_refused(tmp_path):
    started_before(cells(tmp_path, "ab", stage_cache=None), "a")
    changed = cells(tmp_path, "ab", stage_cache=None, keep_checkpoints=3)
    with pytest.raises(UserError) as error:
        conductor(changed, Left(["a"]))
    assert str(error.value).startswith("still running or waiting with other settings: a (job a); cancel or await them")


def test_jobs_that_are_ready_together_are_handed_on_together(tmp_path):
    executor = Scripted(slots=2)
    work, _ = conductor(cells(tmp_path, "abc", stage_cache=None), executor)
    rounds = []
    executor.on_start = lambda name: rounds.append(list(getattr(executor, "flushed", [])))
    work.run()
    assert rounds[:2] == [[], []] and executor.flushed == ["a", "b", "c"]


def test_why_a_job_has_ended_is_told(tmp_path):
    class Told(Scripted):
        def ended(self):
            return [one._replace(why="it was cancelled") for one in super().ended()]

    work, out = conductor(cells(tmp_path, "ab", stage_cache=None), Told(script=[("a", -15), ("b", 1)]))
    outcome = work.run()
    assert "a: stopped (it was cancelled), and can be continued" in out.getvalue()
    assert outcome.errors == {"b": "it was cancelled"}


def test_cells_with_other_settings_are_refused_all_at_once(tmp_path):
    found = cells(tmp_path, "ab", stage_cache=None)
    for cell in found:
        (cell.experiment.directory / "sft").mkdir(parents=True)
        (cell.experiment.directory / "sft" / "mine.txt").write_text("")
    with pytest.raises(UserError) as error:
        conductor(found, Scripted())
    assert str(error.value).startswith("2 of 2 cells cannot be run, such as a:\n  ")
    assert "sft holds files that no run left; move them, or choose another" in str(error.value)
    assert str(error.value).endswith("\nThe others: b")


def test_folders_of_cells_that_the_grid_has_no_more_are_told(tmp_path):
    conductor(cells(tmp_path, "abc", stage_cache=None), Scripted())[0].run()
    work, out = conductor(cells(tmp_path, "a", stage_cache=None), Scripted())
    work.run()
    assert (
        f"{tmp_path / 'g'} has cells that the grid has no more, and that nothing is done with: b, c" in out.getvalue()
    )


def test_a_job_is_the_command_of_a_run(tmp_path):
    found = cells(tmp_path, "a", stage_cache=None)
    ledger = Ledger(found, overwrite=True)
    folder = found[0].experiment.directory
    assert ledger.begin("a") == [
        "-m", "rlhf.run", "--config", str(folder / "cell.yaml"), "--no_report", "--overwrite",
    ]  # fmt: skip
    from rlhf.config import load

    assert load([folder / "cell.yaml"]) == found[0].experiment
    assert forked_cells.Forked().open().slots == 2 and Path(folder / "output.log").read_text().startswith("--- 20")

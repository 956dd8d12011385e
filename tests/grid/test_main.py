"""Grids of eight tiny cells, run whole: what is shared, what is kept, and what a kill or a crash changes (nothing)."""

import json
import os
import re
import shutil
import signal
from pathlib import Path

import forked_cells
import pytest
import tiny_runs
from grid_runs import Process, figures, made, prepare, run

from rlhf.grid.__main__ import main

CELLS = [f"clip={clip},coef={coef},seed={seed}" for clip in ("on", "off") for coef in (0.05, 0.1) for seed in (1, 2)]


pytestmark = pytest.mark.usefixtures("imported")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RLHF_CACHE_DIR")
    prepare(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def whole(tmp_path_factory, imported):
    """A grid that nobody disturbed: its folder, and what it said."""
    folder = tmp_path_factory.mktemp("whole")
    prepare(folder)
    former, kept = Path.cwd(), os.environ.pop("RLHF_CACHE_DIR")
    os.chdir(folder)
    try:
        pid = forked_cells.fork(lambda: run(), folder / "said.txt")
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, (folder / "said.txt").read_text()
    finally:
        os.chdir(former)
        os.environ["RLHF_CACHE_DIR"] = kept
    return folder


def test_shared_stages_are_made_once_for_each_seed(whole):
    said = (whole / "said.txt").read_text()
    assert made(whole) == ["ppo"] * 8 + ["sft"] * 2
    assert sorted(path.name for path in (whole / "runs/g").iterdir() if path.is_dir()) == sorted(CELLS)
    events = [re.sub(r"^\d\d:\d\d:\d\d ", "", line) for line in said.splitlines()]
    assert events[0] == "g: 8 waiting of 8"
    # both slots begin with a seed of their own, as only these two have stages that nobody else is to make
    assert events[1] == f"{CELLS[0]}: starts (g: 1 running, 7 waiting of 8)"
    assert events[2] == f"{CELLS[1]}: starts (g: 2 running, 6 waiting of 8)"
    assert len(events) == 17 and events[-1].endswith("(g: 8 done of 8)")
    assert "waiting for it" not in "".join(path.read_text() for path in (whole / "runs/g").glob("*/output.log"))


def test_each_cell_is_what_the_command_makes_of_it(whole, folder):
    from rlhf.run import main as run_one

    cell = CELLS[-1]
    base = [
        "--config",
        "base.yaml",
        "--name",
        "alone",
        "--seed",
        "2",
        "--threads",
        "1",
        "--stages.ppo.score_clip",
        "null",
    ]
    assert run_one([*base, "--stages.ppo.kl.controller.coef", "0.1", "--no_report", "--quiet"]) == 0
    for stage in ("sft", "ppo"):
        assert tiny_runs.metrics(Path("runs/alone") / stage) == figures(whole)[f"{cell}/{stage}"]
    assert tiny_runs.same_weights(Path("runs/alone/ppo/model"), whole / "runs/g" / cell / "ppo/model")


def copied(whole, folder):
    shutil.copytree(whole / "runs", folder / "runs")


def test_what_is_done_is_not_run_again(whole, folder, capsys):
    copied(whole, folder)
    before = {path: path.stat().st_mtime_ns for path in Path("runs/g").rglob("*") if path.name != ".lock"}
    assert run() == 0
    assert capsys.readouterr().out[9:] == "g: 8 done of 8\n"
    after = {path: path.stat().st_mtime_ns for path in Path("runs/g").rglob("*") if path.name != ".lock"}
    changed = {str(path) for path in before | after if before.get(path) != after.get(path)}
    assert changed == {"runs/g/grid.yaml"}


def test_a_new_choice_makes_its_own_cells_only(whole, folder, capsys):
    copied(whole, folder)
    (folder / "grid.yaml").write_text(forked_cells.GRID.replace("[0.05, 0.1]", "[0.05, 0.1, 0.2]"))
    assert run() == 0
    said = capsys.readouterr().out
    assert said[9:].startswith("g: 8 done, 4 waiting of 12\n") and said.count(": starts") == 4
    assert made() == ["ppo"] * 12 + ["sft"] * 2
    assert figures(whole).items() <= figures().items()


@pytest.mark.slow
def test_a_changed_base_is_refused_and_run_anew_only_when_asked(whole, folder, capsys):
    copied(whole, folder)
    (folder / "base.yaml").write_text(forked_cells.BASE.replace("iterations: 3", "iterations: 2"))
    assert run() == 1
    error = capsys.readouterr().err
    assert error.startswith(f"Error: 8 of 8 cells cannot be run, such as {CELLS[0]}:\n")
    assert "iterations: 3 → 2" in error and "Choose another name for the grid, or pass --overwrite" in error
    assert f"The others: {', '.join(CELLS[1:])}" in error
    assert figures() == figures(whole)
    assert run("--overwrite") == 0
    assert made() == ["ppo"] * 8 + ["sft"] * 2 and figures() != figures(whole)
    assert {len(lines) for name, lines in figures().items() if name.endswith("ppo")} == {4}  # two iterations


BROKEN = forked_cells.GRID.replace("seeds: [1, 2]", "seeds: [1]").replace(
    "    off:", "    sad: {stages.ppo.reward.function: forked_cells.moody}\n    off:"
)


def test_one_crash_leaves_the_others_running_and_is_tried_again_when_asked(folder, capsys):
    prepare(folder, BROKEN)
    assert run() == 1
    said, error = capsys.readouterr()
    assert error.startswith("Error: 2 of 6 cells failed; --retry runs them again\n")
    for coef in (0.05, 0.1):
        log = f"runs/g/clip=sad,coef={coef},seed=1/output.log"
        assert f"  clip=sad,coef={coef},seed=1 ({log}):\n" in error and f"; {log} ends\n" in said
    assert error.count("function: forked_cells.moody, given 8 responses, raised RuntimeError: out of sorts") == 2
    assert "g: 4 done, 2 failed of 6" in said
    good = {name: lines for name, lines in figures().items() if "sad" not in name}
    assert len(good) == 8

    (folder / "mended").touch()
    assert run() == 1  # it says what failed, and does not try it over and over
    said, error = capsys.readouterr()
    assert said.count("failed before, and is not run again without --retry") == 2 and "starts" not in said
    assert "out of sorts" in error
    assert run("--retry") == 0
    said, error = capsys.readouterr()
    assert said.count(": continues") == 2 and "6 done of 6" in said and error == ""
    assert {name: figures()[name] for name in good} == good


@pytest.mark.slow
def test_a_cell_that_failed_with_other_settings_is_run(folder, capsys):
    prepare(folder, BROKEN.replace("coef: [0.05, 0.1]", "coef: [0.05]"))
    assert run() == 1
    (folder / "grid.yaml").write_text(
        (folder / "grid.yaml").read_text().replace("forked_cells.moody", "tiny_runs.letters")
    )
    capsys.readouterr()
    assert run("--overwrite") == 0  # the stage had begun with the other reward
    assert "failed before" not in capsys.readouterr().out


# ------------------------------------------------------------------------------------------------------- interruptions


MOMENTS = {
    "the first cell has its folder": lambda: any(Path("runs/g").glob("*/cell.json")),
    "a stage is being made": lambda: any(Path("runs/g").glob("*/sft/metrics.jsonl")),
    "a policy learns": lambda: any(
        path.read_text().count("\n") > 1 for path in Path("runs/g").glob("*/ppo/metrics.jsonl")
    ),
    "three cells are done": lambda: len(list(Path("runs/g").glob("*/ppo/done.json"))) >= 3,
}


@pytest.mark.slow
@pytest.mark.parametrize("all_at_once", [False, True], ids=["the grid", "the machine"])
def test_a_grid_that_is_killed_goes_on_to_the_same_figures(whole, folder, all_at_once):
    for happened in MOMENTS.values():
        grid = Process(folder)
        grid.until(happened)
        cells = forked_cells.children(grid.pid)
        os.kill(grid.pid, signal.SIGSTOP)  # it starts no further cell between the two
        for pid in cells if all_at_once else ():
            os.kill(pid, signal.SIGKILL)
        os.kill(grid.pid, signal.SIGKILL)
        assert grid.wait() == -signal.SIGKILL
    grid = Process(folder)
    assert grid.wait() == 0, grid.said.read_text()
    assert figures() == figures(whole)
    assert made() == ["ppo"] * 8 + ["sft"] * 2
    for path in (whole / "runs/g").glob("*/ppo/model"):
        assert tiny_runs.same_weights(path, Path("runs/g") / path.parts[-3] / "ppo/model")


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_is_handed_to_the_cells_which_save_and_stop(whole, folder, number, code):
    grid = Process(folder)
    grid.until(MOMENTS["a policy learns"])
    os.kill(grid.pid, number)
    assert grid.wait() == code
    said = grid.said.read_text()
    assert (
        f"stopped by {number.name}; g: " in said and "running cells were saved, and the same command continues" in said
    )
    assert "failed" not in said
    states = [json.loads(path.read_text())["state"] for path in Path("runs/g").glob("*/cell.json")]
    assert set(states) <= {"stopped", "done"} and states.count("stopped") <= 2
    grid = Process(folder, "--quiet")
    assert grid.wait() == 0 and grid.said.read_text() == ""
    assert figures() == figures(whole)


def test_a_second_grid_is_told_that_there_is_one(folder, capsys):
    grid = Process(folder)
    grid.until(MOMENTS["the first cell has its folder"])
    assert run() == 1
    assert "is in use by another run" in capsys.readouterr().err
    os.kill(grid.pid, signal.SIGTERM)
    assert grid.wait() == 143


# ------------------------------------------------------------------------------------------------------------- mistakes


def test_a_typo_stops_the_grid_before_anything_runs(folder, capsys):
    (folder / "grid.yaml").write_text(forked_cells.GRID.replace("score_clip: null", "score_clipp: null"))
    assert run("--set", "stages.ppo.iteration", "2", "--seedz", "3") == 2
    error = capsys.readouterr().err
    assert "command line: seedz: Grid has no setting 'seedz'. Did you mean seeds?" in error
    assert run("--set", "stages.ppo.iteration", "2") == 2
    error = capsys.readouterr().err
    assert error.startswith("2 problems in the config:\n")
    assert "axes.clip.off: stages.ppo.score_clipp: PPO has no setting 'score_clipp'. Did you mean score_clip?" in error
    assert "overrides: stages.ppo.iteration: PPO has no setting 'iteration'. Did you mean iterations?" in error
    assert not Path("runs").exists()


def test_without_a_config_the_usage_is_shown(capsys):
    assert main([]) == 2
    assert "--config" in capsys.readouterr().err


def test_a_launcher_is_refused(folder, capsys, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    assert run() == 2
    assert (
        "a grid is one process, which starts those of its cells; run it without a launcher" in capsys.readouterr().err
    )


def test_help_lists_the_settings(capsys):
    assert main(["--help"]) == 0
    said = capsys.readouterr().out
    for wanted in ("--dry_run", "--retry", "only_if: dict[str, dict[str, Any]]", "executor: Executor"):
        assert wanted in said


# --------------------------------------------------------------------------------------------------------------- report


@pytest.mark.slow
def test_a_grid_ends_in_its_report_which_can_be_written_again_alone(whole, folder, capsys):
    copied(whole, folder)
    assert run(report=True) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].endswith("g: 8 done of 8") and said[-1] == "report: runs/g/report.html"
    assert said[1].startswith("3 comparisons, corrected by Holm")
    table = Path("runs/g/results.csv").read_bytes()
    assert table.startswith(b"cell,variant,clip,coef,seed,reward/score\n") and table.count(b"\n") == 9
    shutil.rmtree(f"runs/g/{CELLS[0]}/ppo")
    assert run("--report_only") == 2  # the two exclude each other
    assert "not allowed with argument" in capsys.readouterr().err
    assert main(["--config", "grid.yaml", "--report_only"]) == 0
    assert "1 of 8 cells have no reward/score" in capsys.readouterr().out
    assert not Path(f"runs/g/{CELLS[0]}/ppo").exists()  # nothing was run
    assert run(report=True) == 0
    assert Path("runs/g/results.csv").read_bytes() == table


@pytest.mark.slow
def test_what_was_damaged_since_is_named_whatever_is_asked_for_and_made_again_once_it_is_gone(whole, folder, capsys):
    copied(whole, folder)
    assert run(report=True) == 0
    table = Path("runs/g/results.csv").read_bytes()
    stage = Path(f"runs/g/{CELLS[1]}/ppo")
    for name, content in (
        ("metrics.jsonl", (stage / "metrics.jsonl").read_bytes()[:-40]),
        ("metrics.jsonl", b""),
        ("done.json", b"{"),
        ("stage.json", b"[]"),
    ):
        former = (stage / name).read_bytes()
        (stage / name).write_bytes(content)
        for options in (["--dry_run"], ["--report_only"], ["--no_report"], ["--no_report", "--retry"]):
            assert main(["--config", "grid.yaml", *options]) == 1
            error = capsys.readouterr().err
            assert error.startswith(f"Error: {CELLS[1]}: {stage / name} is damaged (")
            assert error.endswith(f"; put it back, or remove the folder {stage} to run its stage anew\n")
        (stage / name).write_bytes(former)
    assert Path("runs/g/results.csv").read_bytes() == table
    shutil.rmtree(stage)
    assert run(report=True) == 0
    assert Path("runs/g/results.csv").read_bytes() == table
    assert made() == ["ppo"] * 7 + ["sft"] * 2  # the kept one was taken


def test_nothing_to_report_is_said(folder, capsys):
    assert main(["--config", "grid.yaml", "--report_only"]) == 1
    assert (
        capsys.readouterr().err == "Error: runs/g: no cell is finished, so there is nothing to report; run the grid\n"
    )


@pytest.mark.slow
def test_what_failed_does_not_keep_the_rest_from_being_reported(folder, capsys):
    prepare(folder, BROKEN.replace("coef: [0.05, 0.1]", "coef: [0.05]"))
    assert run(report=True) == 1
    said, error = capsys.readouterr()
    assert "1 of 3 cells have no reward/score" in said and "report: runs/g/report.html" in said
    assert error.startswith("Error: 1 of 3 cells failed")
    assert "clip=sad,coef=0.05,seed=1 failed:<pre>Error: " in Path("runs/g/report.html").read_text()


def test_a_missing_package_leaves_the_runs_whole(whole, folder, capsys, monkeypatch):
    from rlhf.grid.report import write

    copied(whole, folder)
    monkeypatch.setattr(write.importlib.util, "find_spec", lambda name: None)
    assert run(report=True) == 0
    assert "report: not written, the package pandas is missing; pip install 'rlhf[grid]'" in capsys.readouterr().out

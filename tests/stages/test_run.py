"""Which stages are kept, continued, taken from another run or made; and what is said of it."""

import dataclasses
import io
import json
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
import tiny_runs
from rich.console import Console

import rlhf.loops
from rlhf.algorithms.optimizers import AdamW
from rlhf.data.dataset import Data
from rlhf.data.sources import Files
from rlhf.errors import UserError
from rlhf.experiment import Experiment
from rlhf.models.policy import Pretrained
from rlhf.stages import key as keys


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in tiny_runs.rows("demonstration", 16)))
    return path


def pipeline(folder: Path, rows: Path, name: str, *sinks: Any, **changes: Any) -> Experiment:
    """Two stages of two steps, the second from the first, and a third that stands alone."""
    data = Data(sources={"file": Files(path=str(rows))}, eval_rows=2, max_tokens=32)
    stages = {
        "one": tiny_runs.sft(data=data, steps=2),
        "two": tiny_runs.sft(policy=Pretrained(path="@one", dropout=0.1), steps=2),
        "lone": tiny_runs.sft(steps=1),
    }
    for stage, settings in changes.items():
        stages[stage] = dataclasses.replace(stages[stage], **settings)
    cache = str(folder / "cache")
    return Experiment(name=name, output_dir=str(folder), stages=stages, stage_cache=cache, sinks=list(sinks))


class Ran:
    """Stages that were really made, by ``run/stage``, and what a run said."""

    def __init__(self) -> None:
        self.stages: list[str] = []

    def __call__(self, experiment: Experiment, **options: Any) -> tuple[list[str], str]:
        self.stages.clear()
        out = io.StringIO()
        experiment.run(console=Console(file=out, width=400), **options)
        return list(self.stages), out.getvalue()


@pytest.fixture
def run(monkeypatch):
    ran, build = Ran(), rlhf.loops.build_stage

    def counting(algorithm, context):
        ran.stages.append(context.name)
        return build(algorithm, context)

    monkeypatch.setattr(rlhf.loops, "build_stage", counting)
    return ran


@pytest.fixture
def first(tmp_path, rows, run):
    made, said = run(pipeline(tmp_path, rows, "a"))
    assert made == ["one", "two", "lone"] and f"kept for other runs in {tmp_path / 'cache'} (3, " in said
    return tmp_path


# ---------------------------------------------------------------------------------------------------------- other runs


def test_another_run_of_the_same_stages_makes_none(first, rows, run):
    made, said = run(pipeline(first, rows, "b"))
    assert made == [] and said.count("made before by another run of the same settings and data, taken from") == 3
    assert "kept for other runs in" not in said  # nothing new is
    for stage in ("one", "two", "lone"):
        a, b = first / "a" / stage, first / "b" / stage
        assert tiny_runs.same_weights(a / "model", b / "model") and tiny_runs.metrics(a) == tiny_runs.metrics(b)
        assert json.loads((a / "done.json").read_text()) == json.loads((b / "done.json").read_text())
    assert run(pipeline(first, rows, "b"))[0] == []  # and finds its own
    shutil.rmtree(first / "a")
    shutil.rmtree(first / "cache")
    assert run(pipeline(first, rows, "b"))[0] == []


def test_only_what_changed_is_made(first, rows, run):
    made, said = run(pipeline(first, rows, "b", two={"batch_size": 8}))
    assert made == ["two"]
    assert "two: is run, as no kept stage is the same; the nearest: batch_size: 4 → 8" in said
    made, said = run(pipeline(first, rows, "c", one={"optimizer": AdamW(lr=5e-3)}))
    assert made == ["one", "two"] and "two: is run, as no kept stage is the same; the nearest: @one: is another" in said
    assert run(dataclasses.replace(pipeline(first, rows, "d"), seed=2))[0] == ["one", "two", "lone"]
    made, _ = run(pipeline(first, rows, "e", lone={"save_every": 1}))  # changes nothing of what is left
    assert made == []


def test_changed_data_of_the_same_path_are_seen(first, rows, run):  # case G1
    rows.write_text(rows.read_text().replace("x", "y"))
    with pytest.raises(UserError) as error:
        run(pipeline(first, rows, "a"))
    assert "one holds a stage that was run otherwise" in str(error.value)
    assert "data.sources.file: its content has changed since" in str(error.value)
    made, said = run(pipeline(first, rows, "b"))
    assert (
        made == ["one", "two"] and "one: is run, as no kept stage is the same; the nearest: data.sources.file" in said
    )
    made, said = run(pipeline(first, rows, "a"), overwrite=True)
    assert made == []  # the other run has just made them
    assert f"one: replaces what is in {first / 'a' / 'one'} (data.sources.file: its content has changed since)" in said
    assert tiny_runs.same_weights(first / "a" / "two" / "model", first / "b" / "two" / "model")


def test_data_that_are_gone_are_taken_on_trust(first, rows, run):
    rows.unlink()
    made, said = run(pipeline(first, rows, "a"))
    assert made == []
    assert "one: finished before, kept" in said
    assert "unchanged as far as can be seen, as data.sources.file cannot be read any more" in said


def test_other_versions_are_not_taken_and_told_of(first, rows, run, monkeypatch):
    monkeypatch.setattr(keys, "versions", lambda: {"torch": "0"})
    monkeypatch.setattr("rlhf.stages.run.versions", lambda: {"torch": "0"})
    made, said = run(pipeline(first, rows, "a"))
    assert made == [] and "one: finished before, kept" in said and "; made with other versions: torch: " in said
    assert run(pipeline(first, rows, "b"))[0] == ["one", "two", "lone"]


def test_a_kept_stage_that_was_changed_is_made_anew(first, rows, run):
    (folder,) = (first / "cache").glob("lone-*")
    (folder / "metrics.jsonl").write_text("")
    assert run(pipeline(first, rows, "b"))[0] == ["lone"]
    assert run(pipeline(first, rows, "c"))[0] == []


def test_nothing_is_kept_where_nothing_is_wanted(first, rows, run):
    made, said = run(dataclasses.replace(pipeline(first, rows, "b"), stage_cache=None))
    assert made == ["one", "two", "lone"] and "finished stages are kept" not in said


def test_a_cache_that_cannot_be_written_does_not_spoil_the_run(tmp_path, rows, run, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("rlhf.stages.cache.write_index", full)
    made, said = run(pipeline(tmp_path, rows, "a"))
    assert made == ["one", "two", "lone"] and said.count("could not be kept for other runs") == 3
    assert (tmp_path / "a" / "two" / "done.json").exists()


def test_two_runs_that_want_the_same_at_once_make_it_once(tmp_path, run):
    told: dict[str, str] = {}

    def one(name):
        stages = {"lone": tiny_runs.sft(steps=1)}
        out = io.StringIO()
        experiment = Experiment(name=name, output_dir=str(tmp_path), stages=stages, stage_cache=str(tmp_path / "cache"))
        experiment.run(console=Console(file=out, width=400))
        told[name] = out.getvalue()

    threads = [threading.Thread(target=one, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert run.stages == ["lone"] and sum("taken from" in said for said in told.values()) == 2
    assert all(tiny_runs.same_weights(tmp_path / "a" / "lone" / "model", tmp_path / n / "lone" / "model") for n in "bc")


# --------------------------------------------------------------------------------------------------------- overwriting


def test_named_stages_are_made_anew_though_nothing_changed(first, rows, run):
    before = (first / "a" / "one" / "stage.json").read_text()
    (kept,) = (first / "cache").glob("one-*")
    inode = (kept / "metrics.jsonl").stat().st_ino
    made, said = run(pipeline(first, rows, "a"), overwrite=["one"])
    assert made == ["one", "two"]  # and that which uses it
    assert "one: replaces what is in" in said and "(--overwrite names it)" in said
    assert "two: replaces what is in" in said and "(@one: is to be run first)" in said
    assert (first / "a" / "one" / "stage.json").read_text() != before
    assert (kept / "metrics.jsonl").stat().st_ino != inode  # the new one is kept in place of the old
    assert run(pipeline(first, rows, "a"), overwrite=True)[0] == []
    with pytest.raises(UserError, match=r"--overwrite: no stage is called 'tow'; there are one, two, lone"):
        run(pipeline(first, rows, "a"), overwrite=["tow"])


# ------------------------------------------------------------------------------------------------------------ resuming


def interrupted(folder: Path, rows: Path, run, name: str, step: int = 4) -> Path:
    """A stage of five steps, cut in its middle, with checkpoints of steps 2 and 3."""
    with pytest.raises(tiny_runs.Killed):
        run(long(folder, rows, name, tiny_runs.KillAt(step=step)))
    return folder / name / "two" / "checkpoints"


def long(folder: Path, rows: Path, name: str, *sinks: Any, **settings: Any) -> Experiment:
    usual = {"steps": 5, "save_every": 1}
    return pipeline(folder, rows, name, *sinks, two={**usual, **settings})


@pytest.fixture
def whole(first, rows, run):
    run(long(first, rows, "whole"))
    shutil.rmtree(first / "cache" / next(path.name for path in (first / "cache").glob("two-*") if five(path)))
    return first


def five(path: Path) -> bool:
    return json.loads((path / "done.json").read_text())["figures"]["step"] == 5


def same(one: Path, other: Path) -> None:
    assert tiny_runs.metrics(one / "two") == tiny_runs.metrics(other / "two")
    assert tiny_runs.same_weights(one / "two" / "model", other / "two" / "model")


def test_auto_never_and_a_path(whole, rows, run):
    steps = interrupted(whole, rows, run, "b")
    assert sorted(path.name for path in steps.iterdir()) == ["latest", "step_2", "step_3"]
    shutil.copytree(whole / "b", whole / "c")
    shutil.copytree(whole / "b", whole / "d")

    made, said = run(long(whole, rows, "c"), resume="never")
    assert "two" in made and "(it was interrupted, and --resume is never)" in said and "continues" not in said
    same(whole / "c", whole / "whole")

    (folder,) = [path for path in (whole / "cache").glob("two-*") if five(path)]  # is kept: from its settings alone
    shutil.rmtree(folder)
    made, said = run(long(whole, rows, "d"), resume=whole / "d" / "two" / "checkpoints" / "step_2")
    assert "it continues from" in said and "two: continues from step 2" in said
    same(whole / "d", whole / "whole")
    assert json.loads((whole / "d" / "two" / "stage.json").read_text())["continued_from"].endswith("step_2")

    made, said = run(long(whole, rows, "e"), resume=str(steps / "step_3"))  # of another run
    assert made == ["two"] and "two: continues from step 3" in said
    same(whole / "e", whole / "whole")
    assert (steps / "step_3").is_dir()

    made, said = run(long(whole, rows, "b"))
    assert "two: continues from step 3" in said
    same(whole / "b", whole / "whole")


def test_what_follows_from_a_checkpoint_of_other_settings_is_not_kept_for_others(first, rows, run):
    steps = interrupted(first, rows, run, "b")
    made, _ = run(long(first, rows, "c", optimizer=AdamW(lr=1e-3)), resume=steps / "step_2")
    assert made == ["two"] and json.loads((first / "c" / "two" / "stage.json").read_text())["key"] is None
    made, _ = run(long(first, rows, "d", optimizer=AdamW(lr=1e-3)))
    assert made == ["two"]
    assert not tiny_runs.same_weights(first / "c" / "two" / "model", first / "d" / "two" / "model")


def test_a_wrong_path_changes_nothing(first, rows, run):
    steps = interrupted(first, rows, run, "b")
    before = sorted((first / "b").rglob("*"))
    other = long(first, rows, "b", policy=tiny_runs.policy(width=32))
    with pytest.raises(UserError, match=r"two holds a stage that was run otherwise"):
        run(other, resume=steps / "step_2")
    with pytest.raises(UserError, match=r"stage two: .*step_2 does not fit this stage"):
        run(other, resume=steps / "step_2", overwrite=True)
    with pytest.raises(UserError, match=r"--resume: step_2 is no folder"):
        run(long(first, rows, "b"), resume="step_2")
    assert sorted((first / "b").rglob("*")) == before
    with pytest.raises(UserError, match=r"--resume: stage two is finished, so there is nothing to go on with from"):
        run(pipeline(first, rows, "a"), resume=steps / "step_2")


def test_going_on_under_other_versions_is_told_and_not_kept(first, rows, run, monkeypatch):
    interrupted(first, rows, run, "b")
    monkeypatch.setattr("rlhf.stages.run.versions", lambda: {"torch": "0"})
    made, said = run(long(first, rows, "b"))
    assert made == ["two"] and "two: continues; made with other versions: torch: " in said
    assert "its numbers may differ in the last digits" in said
    assert not [path for path in (first / "cache").glob("two-*") if five(path)]


def test_the_default_keeps_them_beside_the_runs(tmp_path, run, monkeypatch):
    monkeypatch.delenv("RLHF_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    usual = Experiment(name="a", output_dir=str(tmp_path), stages={"lone": tiny_runs.sft(steps=1)})
    assert usual.stage_cache == "auto" and run(usual)[0] == ["lone"]
    assert [path.name.partition("-")[0] for path in (tmp_path / ".stages").glob("[!.]*")] == ["lone"]
    assert run(dataclasses.replace(usual, name="b"))[0] == []
    assert os.listdir(tmp_path / "a" / "lone") and Experiment(name="a", stages={}, keep_checkpoints=0).check()[-1] == (
        "keep_checkpoints: is 0; must be at least 1"
    )

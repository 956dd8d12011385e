"""A stage's folder: how it comes about, and how a checkpoint of another comes into it."""

import json
from contextlib import suppress

import pytest

from rlhf.engines.checkpoint import Checkpoints
from rlhf.errors import UserError
from rlhf.files import read_json
from rlhf.interruption import Stopped
from rlhf.stages.folder import (
    adopt,
    check_algorithm,
    check_checkpoint,
    ending_told,
    link_tree,
    new_folder,
    origin,
    read_done,
    write_done,
    write_json,
)


def test_a_new_folder_takes_the_place_of_the_former(tmp_path):
    stage = tmp_path / "sft"
    with new_folder(stage) as folder:
        (folder / "a").write_text("1")

    def half():
        with new_folder(stage) as folder:
            (folder / "b").write_text("2")
            raise UserError("no")

    with pytest.raises(UserError, match="no"):
        half()
    assert [path.name for path in tmp_path.iterdir()] == ["sft"] and (stage / "a").exists()
    with new_folder(stage) as folder:
        (folder / "b").write_text("2")
    assert [path.name for path in tmp_path.iterdir()] == ["sft"] and [path.name for path in stage.iterdir()] == ["b"]


def test_why_a_stage_ended_is_left_in_its_folder_and_gone_when_it_goes_on(tmp_path):
    stage, record = tmp_path / "sft", {"id": "mine"}
    told = stage / "stopped.json"

    def ends(error, record=record):
        with suppress(BaseException), ending_told(stage, record):
            assert not told.exists() or record != {"id": "mine"}
            if error is not None:
                raise error
        return read_json(told)["error"] if told.exists() else None

    assert ends(UserError("before there is a folder")) is None and not stage.exists()
    stage.mkdir()
    write_json(stage / "stage.json", record)
    assert ends(UserError("response 3: nan; mend it")) == "response 3: nan; mend it"
    assert ends(KeyError("x")) == "KeyError: 'x'" and ends(SystemExit(0)) == "SystemExit: 0"
    assert ends(Stopped(2, "step 1 is saved")) == "" and ends(KeyboardInterrupt()) == ""
    ends(ValueError("a"))
    assert ends(UserError("another's"), {"id": "another"}) == "ValueError: a"  # whose folder it is not yet
    assert ends(None) is None


def test_json_and_what_is_damaged(tmp_path):
    write_json(tmp_path / "stage.json", {"a": 1})
    assert read_json(tmp_path / "stage.json") == {"a": 1}
    (tmp_path / "stage.json").write_text("{")
    with pytest.raises(UserError, match=r"stage\.json is damaged .* remove the folder"):
        read_json(tmp_path / "stage.json")


def test_large_files_are_linked_and_small_ones_copied(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "large").write_bytes(bytes(1 << 20))
    (tmp_path / "a" / "small").write_text("x")
    link_tree(tmp_path / "a", tmp_path / "c")
    assert (tmp_path / "c" / "b" / "large").stat().st_nlink == 2
    assert (tmp_path / "c" / "small").stat().st_nlink == 1 and (tmp_path / "c" / "small").read_text() == "x"


@pytest.fixture
def stage(tmp_path):
    """In the middle of iteration 3, after two checkpoints."""
    stage = tmp_path / "run" / "ppo"
    stage.mkdir(parents=True)
    store = Checkpoints(stage / "checkpoints")
    about = {"stage": "ppo", "algorithm": "PPO", "iteration": 2}
    store.save(4, {}, {}, about={**about, "rollouts": 2})
    store.save(6, {}, {}, about={**about, "rollouts": 3})
    (stage / "metrics.jsonl").write_text("{}\n" * 6)
    (stage / "rollouts").mkdir()
    for name in ("iteration_000002", "iteration_000003", "evaluation_000002_ema", "evaluation_000003", "normalization"):
        (stage / "rollouts" / f"{name}.jsonl").write_text("{}\n")
    (stage / "wandb.json").write_text("{}")
    (stage / "tensorboard").mkdir()
    (stage / "tensorboard" / "events").write_text("")
    return stage


@pytest.mark.parametrize(
    ("step", "rollouts"), [(4, ["iteration_000002"]), (6, ["iteration_000002", "iteration_000003"])]
)
def test_a_checkpoint_of_another_stage_comes_with_its_figures(stage, tmp_path, step, rollouts):
    path = stage / "checkpoints" / f"step_{step}"
    assert check_checkpoint(path)["stage"] == "ppo"
    check_algorithm(path, "PPO")
    assert origin(path) == stage
    (tmp_path / "new").mkdir()
    adopt(path, tmp_path / "new", tmp_path / "elsewhere")
    new = tmp_path / "new"
    assert sorted(file.name for file in new.iterdir()) == ["checkpoints", "metrics.jsonl", "rollouts"]
    assert sorted(file.name for file in (new / "checkpoints").iterdir()) == ["latest", f"step_{step}"]
    found = Checkpoints(new / "checkpoints").load()
    assert found is not None and found.path.name == f"step_{step}"
    assert (new / "metrics.jsonl").stat().st_nlink == 1
    there = sorted(file.stem for file in (new / "rollouts").iterdir())
    assert there == sorted([*rollouts, "evaluation_000002_ema", "normalization"])


def test_in_its_own_stage_sinks_go_on(stage, tmp_path):
    (tmp_path / "new").mkdir()
    adopt(stage / "checkpoints" / "step_4", tmp_path / "new", stage)
    assert {"wandb.json", "tensorboard"} <= {file.name for file in (tmp_path / "new").iterdir()}
    assert (tmp_path / "new" / "tensorboard" / "events").exists()


def test_what_is_no_checkpoint_of_the_stage_is_refused(stage, tmp_path):
    step = stage / "checkpoints" / "step_4"

    def refused(path):
        with pytest.raises(UserError) as error:
            check_checkpoint(path)
        return str(error.value)

    assert "is no folder" in refused(tmp_path / "nowhere") and "auto, never" in refused(tmp_path / "alwas")
    for folder in (stage, stage / "checkpoints"):
        text = refused(folder)
        assert "holds checkpoints and is none; give one of" in text and str(step) in text
    assert "no whole checkpoint (there is no ppo/manifest.json)" in refused_without_checkpoints(refused, tmp_path)
    with pytest.raises(UserError, match="is a checkpoint of PPO, and the stage to go on with is SFT"):
        check_algorithm(step, "SFT")
    (stage / "metrics.jsonl").unlink()
    assert "has no metrics.jsonl" in refused(step)
    (step / "rank_0.pt").write_bytes(b"half")
    assert "is no whole checkpoint (rank_0.pt has 4 bytes" in refused(step)
    manifest = json.loads((step / "manifest.json").read_text())
    del manifest["files"]
    (step / "manifest.json").write_text(json.dumps(manifest))
    assert "is no whole checkpoint (manifest.json cannot be read (KeyError" in refused(step)


def refused_without_checkpoints(refused, tmp_path):
    (tmp_path / "empty" / "ppo").mkdir(parents=True)
    return refused(tmp_path / "empty" / "ppo")


def test_the_figures_of_a_finished_stage_are_those_that_it_ended_with(tmp_path):
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text('{"step": 1}\n{"step": 2}\n')
    write_done(tmp_path, {"step": 2}, 1.5)
    done = read_done(tmp_path)
    assert done["figures"] == {"step": 2} and done["seconds"] == 1.5
    for change, why in (
        (lambda: metrics.write_text('{"step": 1}\n'), "it is not as its stage has left it"),
        (metrics.unlink, "it is not there"),
    ):
        change()
        with pytest.raises(UserError, match=rf"metrics.jsonl is damaged \({why}\); put it back, or remove the folder"):
            read_done(tmp_path)
    metrics.write_text('{"step": 1}\n{"step": 2}\n')
    assert read_done(tmp_path) == done
    write_json(tmp_path / "done.json", {"figures": {}, "seconds": 1.0})  # as earlier versions wrote it
    assert read_done(tmp_path)["seconds"] == 1.0
    write_json(tmp_path / "done.json", {"figures": {}})
    with pytest.raises(UserError, match=r"done\.json is damaged"):
        read_done(tmp_path)


def test_a_stage_without_figures_is_finished_too(tmp_path):
    write_done(tmp_path, {}, 0.1)
    assert read_done(tmp_path) == {"figures": {}, "seconds": 0.1}

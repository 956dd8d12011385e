"""What a run has left, read back."""

import json
import os

import pytest
from run_folders import config, curve, simple, stage

from rlhf.errors import UserError
from rlhf.report.runs import Use, read_run, read_runs


def test_stages_with_what_they_use_and_their_state(tmp_path):
    run = read_run(simple(tmp_path / "toy", done=False))
    sft, ppo = run.stages
    assert (run.name, sft.algorithm, ppo.algorithm) == ("toy", "SFT", "PPO")
    assert (sft.state, ppo.state) == ("finished", "unfinished")
    assert sft.uses == [] and ppo.uses == [Use("policy.path", "sft", "model")]
    assert ppo.last_written is not None and run.stage("ppo") is ppo and run.stage("other") is None


@pytest.mark.parametrize(("error", "state"), [("bad\nmore", "failed"), ("", "interrupted"), (None, "unfinished")])
def test_why_a_stage_is_not_finished(tmp_path, error, state):
    ppo = read_run(simple(tmp_path / "toy", done=False)).stages[1]
    if error is not None:
        (ppo.directory / "stopped.json").write_text(json.dumps({"error": error}))
    assert ppo.state == state and ppo.ended_by == ("bad" if error else "")
    (ppo.directory / "done.json").write_text(json.dumps({"figures": {}, "seconds": 1.0}))
    assert read_run(tmp_path / "toy").stages[1].state == "finished"


def test_steps_as_parts_of_iterations(tmp_path):
    config(tmp_path, {"ppo": {"class_path": "rlhf.PPO", "init_args": {}}})
    steps = [(0, 0), (1, 1), (2, 1), (2, 1), (3, 2), (4, 2), (5, 2), (6, 2)]
    stage(tmp_path / "ppo", [{"step": step, "iteration": iteration} for step, iteration in steps])
    (only,) = read_run(tmp_path).stages
    assert only.progress == {0: 0, 1: 0.5, 2: 1, 3: 1.25, 4: 1.5, 5: 1.75, 6: 2}
    stage(tmp_path / "ppo", [{"step": 1, "loss": 1.0}])
    assert read_run(tmp_path).stages[0].progress == {}


def test_a_stage_whose_turn_has_not_come(tmp_path):
    config(tmp_path, {"sft": {"class_path": "rlhf.SFT", "init_args": {}}})
    (only,) = read_run(tmp_path).stages
    assert (only.state, only.metrics, only.last_written, only.data) == ("not started", [], None, {})


def test_texts_that_only_look_like_a_reference_are_none(tmp_path):
    data = {"template": {"class_path": "rlhf.Plain", "init_args": {"prompt_format": "@user {prompt}"}}}
    config(tmp_path, {"sft": {"class_path": "rlhf.SFT", "init_args": {"data": data}}})
    assert read_run(tmp_path).stages[0].uses == []


def test_a_series_leaves_out_what_is_no_number(tmp_path):
    config(tmp_path, {"sft": {"class_path": "rlhf.SFT", "init_args": {}}})
    stage(tmp_path / "sft", [*curve("loss", 1.0, None, 3.0), {"step": 4}])
    (only,) = read_run(tmp_path).stages
    assert only.series("loss") == ([1, 3], [1.0, 3.0], [1, 3])
    assert only.names == ["loss"]


def test_the_data_and_what_was_found_among_their_rows(tmp_path):
    config(tmp_path, {"sft": {"class_path": "rlhf.SFT", "init_args": {}}})
    stage(tmp_path / "sft", [], data={"data": {"toy": {}}, "findings": {"data": ["a line"]}})
    (only,) = read_run(tmp_path).stages
    assert only.data == {"data": {"toy": {}}} and only.data_findings == {"data": ["a line"]}


def test_half_a_line_at_the_end_is_left_out(tmp_path):  # a run that was killed, or is writing now
    config(tmp_path, {"sft": {"class_path": "rlhf.SFT", "init_args": {}}})
    folder = stage(tmp_path / "sft", curve("loss", 1.0))
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "lo')
    assert read_run(tmp_path).stages[0].series("loss").values == [1.0]


def test_evaluations_of_the_average_are_files_of_their_own(tmp_path):
    ppo = read_run(simple(tmp_path / "toy")).stages[1]
    assert list(ppo.rollout_files("evaluation")) == [0, 2] and list(ppo.rollout_files("iteration")) == [1]


def test_runs_of_one_name_are_shown_by_their_folders(tmp_path):
    folders = [simple(tmp_path / side / "toy") for side in ("a", "b")]
    assert [run.name for run in read_runs(folders)] == [str(folder) for folder in folders]


def test_what_is_no_run_is_said(tmp_path):
    with pytest.raises(UserError, match="nowhere does not exist; give the folder of a run"):
        read_run(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"has no config.yaml"):
        read_run(tmp_path)
    simple(tmp_path / "toy")
    with pytest.raises(UserError, match=rf"is one stage of a run; give the run's folder, .*{os.sep}toy$"):
        read_run(tmp_path / "toy" / "ppo")
    with pytest.raises(UserError, match="is a file"):
        read_run(tmp_path / "toy" / "config.yaml")

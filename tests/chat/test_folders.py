"""From what a person names to a model's folder."""

import shutil

import pytest

from rlhf.chat.folders import find_model, find_reward_model
from rlhf.errors import UserError


def test_a_model_a_stage_and_a_run(stage):
    for path in (stage / "model", stage, stage.parent):
        assert find_model(str(path)) == str(stage / "model")
        assert find_model(str(path), ema=True) == str(stage / "ema")
    assert find_model(str(stage / "ema")) == find_model(str(stage / "ema"), ema=True) == str(stage / "ema")


def test_a_run_means_its_last_stage_that_can_talk(stage, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(stage, run / "sft")
    shutil.rmtree(run / "sft" / "ema")
    shutil.copytree(run / "sft", run / "reward")
    (run / "reward" / "model" / "value_head.json").write_text("{}")
    (run / "config.yaml").write_text("name: run\nstages: {sft: {}, reward: {}, ppo: {}}\n")
    assert find_model(str(run)) == str(run / "sft" / "model")
    with pytest.raises(UserError, match=r"none of its stages \(sft, reward, ppo\) has left an averaged policy"):
        find_model(str(run), ema=True)
    assert find_reward_model(str(run / "reward")) == find_reward_model(str(run / "reward" / "model"))


def test_a_hub_name_is_left_to_the_hub():
    assert find_model("owner/name") == "owner/name"


# case H3
def test_what_is_no_model_is_said(stage, tmp_path):
    with pytest.raises(UserError, match=r"gone does not exist"):
        find_model(str(tmp_path / "gone"))
    with pytest.raises(UserError, match=r"has no config.json"):
        find_model(str(tmp_path))
    with pytest.raises(UserError, match=r"neither a stage nor a run"):
        find_model(str(tmp_path), ema=True)
    (tmp_path / "stage.json").write_text("{}")
    with pytest.raises(UserError, match=r"has no model/ \(it has no model\); is the stage finished"):
        find_model(str(tmp_path))
    shutil.copytree(stage / "model", tmp_path / "model")
    with pytest.raises(UserError, match=r"has no ema/ \(it has model\); the average is there where"):
        find_model(str(tmp_path), ema=True)
    with pytest.raises(UserError, match="does not exist"):
        find_reward_model(str(tmp_path / "gone"))

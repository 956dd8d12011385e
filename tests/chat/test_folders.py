"""From what a person names to a model's folder."""

import shutil

import pytest

from rlhf.chat.folders import find_model, find_reward_model
from rlhf.chat.loading import load_speaker
from rlhf.chat.speaker import Speaker
from rlhf.data.templates import Plain
from rlhf.engines.inference import Sampling
from rlhf.errors import UserError
from rlhf.models.lora import LoRA
from rlhf.models.policy import Pretrained
from rlhf.models.storage import save_language_model, save_usage


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


def test_a_stage_that_left_an_adapter(stage, tmp_path):
    folder = tmp_path / "toy" / "ppo" / "model"
    base = str((stage / "model").resolve())
    lm = Pretrained(path=base, lora=LoRA(rank=2, export="adapter")).build(lambda: (), seed=1)
    for name, parameter in lm.module.named_parameters():
        if "lora_B" in name:
            parameter.data.add_(0.5)
    save_language_model(folder, lm.module, lm.tokenizer)
    save_usage(folder, Plain(prompt_format="Q{prompt}A"), Sampling(max_new_tokens=6, greedy=True))
    (folder.parent / "stage.json").write_text("{}")
    (folder.parent.parent / "config.yaml").write_text("name: toy\nstages: {ppo: {}}\n")
    for path in (folder, folder.parent, folder.parent.parent):
        assert find_model(str(path)) == str(folder)
    told = [
        load_speaker(path, name="x", settings={"greedy": True, "max_new_tokens": 6}) for path in (str(folder), base)
    ]
    ids = [one.reply("abc", one.sampling, seed=1, counter=0).ids for one in told]
    assert ids[0] != ids[1]
    again = sample_ids(lm, told[0], "abc")
    assert ids[0] == again


def sample_ids(lm, speaker, text):
    """What the model answers with its adapters on, before they are merged."""
    other = Speaker("live", lm, speaker.template, speaker.sampling)
    return other.reply(text, speaker.sampling, seed=1, counter=0).ids

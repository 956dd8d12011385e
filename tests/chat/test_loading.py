"""A model with what its answers depend on."""

import shutil

import pytest
import tiny_runs

from rlhf.chat.loading import load_speaker, names_of
from rlhf.data.templates import Chat, Plain
from rlhf.engines.inference import Sampling
from rlhf.errors import UserError
from rlhf.loops.offline import OfflineTrainer
from rlhf.loops.stage import OnlineStage


def test_prompted_and_sampled_from_as_in_its_training(stage, speaker):
    assert speaker.template == Plain(prompt_format="Q{prompt}A")
    assert speaker.sampling == Sampling(max_new_tokens=6, temperature=1.5, stop_tokens=["a"])
    other = load_speaker(str(stage / "model"), name="x", settings={"temperature": 0.5, "top_k": 3})
    assert (other.sampling.temperature, other.sampling.top_k, other.sampling.max_new_tokens) == (0.5, 3, 6)


def test_a_model_of_which_no_run_has_told(stage, tmp_path):
    shutil.copytree(stage / "model", tmp_path / "m")
    (tmp_path / "m" / "rlhf.json").unlink()
    bare = load_speaker(str(tmp_path / "m"), name="x")
    assert (bare.template, bare.sampling, bare.system) == (Plain(), Sampling(), None)
    (tmp_path / "m" / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    assert load_speaker(str(tmp_path / "m"), name="x").template == Chat()


def test_the_template_of_both_kinds_of_stages_is_saved(tmp_path):
    template = Plain(prompt_format="<{prompt}>")
    data = tiny_runs.data("demonstration", template=template)
    OfflineTrainer(tiny_runs.sft(data=data, steps=1), tiny_runs.context(tmp_path / "sft")).fit()
    ppo = tiny_runs.ppo(data=tiny_runs.data("prompt", template=template), iterations=1)
    OnlineStage(ppo, tiny_runs.context(tmp_path / "ppo")).fit()
    sft, policy = (load_speaker(str(tmp_path / name / "model"), name=name) for name in ("sft", "ppo"))
    assert sft.template == policy.template == template
    assert sft.sampling == Sampling() and policy.sampling == ppo.sampling


def test_a_reward_model_scores_the_ids_that_were_drawn(speaker, stage, tmp_path):
    trainer = OfflineTrainer(tiny_runs.reward_modelling(steps=1), tiny_runs.context(tmp_path))
    trainer.fit()
    with pytest.raises(UserError, match="has another vocabulary than the policy"):
        load_speaker(str(stage / "model"), name="x", reward=str(tmp_path / "model"))


def test_names_tell_models_apart():
    assert names_of(["runs/a/ppo/model", "runs/a/ppo/ema"]) == ["ppo/model", "ppo/ema"]
    assert names_of(["runs/a/ppo/model", "runs/b/ppo/model"]) == ["a/ppo/model", "b/ppo/model"]
    assert names_of(["m"]) == ["m"] and names_of(["m", "m"]) == ["A: m", "B: m"]

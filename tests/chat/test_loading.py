"""A model with what its answers depend on."""

import shutil

import pytest
import tiny_runs
import torch

from rlhf.chat.loading import load_speaker, names_of
from rlhf.data.templates import Chat, Plain
from rlhf.engines.inference import Sampling
from rlhf.errors import UserError
from rlhf.loops.offline import OfflineTrainer
from rlhf.loops.stage import OnlineStage
from rlhf.models.rewards.scalar import TextScorer
from rlhf.models.storage import load_value_model
from rlhf.types import Sequences


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


def test_a_reward_model_of_another_tokenizer_reads_the_texts(stage, tmp_path, caplog):
    """As in PPO."""
    data = tiny_runs.data("comparison", template=Plain(prompt_format="<{prompt}>"))
    OfflineTrainer(tiny_runs.reward_modelling(steps=1, data=data), tiny_runs.context(tmp_path)).fit()
    speaker = load_speaker(str(stage / "model"), name="x", reward=str(tmp_path / "model"))
    assert "has another vocabulary than the policy" in caplog.text and isinstance(speaker.scorer, TextScorer)
    scorer, given = speaker.scorer, []
    own, template = scorer.tokenizer, scorer.template
    speaker.scorer = lambda rollout: given.append(rollout) or scorer(rollout)
    speaker.reply("ab", speaker.sampling, seed=1, counter=0)
    answer = speaker.reply("cd", speaker.sampling, seed=1, counter=1)
    first, last = speaker.turns[0].said, given[1].text[0]
    ids = [*template.prompt("ab", own), *template.response(first, own), *template.prompt("cd", own)]
    ids += template.response(last, own)[: None if answer.ended else -1]
    model, _ = load_value_model(tmp_path / "model")
    row = torch.tensor([ids])
    alone = model.eval()(Sequences(row, torch.ones_like(row, dtype=torch.bool), 1), want=("scores",)).scores
    assert answer.score == pytest.approx(alone.item(), abs=1e-5)


def test_a_reward_model_that_does_not_say_how_it_reads_is_refused(stage, tmp_path):
    OfflineTrainer(tiny_runs.reward_modelling(steps=1), tiny_runs.context(tmp_path)).fit()
    (tmp_path / "model" / "rlhf.json").unlink()
    with pytest.raises(UserError, match="has another vocabulary than the policy, and no"):
        load_speaker(str(stage / "model"), name="x", reward=str(tmp_path / "model"))


def test_the_system_text_of_the_training_is_the_conversations(saved, tmp_path):
    saved(tmp_path / "m", template=Chat(system="be"), chat_template="turns")
    speaker = load_speaker(str(tmp_path / "m"), name="x")
    tokenizer = speaker.model.tokenizer
    assert speaker.system == "be" and speaker.prompt("ab") == Chat(system="be").prompt("ab", tokenizer)
    speaker.system = None  # /system without a text
    assert speaker.prompt("ab") == Chat().prompt("ab", tokenizer)


def test_names_tell_models_apart():
    assert names_of(["runs/a/ppo/model", "runs/a/ppo/ema"]) == ["ppo/model", "ppo/ema"]
    assert names_of(["runs/a/ppo/model", "runs/b/ppo/model"]) == ["a/ppo/model", "b/ppo/model"]
    assert names_of(["m"]) == ["m"] and names_of(["m", "m"]) == ["A: m", "B: m"]

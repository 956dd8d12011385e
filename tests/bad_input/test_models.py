"""Models that are not there, not whole, of another kind, or that cannot work with the settings."""

import shutil
import time
from pathlib import Path

import pytest
from yaml_stages import SCRATCH, SETTINGS, lines, ppo, pretrained, refused, sft


def test_responses_that_the_model_has_no_positions_for(run):
    told = "max_new_tokens: is 100, but the model has 64 positions (max_position_embeddings), a prompt included; lower"
    refused(run(ppo(sampling={"max_new_tokens": 100})), 2, f"stages.s0.sampling.{told}")
    refused(run(ppo(evaluation={"sampling": {"max_new_tokens": 100}})), 2, f"stages.s0.evaluation.sampling.{told}")
    left = ppo(policy=pretrained("@s0"), sampling={"max_new_tokens": 100})
    refused(run(sft(), left), 2, f"stages.s1.sampling.{told}")  # before s0 is run
    lines(Path("rows.jsonl"), [{"prompt": "abcde="[n % 5 :]} for n in range(10)])
    answer = run(ppo(sampling={"max_new_tokens": 59}))  # there is room for five tokens of a prompt
    refused(answer, 1, "stage s0: sampling.max_new_tokens: is 59, but", "the longest prompt, of 6 tokens, included")


BLEND = "rlhf.data.blenders.Weighted"


def scratch(**settings):
    return {"class_path": "FromScratch", "init_args": {"config": {**SETTINGS, **settings}, "vocab_size": 258}}


def trained(path, **settings):
    return {"class_path": "Pretrained", "init_args": {"path": path, **settings}}


@pytest.mark.parametrize(
    ("stage", "parts"),
    [
        (sft(policy=scratch(model_type="gtp2")), ["s1.policy: config.model_type: gtp2 is unknown; did you mean gpt2?"]),
        (sft(policy=scratch(n_laier=2)), ["s1.policy: config.n_laier: gpt2 has no such setting; did you mean n_layer"]),
        (sft(policy=scratch(n_head=3)), ["s1.policy: config: gpt2 makes no causal language model", "divisible"]),
        (sft(policy=trained("@s0", trainable_layers=9)), ["s1.policy: trainable_layers: 9, but GPT2LMHeadModel has 1"]),
        (
            sft(policy=trained("@s0", lora={"target_modules": ["q_proj"]})),
            ["s1.policy: target_modules: 'q_proj' is no linear layer of GPT2LMHeadModel, which has c_attn, c_fc"],
        ),
        (
            ppo(policy=trained("@s0"), reference=scratch(n_head=5)),
            ["s1.reference: config: gpt2 makes no causal language model"],
        ),
        (
            ppo(policy=trained("@s0"), critic={"class_path": "OwnTrunk", "init_args": {"trainable_layers": 5}}),
            ["s1.critic: trainable_layers: 5, but GPT2Model has 1 blocks"],
        ),
        (
            sft(limits={"blender": {"class_path": BLEND, "init_args": {"weights": {"row": 1}}}}),
            ["s1.data (Data): blender: weights: ['row'] but the sources are ['rows']; name each once"],
        ),
        (
            sft(limits={"blender": {"class_path": "Curriculum", "init_args": {"lessons": [{"weights": {"row": 1}}]}}}),
            ["s1.data (Data): blender: lessons.0.weights.row: the sources are rows"],
        ),
    ],
)
def test_what_cannot_work_is_known_before_the_first_stage(run, here, stage, parts):
    answer = run(sft(), stage)
    refused(answer, 2, *(f"stages.{part}" if part.startswith("s1") else part for part in parts))
    assert not (here / "runs/toy/s0").exists()


# case H3
@pytest.mark.parametrize(
    ("damage", "parts"),
    [
        (lambda m: shutil.rmtree(m), ["does not exist; give the folder of a saved model"]),
        (lambda m: (shutil.rmtree(m), m.write_text("x")), ["is a file; give the folder it lies in"]),
        (lambda m: (m / "config.json").unlink(), ["has no config.json"]),
        (lambda m: (m / "config.json").write_text("{"), ["config.json"]),
        (
            lambda m: (m / "model.safetensors").unlink(),
            ["has no weights (model*.safetensors or", "was the save complete?"],
        ),
        (lambda m: (m / "model.safetensors").write_bytes(b"half"), ["model", "cannot be read"]),
        (lambda m: (m / "tokenizer.json").write_text("{"), ["model", "cannot be read"]),
        (lambda m: [p.unlink() for p in m.glob("*token*")], ["has no tokenizer.json"]),
    ],
)
def test_model_folders(run, here, models, damage, parts):
    shutil.copytree(models / "sft/model", here / "model")
    damage(here / "model")
    answer = run(sft(policy=pretrained("./model")))
    assert answer[0] == (2 if "  stages.s0.policy: " in answer[1] else 1)  # before the first stage, or when loaded
    refused(answer, answer[0], "path: ", "model", *parts)
    assert "repo" not in answer[1] and not (here / "runs/toy/s0").exists()


# case H3
def test_models_of_another_kind(run, here, models):
    scalar = {"class_path": "ScalarReward", "init_args": {"path": str(models / "sft/model")}}
    policy = pretrained(models / "sft/model")
    refused(run(ppo(policy=policy, reward=scalar)), 1, "has no value_head.json, so it is no reward model or critic")
    refused(
        run(sft(policy=pretrained(models / "rm/model"))), 1, "is a reward model or critic; give the folder of a lang"
    )
    other = {"class_path": "OwnTrunk", "init_args": {"path": str(models / "rm/model")}}
    lines(here / "rows.jsonl", [{"prompt": f"{n} questions questions="} for n in range(10)])
    merging = {**SCRATCH, "init_args": {**SCRATCH["init_args"], "vocab_size": 270}}
    refused(run(ppo(critic=other, policy=merging)), 1, "has another vocabulary than the policy")


# case H3
def test_a_hub_name_without_a_network(run, monkeypatch):
    start = time.monotonic()
    answer = run(sft(), sft(policy=pretrained("no-such-model")))
    assert time.monotonic() - start < 10
    refused(
        answer, 2, "stages.s1.policy: path: no-such-model is no folder in ", "hub does not answer", "check the spelling"
    )

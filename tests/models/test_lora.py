"""Low-rank adapters in a model: where they are, that they start as nothing, and that nothing else is trained."""

import pytest
import torch
from tiny_models import FAMILIES, language_model, sequences

from rlhf.models.lora import LoRA, adapters_off, attach, attached, starts_as_base
from rlhf.models.modules import PolicyModel

BATCH = sequences([[5, 6, 7, 8, 9], [20, 3, 41, 17, 2]], 2, left=1)
ALL = {
    "gpt2": {"c_attn", "c_proj", "c_fc"},
    "opt": {"q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"},  # not project_in and project_out
    "llama": {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"},
    "gemma2": {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"},
}


def with_adapters(family="gpt2", *, dtype=torch.float32, layers=None, seed=1, **settings):
    lm = language_model(family, dtype=dtype)
    attach(lm, LoRA(**{"rank": 2, **settings}), seed=seed, base=None, layers=layers)
    return lm


def trained(module) -> set[str]:
    return {name for name, p in module.named_parameters() if p.requires_grad}


def moved(lm, size: float = 0.1):
    """The model after its adapters have learnt something."""
    torch.manual_seed(7)
    with torch.no_grad():
        for name in sorted(trained(lm)):
            lm.get_parameter(name).add_(size * torch.randn(lm.get_parameter(name).shape))
    return lm


def adapted_layers(lm) -> set[str]:
    return {name.split(".lora_")[0] for name in trained(lm)}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_linear_layer_of_the_blocks_is_adapted(family):
    plain, lm = language_model(family), with_adapters(family)
    inside = {
        n for n, m in plain.named_modules() if type(m).__name__ in ("Linear", "Conv1D") and (".0." in n or ".1." in n)
    }
    assert adapted_layers(lm) == inside
    assert {name.rpartition(".")[2] for name in inside} == ALL[family] == set(attached(lm).targets)
    assert trained(lm) == {f"{name}.lora_{factor}.default.weight" for name in inside for factor in "AB"}
    top = with_adapters(family, layers=1)
    assert adapted_layers(top) == {name for name in inside if ".1." in name}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_they_start_as_nothing_and_are_fp32(family, dtype):
    plain, lm = language_model(family, dtype=dtype), with_adapters(family, dtype=dtype)
    assert torch.equal(PolicyModel(lm)(BATCH).logprobs, PolicyModel(plain)(BATCH).logprobs)
    assert starts_as_base(lm) and not starts_as_base(plain)
    assert {lm.get_parameter(name).dtype for name in trained(lm)} == {torch.float32}
    assert {p.dtype for p in lm.parameters() if not p.requires_grad} == {dtype}
    assert not starts_as_base(moved(lm))


def test_a_model_that_trains_more_than_adapters_does_not_start_as_its_base():
    lm = with_adapters()
    lm.transformer.ln_f.weight.requires_grad_(True)
    assert not starts_as_base(lm)


@pytest.mark.parametrize(("settings", "scale"), [({"alpha": 6}, 6 / 4), ({"alpha": 6, "rslora": True}, 6 / 2)])
@pytest.mark.parametrize("family", ["gpt2", "llama"])  # Conv1D holds its weight the other way round
def test_what_an_adapted_layer_answers(family, settings, scale):
    lm = moved(with_adapters(family, rank=4, **settings))
    layer = lm.get_submodule("transformer.h.0.mlp.c_fc" if family == "gpt2" else "model.layers.0.mlp.up_proj")
    x = torch.randn(3, 16)
    a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    assert a.shape == (4, 16) and b.shape[1] == 4
    torch.testing.assert_close(layer(x), layer.base_layer(x) + scale * x @ a.T @ b.T)


def test_a_depends_on_the_seed_only_and_the_random_numbers_go_on():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    lm = language_model("llama")
    torch.manual_seed(3)
    attach(lm, LoRA(rank=2), seed=1, base=None)
    assert torch.equal(torch.rand(2), expected)
    name = "model.layers.0.mlp.up_proj.lora_A.default.weight"
    same, other = (with_adapters("llama", seed=seed).get_parameter(name) for seed in (1, 2))
    assert torch.equal(lm.get_parameter(name), same) and not torch.equal(same, other)


@pytest.mark.parametrize("family", FAMILIES)
def test_switched_off_they_are_not_there(family):
    plain, lm = language_model(family), moved(with_adapters(family))
    model, before = PolicyModel(lm), trained(lm)
    on = model(BATCH).logprobs
    assert (on - PolicyModel(plain)(BATCH).logprobs).abs().max() > 0.01
    with adapters_off(model):
        assert torch.equal(model(BATCH).logprobs, PolicyModel(plain)(BATCH).logprobs)
    assert torch.equal(model(BATCH).logprobs, on) and trained(lm) == before
    with pytest.raises(KeyError), adapters_off(model):
        raise KeyError
    assert torch.equal(model(BATCH).logprobs, on)
    lm.requires_grad_(False)
    with adapters_off(model):
        pass
    assert trained(lm) == set()


def test_their_dropout_acts_in_training_mode_only():
    model = PolicyModel(moved(with_adapters("llama", dropout=0.5)))
    still = model(BATCH).logprobs
    assert torch.equal(model(BATCH).logprobs, still)
    model.train()
    assert not torch.equal(model(BATCH).logprobs, model(BATCH).logprobs)
    with adapters_off(model):
        assert torch.equal(model(BATCH).logprobs, model(BATCH).logprobs)


def test_layers_may_be_named():
    assert adapted_layers(with_adapters("llama", target_modules=["q_proj", "lm_head"])) == {
        "model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.q_proj", "lm_head",
    }  # fmt: skip
    one = with_adapters("gpt2", target_modules=["h.1.attn.c_proj"])
    assert adapted_layers(one) == {"transformer.h.1.attn.c_proj"}
    assert attached(one).targets == ("1.attn.c_proj",)  # shorter ends would find other layers too
    top = with_adapters("gpt2", target_modules=["c_proj"], layers=1)
    assert adapted_layers(top) == {"transformer.h.1.attn.c_proj", "transformer.h.1.mlp.c_proj"}


@pytest.mark.parametrize(("settings", "message"), [
    ({"target_modules": ["c_attn", "q_proj"]},
     "'q_proj' is no linear layer of GPT2LMHeadModel, which has c_attn, c_fc, c_proj, lm_head"),
    ({"target_modules": ["wte"]}, "'wte' is no linear layer"), ({"target_modules": ["attn"]}, "'attn' is no linear"),
    ({"target_modules": ["lm_head"]}, "the output layer is tied to the embedding"),
    ({"target_modules": ["lm_head"], "layers": 1}, "'lm_head' is no linear .* has c_attn, c_fc, c_proj$"),
    ({"layers": 0}, "trainable_layers: 0, but adapters go into 1 to 2 blocks"), ({"layers": 3}, "trainable_layers: 3"),
])  # fmt: skip
def test_layers_that_cannot_be_adapted_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        with_adapters("gpt2", **settings)


def test_a_model_whose_blocks_cannot_be_told_needs_names():
    lm = language_model("gpt2")
    lm.config.num_hidden_layers = 5
    with pytest.raises(ValueError, match=r"no list of 5 blocks; name the layers to adapt in lora\.target_modules"):
        attach(lm, LoRA(), seed=1, base=None)
    attach(lm, LoRA(target_modules=["c_fc"]), seed=1, base=None)
    with pytest.raises(ValueError, match="has adapters already"):
        attach(lm, LoRA(target_modules=["c_fc"]), seed=1, base=None)


@pytest.mark.parametrize(("settings", "message"), [
    ({"rank": 0}, "rank is 0; must be at least 1"), ({"alpha": 0}, "alpha is 0; must be above 0"),
    ({"dropout": 1.0}, "dropout is 1.0"), ({"dropout": -0.1}, "dropout is -0.1"),
    ({"target_modules": []}, "target_modules: it is empty"), ({"target_modules": ["a", ""]}, "one of them is empty"),
])  # fmt: skip
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        LoRA(**settings)

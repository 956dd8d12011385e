"""What a config says reaches the spec, and what a spec cannot say is refused with the reason."""

from __future__ import annotations

from typing import Any

import pytest
from decoders import BASES, build, config_of
from transformers import AutoConfig

from rlhf.engines.inference.families import FAMILIES, spec_of
from rlhf.engines.inference.shards import load
from rlhf.engines.inference.specs import Unsupported

LINEAR = {"rope_type": "linear", "factor": 2.0}
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0}
LONGROPE = {
    "rope_type": "longrope",
    "factor": 2.0,
    "short_factor": [1.0] * 4,
    "long_factor": [2.0] * 4,
    "original_max_position_embeddings": 32,
}


@pytest.mark.parametrize(
    ("family", "settings", "reason"),
    [
        ("llama", {"rope_scaling": DYNAMIC}, "rope_type 'dynamic': not among default, linear, llama3, yarn"),
        ("llama", {"rope_scaling": LONGROPE}, "rope_type 'longrope'"),
        ("gemma3_text", {"rope_scaling": DYNAMIC}, "rope_type 'dynamic'"),
        ("llama", {"hidden_act": "xielu"}, "hidden_act xielu: an activation with weights"),
        ("gpt2", {"activation_function": "prelu"}, "activation_function prelu: an activation with weights"),
        ("opt", {"activation_function": "nonsense"}, "activation_function 'nonsense': not an activation"),
        ("gpt2", {"add_cross_attention": True}, "gpt2: add_cross_attention True"),
        ("gemma2", {"use_bidirectional_attention": True}, "gemma2: use_bidirectional_attention True"),
        ("gemma3_text", {"use_bidirectional_attention": True}, "use_bidirectional_attention True"),
        ("gemma3_text", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ("llama", {"is_causal": False}, "llama: is_causal False"),
        ("llama", {"sliding_window": 4}, "llama: sliding_window 4"),
        ("llama", {"layer_types": ["full_attention", "sliding_attention"]}, "llama: layer_types"),
        ("mistral", {"layer_types": ["full_attention", "sliding_attention"]}, "mistral: layer_types"),
        ("mistral", {"sliding_window": 0}, "sliding_window 0"),
        ("qwen2", {"layer_types": ["full_attention", "sliding_attention"]}, "without a sliding_window"),
        ("llama", {"attention_chunk_size": 8}, "attention_chunk_size 8"),
        ("llama", {"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quantization_config"),
        ("llama", {"num_key_value_heads": 3}, "num_key_value_heads 3: does not divide the 4 query heads"),
        ("llama", {"rope_scaling": LINEAR | {"partial_rotary_factor": 0.5}}, "4 of a head's 8 dimensions are rotated"),
        ("gpt_neox", {"head_dim": 16}, "head_dim 16 with 4 heads and width 32"),
        ("phi", {"rope_scaling": LINEAR, "partial_rotary_factor": 0.125}, "no even number of a head's 8 dimensions"),
        ("phi", {"head_dim": 16}, "head_dim 16 with 4 heads and width 32"),
        ("llama", {"per_layer_config": {0: {"num_key_value_heads": 4}}}, "per_layer_config"),
    ],
)
def test_values_that_a_spec_cannot_say_are_refused(family: str, settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(Unsupported) as refused:
        spec_of(config_of(family, **settings))
    assert reason in str(refused.value)


@pytest.mark.parametrize("family", ("bloom", "mixtral", "gptj", "falcon", "gemma", "gemma3", "phi3", "t5"))
def test_unknown_architectures_are_refused(family: str) -> None:
    with pytest.raises(Unsupported, match=f"model_type {family}: not among gemma2, gemma3_text, gpt2, gpt_neox, llama"):
        spec_of(AutoConfig.for_model(family))


def test_every_family_has_a_tiny_model_in_the_tests() -> None:
    assert FAMILIES.keys() == BASES.keys()


def test_layer_types_that_say_full_attention_everywhere_change_nothing() -> None:
    settings = {"layer_types": ["full_attention", "full_attention"]}
    assert spec_of(config_of("llama", **settings)) == spec_of(config_of("llama"))


@pytest.mark.parametrize("family", BASES)
def test_settings_that_change_no_answer_are_let_through(family: str) -> None:
    harmless = {"use_cache": False, "quantization_config": None, "attention_dropout": 0.3}
    assert spec_of(config_of(family, **harmless)) == spec_of(config_of(family))


def test_weights_without_a_place_in_the_spec_are_refused() -> None:
    import torch

    model = build("qwen2")
    spec = spec_of(model.config)
    state = model.state_dict()
    with pytest.raises(Unsupported, match=r"no place for the weight model.layers.0.self_attn.o_proj.bias"):
        load(spec, state | {"model.layers.0.self_attn.o_proj.bias": torch.zeros(32)})
    with pytest.raises(Unsupported, match=r"no weight model.norm.weight \(1 missing\)"):
        load(spec, {name: weight for name, weight in state.items() if name != "model.norm.weight"})
    with pytest.raises(Unsupported, match=r"model.norm.weight has shape \[0\], not \[32\]"):
        load(spec, state | {"model.norm.weight": torch.zeros(0)})
    old = build("gpt2")
    mask = {"transformer.h.0.attn.bias": torch.ones(1), "transformer.h.1.attn.masked_bias": torch.ones(1)}
    load(spec_of(old.config), old.state_dict() | mask)  # saved by old versions, and no weights


def test_a_tied_model_whose_head_differs_is_refused() -> None:
    model = build("gpt2", tie_word_embeddings=True)
    spec, state = spec_of(model.config), model.state_dict()
    load(spec, {name: weight for name, weight in state.items() if name != "lm_head.weight"})
    load(spec, state | {"lm_head.weight": state["lm_head.weight"].clone()})
    with pytest.raises(Unsupported, match=r"tie_word_embeddings, but lm_head.weight is not the embedding"):
        load(spec, state | {"lm_head.weight": state["lm_head.weight"] + 1})

"""Families of models: from a Hugging Face config to a :class:`~rlhf.engines.inference.specs.DecoderSpec`.

A family's function reads every field of its config that changes a forward pass in evaluation mode. What a spec cannot
say is refused with a reason, so that the caller runs the Hugging Face module instead: slower, never wrong in silence.
Weights that a spec has no place for are found when they are cut (:mod:`~rlhf.engines.inference.shards`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rlhf.engines.inference import fields
from rlhf.engines.inference.specs import Attention, DecoderSpec, Layer, Mlp, Names, Norm, Rotary, Unsupported

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


def spec_of(config: PreTrainedConfig) -> DecoderSpec:
    """The spec of a causal language model.

    Args:
        config: Of the model. The weights it speaks of are those of ``AutoModelForCausalLM``.

    Raises:
        Unsupported: an architecture, or a value of the config, that a spec cannot express.
    """
    read = FAMILIES.get(config.model_type)
    if read is None:
        raise Unsupported(f"model_type {config.model_type}: not among {', '.join(sorted(FAMILIES))}")
    if getattr(config, "is_heterogeneous", False):
        raise Unsupported("per_layer_config: blocks of their own settings are not supported")
    return read(config)


def _layer_norm(eps: float, *, affine: bool = True) -> Norm:
    return Norm(kind="layer", eps=eps, affine=affine, bias=affine)


# ----------------------------------------------------------------------------------------------------------- families


def _gpt2(config: PreTrainedConfig) -> DecoderSpec:
    fields.refuse_foreign(config)
    fields.refuse_head_dim(config)
    head_dim, width = fields.head_dim(config), config.hidden_size
    scale = head_dim**-0.5 if config.scale_attn_weights else 1.0
    norm = _layer_norm(config.layer_norm_epsilon)

    def layer(index: int) -> Layer:
        attention = Attention(
            heads=config.num_attention_heads, kv_heads=config.num_attention_heads, head_dim=head_dim,
            scale=scale / (index + 1) if config.scale_attn_by_inverse_layer_idx else scale,
            softcap=None, window=None, rotary=None, qk_norm=None, qkv_bias=True, out_bias=True,
        )  # fmt: skip
        inner = config.n_inner if config.n_inner is not None else 4 * width
        activation = fields.activation(config, "activation_function")
        mlp = Mlp(width=inner, activation=activation, gated=False, up_bias=True, down_bias=True)
        return Layer(attention=attention, mlp=mlp, residual="pre", norm=norm)

    names = Names(
        embedding="transformer.wte", positions="transformer.wpe", project_in=None, project_out=None,
        final_norm="transformer.ln_f", head="lm_head", block="transformer.h.{}.", qkv=("attn.c_attn",),
        qkv_layout="stacked", qk_norms=None, out="attn.c_proj", gate=None, up="mlp.c_fc", down="mlp.c_proj",
        norms={"attention_norm": "ln_1", "mlp_norm": "ln_2"}, transposed=True,
    )  # fmt: skip
    return DecoderSpec(
        family=config.model_type, vocab_size=config.vocab_size, width=width, embedding_width=width, embedding_scale=1.0,
        max_positions=config.max_position_embeddings, position_offset=0, final_norm=norm,
        layers=tuple(layer(i) for i in range(config.num_hidden_layers)), head_bias=False,
        tied=config.tie_word_embeddings, logit_softcap=None, names=names,
    )  # fmt: skip


def _opt(config: PreTrainedConfig) -> DecoderSpec:
    fields.refuse_foreign(config)
    fields.refuse_head_dim(config)
    head_dim, width, bias = fields.head_dim(config), config.hidden_size, config.enable_bias
    norm = _layer_norm(1e-5, affine=config.layer_norm_elementwise_affine)
    attention = Attention(
        heads=config.num_attention_heads, kv_heads=config.num_attention_heads, head_dim=head_dim, scale=head_dim**-0.5,
        softcap=None, window=None, rotary=None, qk_norm=None, qkv_bias=bias, out_bias=bias,
    )  # fmt: skip
    activation = fields.activation(config, "activation_function")
    mlp = Mlp(width=config.ffn_dim, activation=activation, gated=False, up_bias=bias, down_bias=bias)
    before = config.do_layer_norm_before
    layer = Layer(attention=attention, mlp=mlp, residual="pre" if before else "post", norm=norm)
    normed = before and not getattr(config, "_remove_final_layer_norm", False)
    projected = config.word_embed_proj_dim != width
    names = Names(
        embedding="model.decoder.embed_tokens", positions="model.decoder.embed_positions",
        project_in="model.decoder.project_in" if projected else None,
        project_out="model.decoder.project_out" if projected else None,
        final_norm="model.decoder.final_layer_norm" if normed else None, head="lm_head",
        block="model.decoder.layers.{}.", qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        qkv_layout="separate", qk_norms=None, out="self_attn.out_proj", gate=None, up="fc1", down="fc2",
        norms={"attention_norm": "self_attn_layer_norm", "mlp_norm": "final_layer_norm"}, transposed=False,
    )  # fmt: skip
    return DecoderSpec(
        family=config.model_type, vocab_size=config.vocab_size, width=width,
        embedding_width=config.word_embed_proj_dim, embedding_scale=1.0,
        max_positions=config.max_position_embeddings, position_offset=2,
        layers=(layer,) * config.num_hidden_layers, final_norm=norm if normed else None, head_bias=False,
        tied=config.tie_word_embeddings, logit_softcap=None, names=names,
    )  # fmt: skip


def _rotary_spec(
    config: PreTrainedConfig,
    layers: tuple[Layer, ...],
    names: Names,
    *,
    final_norm: Norm,
    embedding_scale: float = 1.0,
    head_bias: bool = False,
    logit_softcap: float | None = None,
) -> DecoderSpec:
    """What families with rotary positions have in common: positions are in the attention, nothing is projected."""
    return DecoderSpec(
        family=config.model_type, vocab_size=config.vocab_size, width=config.hidden_size,
        embedding_width=config.hidden_size, embedding_scale=embedding_scale, max_positions=None, position_offset=0,
        layers=layers, final_norm=final_norm, head_bias=head_bias, tied=config.tie_word_embeddings,
        logit_softcap=logit_softcap, names=names,
    )  # fmt: skip


def _gpt_neox(config: PreTrainedConfig) -> DecoderSpec:
    fields.refuse_foreign(config)
    fields.refuse_head_dim(config)
    head_dim = fields.head_dim(config)
    norm = _layer_norm(config.layer_norm_eps)
    attention = Attention(
        heads=config.num_attention_heads, kv_heads=config.num_attention_heads, head_dim=head_dim, scale=head_dim**-0.5,
        softcap=None, window=None, qk_norm=None, qkv_bias=config.attention_bias, out_bias=config.attention_bias,
        rotary=fields.rotary(config, "gpt_neox.modeling_gpt_neox.GPTNeoXRotaryEmbedding", head_dim, partial=True),
    )  # fmt: skip
    activation = fields.activation(config, "hidden_act")
    mlp = Mlp(width=config.intermediate_size, activation=activation, gated=False, up_bias=True, down_bias=True)
    residual = "parallel" if config.use_parallel_residual else "pre"
    names = Names(
        embedding="gpt_neox.embed_in", positions=None, project_in=None, project_out=None,
        final_norm="gpt_neox.final_layer_norm", head="lm_head", block="gpt_neox.layers.{}.",
        qkv=("attention.query_key_value",), qkv_layout="interleaved", qk_norms=None, out="attention.dense",
        gate=None, up="mlp.dense_h_to_4h", down="mlp.dense_4h_to_h",
        norms={"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}, transposed=False,
    )  # fmt: skip
    layer = Layer(attention=attention, mlp=mlp, residual=residual, norm=norm)
    return _rotary_spec(config, (layer,) * config.num_hidden_layers, names, final_norm=norm)


def _phi(config: PreTrainedConfig) -> DecoderSpec:
    fields.refuse_foreign(config)
    fields.refuse_head_dim(config)
    head_dim = fields.head_dim(config)
    norm = _layer_norm(config.layer_norm_eps)
    rotary = fields.rotary(config, "phi.modeling_phi.PhiRotaryEmbedding", head_dim, partial=True)
    share = config.rope_parameters.get("partial_rotary_factor", 1.0)
    if int(head_dim * share) != 2 * len(rotary.inv_freq):  # its module splits heads by the one, turns them by the other
        raise Unsupported(f"partial_rotary_factor {share}: no even number of a head's {head_dim} dimensions")
    attention = Attention(
        heads=config.num_attention_heads, kv_heads=fields.kv_heads(config), head_dim=head_dim, scale=head_dim**-0.5,
        softcap=None, window=None, rotary=rotary, qk_norm=norm if config.qk_layernorm else None,
        qkv_bias=True, out_bias=True,
    )  # fmt: skip
    activation = fields.activation(config, "hidden_act")
    mlp = Mlp(width=config.intermediate_size, activation=activation, gated=False, up_bias=True, down_bias=True)
    layer = Layer(attention=attention, mlp=mlp, residual="parallel_shared", norm=norm)
    names = Names(
        embedding="model.embed_tokens", positions=None, project_in=None, project_out=None,
        final_norm="model.final_layernorm", head="lm_head", block="model.layers.{}.",
        qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), qkv_layout="separate",
        qk_norms=("self_attn.q_layernorm", "self_attn.k_layernorm"), out="self_attn.dense", gate=None,
        up="mlp.fc1", down="mlp.fc2", norms={"attention_norm": "input_layernorm"}, transposed=False,
    )  # fmt: skip
    layers = (layer,) * config.num_hidden_layers
    return _rotary_spec(config, layers, names, final_norm=norm, head_bias=True)


_LLAMA_NAMES: dict[str, Any] = {
    "embedding": "model.embed_tokens", "positions": None, "project_in": None, "project_out": None,
    "final_norm": "model.norm", "head": "lm_head", "block": "model.layers.{}.",
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), "qkv_layout": "separate",
    "qk_norms": ("self_attn.q_norm", "self_attn.k_norm"), "out": "self_attn.o_proj", "gate": "mlp.gate_proj",
    "up": "mlp.up_proj", "down": "mlp.down_proj", "transposed": False,
}  # fmt: skip


def _llama_like(
    config: PreTrainedConfig,
    windows: list[int | None],
    rotary: str,
    *,
    qkv_bias: bool = False,
    out_bias: bool = False,
    mlp_bias: bool = False,
    qk_norm: bool = False,
) -> DecoderSpec:
    """Llama, and those that differ in windows, biases and norms of queries and keys."""
    head_dim = fields.head_dim(config)
    norm = Norm(kind="rms", eps=config.rms_norm_eps, affine=True, bias=False)
    angles = fields.rotary(config, rotary, head_dim, partial=False)
    mlp = Mlp(
        width=config.intermediate_size, activation=fields.activation(config, "hidden_act"), gated=True,
        up_bias=mlp_bias, down_bias=mlp_bias,
    )  # fmt: skip

    def layer(window: int | None) -> Layer:
        attention = Attention(
            heads=config.num_attention_heads, kv_heads=fields.kv_heads(config), head_dim=head_dim, scale=head_dim**-0.5,
            softcap=None, window=window, rotary=angles, qk_norm=norm if qk_norm else None, qkv_bias=qkv_bias,
            out_bias=out_bias,
        )  # fmt: skip
        return Layer(attention=attention, mlp=mlp, residual="pre", norm=norm)

    norms = {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
    names = Names(**_LLAMA_NAMES, norms=norms)
    return _rotary_spec(config, tuple(map(layer, windows)), names, final_norm=norm)


def _llama(config: PreTrainedConfig) -> DecoderSpec:
    fields.refuse_foreign(config)
    return _llama_like(
        config, [None] * config.num_hidden_layers, "llama.modeling_llama.LlamaRotaryEmbedding",
        qkv_bias=config.attention_bias, out_bias=config.attention_bias, mlp_bias=config.mlp_bias,
    )  # fmt: skip


def _mistral(config: PreTrainedConfig) -> DecoderSpec:
    fields.refuse_foreign(config, "sliding_window")
    windows = [fields.window(config)] * config.num_hidden_layers
    return _llama_like(config, windows, "mistral.modeling_mistral.MistralRotaryEmbedding")


def _qwen2(config: PreTrainedConfig) -> DecoderSpec:
    fields.refuse_foreign(config, "sliding_window", "layer_types")
    return _llama_like(config, fields.windows(config), "qwen2.modeling_qwen2.Qwen2RotaryEmbedding", qkv_bias=True)


def _qwen3(config: PreTrainedConfig) -> DecoderSpec:
    fields.refuse_foreign(config, "sliding_window", "layer_types")
    bias = config.attention_bias
    rotary = "qwen3.modeling_qwen3.Qwen3RotaryEmbedding"
    return _llama_like(config, fields.windows(config), rotary, qkv_bias=bias, out_bias=bias, qk_norm=True)


def _gemma(config: PreTrainedConfig, rotaries: list[Rotary], *, softcap: float | None, qk_norm: bool) -> DecoderSpec:
    """Gemma 2 and 3: norms before and after each half, a scaled embedding, full and sliding layers."""
    norm = Norm(kind="rms_plus_one", eps=config.rms_norm_eps, affine=True, bias=False)
    activation = fields.activation(config, "hidden_activation")
    mlp = Mlp(width=config.intermediate_size, activation=activation, gated=True, up_bias=False, down_bias=False)

    def layer(window: int | None, rotary: Rotary) -> Layer:
        attention = Attention(
            heads=config.num_attention_heads, kv_heads=fields.kv_heads(config), head_dim=fields.head_dim(config),
            scale=config.query_pre_attn_scalar**-0.5, softcap=softcap, window=window, rotary=rotary,
            qk_norm=norm if qk_norm else None, qkv_bias=config.attention_bias, out_bias=config.attention_bias,
        )  # fmt: skip
        return Layer(attention=attention, mlp=mlp, residual="sandwich", norm=norm)

    norms = {
        "attention_norm": "input_layernorm", "attention_post_norm": "post_attention_layernorm",
        "mlp_norm": "pre_feedforward_layernorm", "mlp_post_norm": "post_feedforward_layernorm",
    }  # fmt: skip
    layers = tuple(map(layer, fields.windows(config), rotaries))
    return _rotary_spec(
        config, layers, Names(**_LLAMA_NAMES, norms=norms), final_norm=norm,
        embedding_scale=config.hidden_size**0.5, logit_softcap=config.final_logit_softcapping,
    )  # fmt: skip


def _gemma2(config: PreTrainedConfig) -> DecoderSpec:
    fields.refuse_foreign(config, "sliding_window", "layer_types")
    angles = fields.rotary(
        config, "gemma2.modeling_gemma2.Gemma2RotaryEmbedding", fields.head_dim(config), partial=False
    )
    return _gemma(config, [angles] * config.num_hidden_layers, softcap=config.attn_logit_softcapping, qk_norm=False)


def _gemma3(config: PreTrainedConfig) -> DecoderSpec:
    fields.refuse_foreign(config, "sliding_window", "layer_types")
    if config.attn_logit_softcapping is not None:
        raise Unsupported("gemma3_text: attn_logit_softcapping is a setting that transformers' module does not read")
    path = "gemma3.modeling_gemma3.Gemma3RotaryEmbedding"
    angles = {
        kind: fields.rotary(config, path, fields.head_dim(config), partial=False, kind=kind)
        for kind in config.layer_types
    }
    return _gemma(config, [angles[kind] for kind in config.layer_types], softcap=None, qk_norm=True)


FAMILIES: dict[str, Callable[[PreTrainedConfig], DecoderSpec]] = {
    "gpt2": _gpt2,
    "opt": _opt,
    "gpt_neox": _gpt_neox,
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "phi": _phi,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
}
"""By ``model_type``."""

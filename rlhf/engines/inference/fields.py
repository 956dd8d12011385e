"""Fields of a Hugging Face config as a spec needs them; values that a spec cannot say are refused with the reason."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlhf.engines.inference.specs import Rotary, Unsupported

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

ROPE_TYPES = ("default", "linear", "llama3", "yarn")
"""Scalings of rotary positions that depend on the config only; others change with the length of the text."""

FOREIGN: dict[str, tuple[Any, ...]] = {
    "layer_types": (None,),  # or full attention everywhere
    "sliding_window": (None,),
    "attention_chunk_size": (None,),
    "use_bidirectional_attention": (None, False),
    "is_causal": (None, True),
    "is_encoder_decoder": (None, False),
    "add_cross_attention": (None, False),
    "num_kv_shared_layers": (None, 0),
    "quantization_config": (None,),
}
"""Fields that transformers' masks and caches read from any config, with the values that change nothing."""


def refuse_foreign(config: PreTrainedConfig, *known: str) -> None:
    """Refuses fields of other families, which this one's code reads by accident, or not at all.

    Args:
        config: Of the model.
        *known: Those of them that are the family's own.

    Raises:
        Unsupported: one is set.
    """
    for name, harmless in FOREIGN.items():
        value = getattr(config, name, None)
        if name == "layer_types" and set(value or ()) <= {"full_attention"}:
            continue
        if name not in known and value not in harmless:
            raise Unsupported(f"{config.model_type}: {name} {value!r} is not supported")


def activation(config: PreTrainedConfig, field: str) -> str:
    """The activation's name, where ``ACT2FN`` knows it and it has no weights."""
    from transformers.activations import ACT2FN

    name = getattr(config, field)
    if not isinstance(name, str) or name not in ACT2FN:
        raise Unsupported(f"{field} {name!r}: not an activation of transformers")
    module = ACT2FN[name]
    if [*module.parameters(), *module.buffers()]:
        raise Unsupported(f"{field} {name}: an activation with weights is not supported")
    return name


def rotary(config: PreTrainedConfig, module: str, head_dim: int, *, partial: bool, kind: str | None = None) -> Rotary:
    """The angles as the family's own module makes them.

    Args:
        config: Of the model.
        module: The class, such as ``llama.modeling_llama.LlamaRotaryEmbedding``.
        head_dim: Width of a head.
        partial: Whether the family can leave dimensions of a head unrotated.
        kind: The layer type, where each has its own angles.
    """
    import importlib

    parameters: Any = getattr(config, "rope_parameters", None) or {}
    parameters = parameters if kind is None else parameters.get(kind) or {}
    rope_type = parameters.get("rope_type")
    if rope_type not in ROPE_TYPES:
        raise Unsupported(f"rope_type {rope_type!r}: not among {', '.join(ROPE_TYPES)}")
    path, name = module.rsplit(".", 1)
    try:
        made = getattr(importlib.import_module(f"transformers.models.{path}"), name)(config)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise Unsupported(f"rope_parameters {parameters}: {error!r}") from error
    prefix = "" if kind is None else f"{kind}_"
    inv_freq = tuple(getattr(made, f"{prefix}inv_freq").tolist())
    rotated = 2 * len(inv_freq)
    if rotated > head_dim or (rotated != head_dim and not partial):
        raise Unsupported(f"rope_parameters {parameters}: {rotated} of a head's {head_dim} dimensions are rotated")
    return Rotary(inv_freq=inv_freq, scaling=float(getattr(made, f"{prefix}attention_scaling")))


def head_dim(config: PreTrainedConfig) -> int:
    """Width of a head."""
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def refuse_head_dim(config: PreTrainedConfig) -> None:
    """For families whose heads divide the width: some of their code reads ``head_dim`` all the same, some does not."""
    if head_dim(config) * config.num_attention_heads != config.hidden_size:
        raise Unsupported(
            f"head_dim {head_dim(config)} with {config.num_attention_heads} heads and width {config.hidden_size}: "
            f"{config.model_type} divides its width among its heads"
        )


def kv_heads(config: PreTrainedConfig) -> int:
    """Number of key-value heads."""
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    if heads % kv_heads:
        raise Unsupported(f"num_key_value_heads {kv_heads}: does not divide the {heads} query heads")
    return kv_heads


def windows(config: PreTrainedConfig) -> list[int | None]:
    """The window of each layer, from ``layer_types``."""
    if len(config.layer_types) != config.num_hidden_layers:
        raise Unsupported(f"layer_types: {len(config.layer_types)} of them for {config.num_hidden_layers} layers")
    found: list[int | None] = []
    for kind in config.layer_types:
        if kind not in ("full_attention", "sliding_attention"):
            raise Unsupported(f"layer_types {kind!r}: neither full_attention nor sliding_attention")
        found.append(window(config) if kind == "sliding_attention" else None)
        if kind == "sliding_attention" and found[-1] is None:
            raise Unsupported("layer_types sliding_attention without a sliding_window")
    return found


def window(config: PreTrainedConfig) -> int | None:
    """How many positions a sliding layer sees; None: all."""
    if config.sliding_window is not None and config.sliding_window < 1:
        raise Unsupported(f"sliding_window {config.sliding_window}: no position is seen")
    return config.sliding_window

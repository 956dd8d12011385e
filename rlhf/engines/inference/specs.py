"""What a decoder-only language model computes, said as data.

A :class:`DecoderSpec` holds everything that :mod:`~rlhf.engines.inference.decoder` needs besides weights, and nothing
that a forward pass would have to guess: no family is named in the decoder, and no field has a default that a config
could silently differ from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


class Unsupported(Exception):
    """A model that the decoder cannot express; the text is the reason. Its Hugging Face forward can still be used."""


@dataclass(frozen=True, kw_only=True)
class Norm:
    """A normalisation over the last dimension, computed in fp32.

    Attributes:
        kind: ``layer`` (mean and variance), ``rms``, or ``rms_plus_one``, which multiplies by 1 + weight, in fp32.
        eps: Added to the variance.
        affine: Whether there are weights.
        bias: Whether a bias is added.
    """

    kind: Literal["layer", "rms", "rms_plus_one"]
    eps: float
    affine: bool
    bias: bool


@dataclass(frozen=True, kw_only=True)
class Rotary:
    """Rotary positions over the first 2 · len(inv_freq) dimensions of a head, halves rotated against one another.

    Attributes:
        inv_freq: Angle per position of each pair of dimensions; any scaling of positions is in them already.
        scaling: Factor of cosine and sine.
    """

    inv_freq: tuple[float, ...]
    scaling: float


@dataclass(frozen=True, kw_only=True)
class Attention:
    """Causal self-attention with grouped queries.

    Attributes:
        heads: Query heads; consecutive ones share a key-value head.
        kv_heads: Key-value heads.
        head_dim: Width of a head.
        scale: Factor of the scores.
        softcap: Scores become softcap · tanh(score / softcap). None: they stay.
        window: How many positions are seen, the own one among them. None: all.
        rotary: None: positions are not in the attention.
        qk_norm: Of each query and key head, before the rotation. None: there is none.
        qkv_bias: Whether queries, keys and values have a bias.
        out_bias: Whether the output projection has one.
    """

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    softcap: float | None
    window: int | None
    rotary: Rotary | None
    qk_norm: Norm | None
    qkv_bias: bool
    out_bias: bool


@dataclass(frozen=True, kw_only=True)
class Mlp:
    """down(act(up(x))), or down(act(gate(x)) · up(x)).

    Attributes:
        width: Inner width.
        activation: A name of ``transformers.activations.ACT2FN`` without weights.
        gated: Whether there is a gate.
        up_bias: Whether up and gate have a bias.
        down_bias: Whether down has one.
    """

    width: int
    activation: str
    gated: bool
    up_bias: bool
    down_bias: bool


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One block.

    Attributes:
        attention: Its first half.
        mlp: Its second half.
        residual: ``pre``: x + f(norm(x)). ``post``: norm(x + f(x)). ``sandwich``: x + norm(f(norm(x))).
            ``parallel``: x + attention(norm(x)) + mlp(norm(x)), each with its norm. ``parallel_shared``: with one.
        norm: Of all norms of the block.
    """

    attention: Attention
    mlp: Mlp
    residual: Literal["pre", "post", "sandwich", "parallel", "parallel_shared"]
    norm: Norm


@dataclass(frozen=True, kw_only=True)
class Names:
    """Where the weights are in the Hugging Face module. Those of a block stand behind its prefix.

    Attributes:
        embedding: Module of the token embedding.
        positions: Of the learned positions, or None.
        project_in: From the embedding's width to the model's, or None.
        project_out: The way back before the head, or None.
        final_norm: After the last block, or None.
        head: The output layer.
        block: Prefix of block ``{}``.
        qkv: Modules of queries, keys and values, or the one that holds all three.
        qkv_layout: ``separate``; ``stacked``: all queries, all keys, all values; ``interleaved``: query, key and value
            of the first head, then of the second, …
        qk_norms: Norms of queries and keys.
        out: The attention's output projection.
        gate: Module of the gate, or None.
        up: Of the MLP's way up.
        down: Of its way down.
        norms: By local name: those that ``residual`` asks for.
        transposed: Whether the blocks' linear layers are stored as [in, out].
    """

    embedding: str
    positions: str | None
    project_in: str | None
    project_out: str | None
    final_norm: str | None
    head: str
    block: str
    qkv: tuple[str, ...]
    qkv_layout: Literal["separate", "stacked", "interleaved"]
    qk_norms: tuple[str, str] | None
    out: str
    gate: str | None
    up: str
    down: str
    norms: dict[str, str]
    transposed: bool


NORMS = {
    "pre": ("attention_norm", "mlp_norm"),
    "post": ("attention_norm", "mlp_norm"),
    "sandwich": ("attention_norm", "attention_post_norm", "mlp_norm", "mlp_post_norm"),
    "parallel": ("attention_norm", "mlp_norm"),
    "parallel_shared": ("attention_norm",),
}
"""The norms of a block, by its ``residual``."""


@dataclass(frozen=True, kw_only=True)
class DecoderSpec:
    """A whole decoder.

    Attributes:
        family: Hugging Face's ``model_type``.
        vocab_size: Number of logits.
        width: Of the hidden state.
        embedding_width: Of the token embedding; another than ``width`` where there are projections.
        embedding_scale: Factor of the token embedding, rounded to the weights' dtype.
        max_positions: Rows of the table of learned positions that may be used. None: positions are not learned.
        position_offset: Row of the first position in that table.
        layers: The blocks.
        final_norm: None: the last block's output goes to the head as it is.
        head_bias: Whether the head has a bias.
        tied: Whether the head's weight is the embedding's.
        logit_softcap: Logits become softcap · tanh(logit / softcap). None: they stay.
        names: Where the weights are.
    """

    family: str
    vocab_size: int
    width: int
    embedding_width: int
    embedding_scale: float
    max_positions: int | None
    position_offset: int
    layers: tuple[Layer, ...]
    final_norm: Norm | None
    head_bias: bool
    tied: bool
    logit_softcap: float | None
    names: Names

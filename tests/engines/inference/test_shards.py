"""Shards of all ranks are together the model, each element where it belongs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from decoders import BASES, VOCAB, build, config_of
from einops import rearrange

from rlhf.engines.inference.families import spec_of
from rlhf.engines.inference.shards import HeadPart, head_part, load, part, plan, shapes
from rlhf.engines.inference.specs import Unsupported


def spec(family: str, **settings: Any):
    return spec_of(config_of(family, **settings))


@pytest.mark.parametrize("family", BASES)
@pytest.mark.parametrize("tp", (1, 2, 4))
def test_every_element_of_every_parameter_is_held_and_divided_ones_once(family: str, tp: int) -> None:
    model = build(family, tie_word_embeddings=False)
    held = {name: torch.zeros(weight.shape, dtype=torch.int64) for name, weight in model.named_parameters()}
    for rank in range(tp):
        for tensor in plan(spec_of(model.config), rank, tp).values():
            rows = [range(piece.at, piece.at + piece.rows[1] - piece.rows[0]) for piece in tensor.pieces]
            filled = Counter(row for piece in rows for row in piece)
            assert set(filled.values()) <= {1} and max(filled, default=-1) < tensor.shape[0]
            for piece in tensor.pieces:
                piece.of(held[piece.parameter]).add_(1)
    assert {name: tuple(count.shape) for name, count in held.items()} == shapes(spec_of(model.config))
    added_once = ("out_proj.bias", "c_proj.bias", "dense.bias", "dense_4h_to_h.bias", "fc2.bias")
    for name, count in held.items():
        if tp == 4 and ("k_proj" in name or "v_proj" in name) and family != "opt":
            assert set(count.flatten().tolist()) == {2}, name  # two heads for four ranks
            continue
        whole = name.endswith(added_once) or any(mark in name for mark in ("norm", "ln_", "positions", "wpe"))
        assert set(count.flatten().tolist()) == {tp if whole else 1}, name


@pytest.mark.parametrize(
    ("heads", "kv", "rank", "tp", "expected"),
    [
        (8, 8, 1, 2, HeadPart((4, 8), (4, 5, 6, 7), 1)),
        (8, 4, 1, 2, HeadPart((4, 8), (2, 3), 2)),
        (8, 1, 1, 2, HeadPart((4, 8), (0,), 4)),
        (8, 2, 2, 4, HeadPart((4, 6), (1,), 2)),
        (6, 3, 0, 2, HeadPart((0, 3), (0, 0, 1), 1)),  # a group and a half: key-value head 0 for each of two queries
        (6, 3, 1, 2, HeadPart((3, 6), (1, 2, 2), 1)),
        (3, 3, 0, 2, HeadPart((0, 1), (0,), 1)),
        (3, 3, 1, 2, HeadPart((1, 3), (1, 2), 1)),
        (12, 2, 1, 3, HeadPart((4, 8), (0, 1), 2)),
    ],
)
def test_queries_have_their_key_value_heads_beside_them(heads, kv, rank, tp, expected) -> None:
    attention = spec("llama", num_attention_heads=heads, num_key_value_heads=kv, hidden_size=8 * heads).layers[0]
    assert head_part(attention.attention, rank, tp) == expected


def test_shares_are_contiguous_and_even() -> None:
    assert [part(7, rank, 3) for rank in range(3)] == [(0, 2), (2, 4), (4, 7)]


def test_columns_and_rows_of_llama() -> None:
    model = build("llama", tie_word_embeddings=False)
    state, second = model.state_dict(), load(spec_of(model.config), model, 1, 2)
    block = "model.layers.1."
    q, k, v = (state[f"{block}self_attn.{name}_proj.weight"] for name in "qkv")
    assert torch.equal(second["layers.1.qkv.weight"], torch.cat([q[16:], k[8:], v[8:]]))
    gate, up = state[f"{block}mlp.gate_proj.weight"], state[f"{block}mlp.up_proj.weight"]
    assert torch.equal(second["layers.1.up.weight"], torch.cat([gate[18:], up[18:]]))
    assert torch.equal(second["layers.1.out.weight"], state[f"{block}self_attn.o_proj.weight"][:, 16:])
    assert torch.equal(second["layers.1.down.weight"], state[f"{block}mlp.down_proj.weight"][:, 18:])
    padding = torch.zeros(1, 32)  # 51 entries are 26 and 25
    assert torch.equal(second["head.weight"], torch.cat([state["lm_head.weight"][26:], padding]))
    assert torch.equal(second["embedding.weight"], torch.cat([state["model.embed_tokens.weight"][26:], padding]))


def test_transposed_weights_of_gpt2() -> None:
    model = build("gpt2")
    state, second = model.state_dict(), load(spec_of(model.config), model, 1, 2)
    q, k, v = state["transformer.h.0.attn.c_attn.weight"].t().split(32)
    assert torch.equal(second["layers.0.qkv.weight"], torch.cat([q[16:], k[16:], v[16:]]))
    assert torch.equal(second["layers.0.out.weight"], state["transformer.h.0.attn.c_proj.weight"].t()[:, 16:])
    assert torch.equal(second["layers.0.out.bias"], state["transformer.h.0.attn.c_proj.bias"])
    assert "head.weight" not in second


def test_interleaved_heads_of_gpt_neox() -> None:
    model = build("gpt_neox")
    fused = model.state_dict()["gpt_neox.layers.0.attention.query_key_value.weight"]
    expected = rearrange(fused, "(heads kind width) inputs -> kind heads width inputs", kind=3, heads=4)[:, 2:]
    found = load(spec_of(model.config), model, 1, 2)["layers.0.qkv.weight"]
    assert torch.equal(found, rearrange(expected, "kind heads width inputs -> (kind heads width) inputs"))


def test_copies_are_of_the_dtype_asked_for_and_share_no_memory() -> None:
    model = build("llama")
    weights = load(spec_of(model.config), model, dtype=torch.bfloat16)
    assert {weight.dtype for weight in weights.values()} == {torch.bfloat16}
    weights = load(spec_of(model.config), model)
    weights["final_norm.weight"].zero_()
    assert model.state_dict()["model.norm.weight"].all()


def test_more_ranks_than_heads_are_refused() -> None:
    with pytest.raises(Unsupported, match="over 5 ranks: a layer has 4 heads and an MLP of width 36; at most 4 can"):
        plan(spec("llama"), 0, 5)
    with pytest.raises(Unsupported, match="over 4 ranks: too many for 5 vocabulary entries"):
        plan(spec("llama", vocab_size=5), 0, 4)
    assert plan(spec("llama", vocab_size=VOCAB), 3, 4)["embedding.weight"].shape == (13, 32)

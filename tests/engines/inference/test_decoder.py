"""The decoder says what Hugging Face's modules say: every family, alone and as two ranks."""

from __future__ import annotations

import dataclasses
from typing import Any

import decoders
import pytest
import torch
from decoders import BASES, NEW, PROMPTS, build, check_parity, decoder_of, gap, ours, plain

from rlhf.engines.inference.cache import CacheFull

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
LINEAR = {"rope_type": "linear", "factor": 3.0}

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((family, {"tie_word_embeddings": tied}) for family in BASES for tied in (True, False)),
    ("gpt2", {"n_inner": 20, "activation_function": "relu"}),
    ("gpt2", {"scale_attn_weights": False}),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True, "reorder_and_upcast_attn": True}),
    ("gpt2", {"layer_norm_epsilon": 0.1, "n_head": 1}),
    ("opt", {"do_layer_norm_before": False, "word_embed_proj_dim": 12}),
    ("opt", {"word_embed_proj_dim": 40, "tie_word_embeddings": False, "activation_function": "gelu"}),
    ("opt", {"enable_bias": False}),
    ("opt", {"layer_norm_elementwise_affine": False}),
    ("opt", {"_remove_final_layer_norm": True}),
    ("gpt_neox", {"use_parallel_residual": False, "hidden_act": "gelu_new"}),
    ("gpt_neox", {"attention_bias": False, "rotary_pct": 1.0}),
    ("gpt_neox", {"rotary_pct": 0.5, "rope_scaling": LINEAR}),
    ("gpt_neox", {"rotary_emb_base": 100, "hidden_act": "gelu_fast"}),
    ("llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 10}),
    ("llama", {"num_key_value_heads": 1, "hidden_act": "gelu"}),
    ("llama", {"num_key_value_heads": 4, "rope_theta": 50.0}),
    ("llama", {"rope_scaling": LINEAR}),
    ("llama", {"rope_scaling": LLAMA3}),
    ("llama", {"rope_scaling": YARN}),
    ("llama", {"rope_scaling": YARN | {"attention_factor": 1.5, "beta_fast": 16.0}}),
    ("mistral", {"sliding_window": None, "head_dim": 12}),
    ("mistral", {"sliding_window": 1, "num_key_value_heads": 1}),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}),
    ("qwen2", {"num_key_value_heads": 1, "rope_scaling": YARN}),
    ("qwen3", {"attention_bias": True}),
    ("qwen3", {"use_sliding_window": True, "sliding_window": 6, "layer_types": ["sliding_attention"] * 2}),
    ("phi", {"qk_layernorm": True, "partial_rotary_factor": 1.0}),
    ("phi", {"num_key_value_heads": 4, "partial_rotary_factor": 0.25, "hidden_act": "relu"}),
    ("gemma2", {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}),
    ("gemma2", {"attn_logit_softcapping": None, "final_logit_softcapping": None}),
    ("gemma2", {"attention_bias": True, "num_key_value_heads": 1, "layer_types": ["full_attention"] * 2}),
    ("gemma2", {"rope_scaling": LINEAR, "hidden_activation": "gelu"}),
    ("gemma3_text", {"rope_scaling": LINEAR, "rope_local_base_freq": 100.0, "rope_theta": 1000.0}),
    ("gemma3_text", {"attention_bias": True, "final_logit_softcapping": 2.0, "num_key_value_heads": 4}),
]
TWO_RANKS: list[tuple[str, dict[str, Any]]] = [
    *((family, {}) for family in BASES),
    ("llama", {"num_key_value_heads": 1, "attention_bias": True, "mlp_bias": True}),
    ("llama", {"num_attention_heads": 3, "num_key_value_heads": 3, "hidden_size": 30, "intermediate_size": 35}),
    ("gpt2", {"n_head": 3, "n_embd": 30}),
    ("opt", {"do_layer_norm_before": False, "word_embed_proj_dim": 12}),
    ("gpt_neox", {"use_parallel_residual": False, "hidden_size": 30, "num_attention_heads": 3, "rotary_pct": 0.5}),
    ("phi", {"qk_layernorm": True, "tie_word_embeddings": True}),
    ("qwen3", {"num_attention_heads": 6, "num_key_value_heads": 3, "hidden_size": 36}),
]


def name(case: tuple[str, dict[str, Any]]) -> str:
    family, settings = case
    return "-".join([family, *(f"{key}={value}" for key, value in settings.items() if not isinstance(value, dict))])


@pytest.mark.parametrize("case", VARIANTS, ids=name)
def test_greedy_text_and_logprobs_are_those_of_hugging_face(case) -> None:
    model = build(case[0], **case[1])
    check_parity(ours(decoder_of(model)), plain(model))


@pytest.mark.slow
@pytest.mark.parametrize("seed", (1, 2))
@pytest.mark.parametrize("case", VARIANTS, ids=name)
def test_other_weights(case, seed) -> None:
    model = build(case[0], seed=seed, **case[1])
    check_parity(ours(decoder_of(model), new=40), plain(model, new=40))


@pytest.mark.parametrize("family", BASES)
def test_bf16_is_no_further_from_fp32_than_twice_hugging_face_is(family) -> None:
    exact = plain(build(family))
    model = build(family, dtype=torch.bfloat16)
    theirs, found = plain(model, forced=exact.ids), ours(decoder_of(model), forced=exact.ids)
    assert gap(found, exact) <= 2 * gap(theirs, exact)
    assert (found.logprobs - exact.logprobs).abs().mean() <= 2 * (theirs.logprobs - exact.logprobs).abs().mean()


# ---------------------------------------------------------------------------------------------------------- two ranks


def check_two_ranks(processes, cases) -> None:
    for case, answers in zip(cases, zip(*processes.run(decoders.under_tp, cases), strict=True), strict=True):
        expected = plain(build(case[0], **case[1]))
        for found in answers:
            check_parity(found.answer, expected)
        assert torch.equal(answers[0].answer.logprobs, answers[1].answer.logprobs), name(case)


def test_two_ranks_say_what_one_module_says(two_processes) -> None:
    check_two_ranks(two_processes, TWO_RANKS[:11])


@pytest.mark.slow
def test_two_ranks_with_heads_and_widths_that_two_does_not_divide(two_processes) -> None:
    check_two_ranks(two_processes, TWO_RANKS[11:])


@pytest.mark.slow
def test_two_ranks_say_every_variant(two_processes) -> None:
    check_two_ranks(two_processes, [case for case in VARIANTS if case[1].get("n_head") != 1])


def test_collectives_of_a_token_are_one_for_each_half_of_a_block_and_one_at_either_end(two_processes) -> None:
    cases = [("llama", {}), ("gpt_neox", {}), ("gpt_neox", {"use_parallel_residual": False}), ("phi", {})]
    for found in two_processes.run(decoders.under_tp, cases):
        sequential, parallel = 1 + 2 * 2 + 1, 1 + 2 + 1
        assert [case.calls for case in found] == [[n] * NEW for n in (sequential, parallel, sequential, parallel)]
        width, rows, padded = 32, len(PROMPTS), (decoders.VOCAB + 1) // 2
        assert found[0].bytes_of_last_step == 4 * rows * (5 * width + padded)


def test_bf16_on_two_ranks(two_processes) -> None:
    exact = plain(build("llama"))
    theirs = plain(build("llama", dtype=torch.bfloat16), forced=exact.ids)
    for (found,) in two_processes.run(decoders.under_tp, [("llama", {"dtype": torch.bfloat16})], forced=exact.ids):
        assert gap(found.answer, exact) <= 2 * gap(theirs, exact)


# ------------------------------------------------------------------------------------------------- any rows at a time


@pytest.mark.parametrize("family", ("gpt2", "mistral", "gemma2"))
def test_rows_are_read_in_parts_and_continued_in_one_call_while_others_leave(family) -> None:
    model = build(family)
    decoder, expected = decoder_of(model), plain(model)
    cache = decoder.cache(5)
    first, second, third = cache.open(), cache.open(), cache.open()

    def step(*reads: tuple[int, list[int]]) -> list[torch.Tensor]:
        ids = torch.tensor([token for _, tokens in reads for token in tokens])
        logits = decoder.forward(ids, [row for row, _ in reads], [len(tokens) for _, tokens in reads], cache)
        return list(logits.float().log_softmax(-1))

    def same(found: torch.Tensor, row: int, t: int) -> None:
        assert (found - expected.logprobs[row, t]).abs().max() < 1e-4

    tokens = expected.ids.tolist()
    found = step((third, PROMPTS[3][:5]), (first, PROMPTS[1]))
    same(found[1], 1, 0)
    found = step((first, [tokens[1][0]]), (second, PROMPTS[0]), (third, PROMPTS[3][5:]))
    same(found[0], 1, 1)
    same(found[1], 0, 0)
    same(found[2], 3, 0)
    found = step((third, [tokens[3][0]]), (second, tokens[0][:3]))
    same(found[0], 3, 1)
    same(found[1], 0, 3)
    cache.close(second)
    found = step((first, [tokens[1][1]]), (third, [tokens[3][1]]))
    same(found[0], 1, 2)
    same(found[1], 3, 2)
    fourth = cache.open()
    assert fourth == second
    cache.close(first)
    found = step((fourth, PROMPTS[2]), (third, [tokens[3][2]]))
    same(found[0], 2, 0)
    same(found[1], 3, 3)


def test_texts_longer_than_a_block_go_over_its_border() -> None:
    model = build("llama", max_position_embeddings=256)
    prompts = [[*range(40)], [*range(31)], [*range(32)], [1], [*range(50), *range(50)]]
    check_parity(ours(decoder_of(model), prompts, new=8), plain(model, prompts, new=8))


def test_a_row_that_was_not_finite_leaves_nothing_to_those_after_it() -> None:
    model = build("llama")
    decoder, cache = decoder_of(model), decoder_of(model).cache(2)
    row = cache.open()
    healthy = decoder.forward(torch.tensor([1, 2, 3]), [row], [3], cache)
    other = cache.open()
    cache.storage[:, :, cache.tables[row]] = torch.nan
    assert decoder.forward(torch.tensor([4]), [row], [1], cache).isnan().all()
    assert decoder.forward(torch.tensor([4]), [other], [1], cache).isfinite().all()  # beside it
    cache.close(row)
    again = cache.open()
    assert torch.equal(decoder.forward(torch.tensor([1, 2, 3]), [again], [3], cache), healthy)
    assert decoder.forward(torch.tensor([4]), [again], [1], cache).isfinite().all()


def test_a_call_that_finds_no_room_changes_nothing() -> None:
    decoder = decoder_of(build("llama"))
    cache = decoder.cache(1)
    row, other = cache.open(), cache.open()
    decoder.forward(torch.tensor([1, 2]), [row], [2], cache)
    with pytest.raises(CacheFull, match="1 blocks of 32 positions needed, 0 of 1 free"):
        decoder.forward(torch.tensor([3, 4]), [row, other], [1, 1], cache)
    assert cache.lengths == {row: 2, other: 0}
    with pytest.raises(ValueError, match="51: the vocabulary has 51"):
        decoder.forward(torch.tensor([51]), [row], [1], cache)
    with pytest.raises(ValueError, match="do not fit"):
        decoder.forward(torch.tensor([1, 1]), [row, row], [1, 1], cache)
    learned = decoder_of(build("opt", max_position_embeddings=4))
    cache = learned.cache(1)
    with pytest.raises(ValueError, match="5 positions: the model has learned 4"):
        learned.forward(torch.arange(5), [cache.open()], [5], cache)
    assert cache.lengths == {0: 0}


@pytest.mark.parametrize("tied", (True, False))
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_packed_matrices_say_the_same_and_are_packed_again_after_a_change(tied: bool, dtype: torch.dtype) -> None:
    model = build("opt", dtype=dtype, tie_word_embeddings=tied, word_embed_proj_dim=12)
    decoder, plain_decoder = decoder_of(model), decoder_of(model)
    decoder.pack()
    matrices = {name: weight for name, weight in decoder.weights.items() if "norm" not in name and weight.dim() == 2}
    del matrices["positions.weight"]
    if not tied:
        del matrices["embedding.weight"]
    assert decoder.packed_bytes in (0, sum(weight.nbytes for weight in matrices.values()))
    expected = ours(plain_decoder)
    tolerance = 1e-4 if dtype == torch.float32 else 2 * gap(plain(model, forced=expected.ids), expected)
    assert gap(ours(decoder, forced=expected.ids), expected) <= tolerance
    for changed in (decoder, plain_decoder):
        for weight in changed.weights.values():
            weight.mul_(1.1)
    decoder.pack()
    expected = ours(plain_decoder)
    assert gap(ours(decoder, forced=expected.ids), expected) <= 2 * tolerance


def test_specs_say_everything_by_value() -> None:
    spec = decoder_of(build("gemma3_text")).spec
    assert dataclasses.replace(spec) == spec
    assert spec == decoder_of(build("gemma3_text", seed=3)).spec

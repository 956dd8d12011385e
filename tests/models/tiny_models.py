"""Tiny models of four families, a tokenizer and an engine that only runs forward passes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from transformers import AutoModelForCausalLM, Gemma2Config, GPT2Config, LlamaConfig, OPTConfig, PreTrainedModel

from rlhf.interfaces import Engine
from rlhf.types import Prompts, Rollout, Sequences

VOCAB = 61
CONFIGS = {
    "gpt2": lambda: GPT2Config(
        vocab_size=VOCAB, n_positions=32, n_embd=16, n_layer=2, n_head=2, initializer_range=0.2,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=None, eos_token_id=1, pad_token_id=0,
    ),
    "opt": lambda: OPTConfig(
        vocab_size=VOCAB, max_position_embeddings=32, hidden_size=16, ffn_dim=32, num_hidden_layers=2,
        word_embed_proj_dim=12, num_attention_heads=2, init_std=0.2, dropout=0.0,
        bos_token_id=None, eos_token_id=1, pad_token_id=0,
    ),
    "llama": lambda: LlamaConfig(
        vocab_size=VOCAB, max_position_embeddings=32, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, initializer_range=0.2, tie_word_embeddings=False,
        bos_token_id=None, eos_token_id=1, pad_token_id=0,
    ),
    "gemma2": lambda: Gemma2Config(
        vocab_size=VOCAB, max_position_embeddings=32, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        head_dim=8, num_attention_heads=2, num_key_value_heads=1, initializer_range=0.2, final_logit_softcapping=3.0,
        sliding_window=16, query_pre_attn_scalar=8, bos_token_id=None, eos_token_id=1, pad_token_id=0,
        attn_implementation="eager",
    ),
}  # fmt: skip
FAMILIES = list(CONFIGS)


def language_model(family: str, seed: int = 0, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    torch.manual_seed(seed)
    config = cast(Any, CONFIGS[family]())
    return AutoModelForCausalLM.from_config(config).eval().to(dtype)


def sequences(rows: list[list[int]], prompt: int, *, left: int = 0, right: int = 0) -> Sequences:
    """Rows of one length, the first ``prompt`` tokens their prompt, between pads."""
    ids = torch.tensor([[0] * left + row + [0] * right for row in rows])
    mask = torch.tensor([[False] * left + [True] * len(row) + [False] * right for row in rows])
    return Sequences(ids, mask, prompt + left)


def rollout(texts: list[str], *, columns: dict[str, list[Any]] | None = None, prompt: str = "p") -> Rollout:
    """Responses of 1, 2, 3 … tokens to a prompt of two tokens, right-padded."""
    rows = len(texts)
    prompts = Prompts([[5, 6]] * rows, [prompt] * rows, ["s"] * rows, columns or {})
    mask = torch.arange(rows).unsqueeze(0) <= torch.arange(rows).unsqueeze(1)
    ids = torch.cat([torch.tensor([[5, 6]] * rows), torch.where(mask, torch.arange(7, 7 + rows), 0)], 1)
    real = torch.cat([torch.ones(rows, 2, dtype=torch.bool), mask], 1)
    zeros = torch.zeros(rows, rows)
    ended, groups = torch.ones(rows, dtype=torch.bool), torch.arange(rows)
    return Rollout(prompts, Sequences(ids, real, 2), mask, zeros, zeros, ended, groups, texts)


class ForwardOnly:
    """What reward models ask of a live engine."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        self.batch_sizes: list[int] = []

    @torch.no_grad()
    def evaluate(self, batches, *, temperature=1.0, want):
        for batch in batches:
            self.batch_sizes.append(len(batch))
            yield self.model(batch.sequences, temperature=temperature, want=want, mask=batch.mask)


@dataclass(frozen=True, kw_only=True)
class ForwardEngine(Engine):
    micro_batch_size: int | None = 2

    def build(self, model, **settings):
        assert not settings, "reward models are frozen"
        return cast(Any, ForwardOnly(model.eval()))

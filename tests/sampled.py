"""Rollouts of tiny models of four families, and of one that says what comes next."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from spelling import Numbers, prompts_of, responses
from torch import Tensor
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    PreTrainedModel,
)

from rlhf.engines.inference.responses import OnTokens, Request
from rlhf.engines.inference.sampler import sample
from rlhf.engines.inference.sampling import Sampling
from rlhf.types import Prompts, Rollout

VOCAB = 40
STOPS = [0, 3]
PAD = 0
BASE: dict[str, Any] = {"vocab_size": VOCAB, "max_position_embeddings": 64, "bos_token_id": None, "eos_token_id": None}
LLAMA: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def build(kind: str, **settings: Any) -> PreTrainedModel:
    torch.manual_seed(0)
    common = BASE | {"pad_token_id": None}
    if kind == "gpt2":
        return GPT2LMHeadModel(GPT2Config(**common, n_embd=32, n_layer=2, n_head=4, initializer_range=0.2, **settings))
    if kind == "opt":
        widths: dict[str, Any] = {"hidden_size": 32, "word_embed_proj_dim": 32, "ffn_dim": 64, "num_hidden_layers": 2}
        return OPTForCausalLM(OPTConfig(**BASE, **widths, num_attention_heads=4, pad_token_id=1, init_std=0.2))
    if kind == "llama":
        return LlamaForCausalLM(LlamaConfig(**common, **LLAMA, initializer_range=0.2))
    return MistralForCausalLM(MistralConfig(**common, **LLAMA, initializer_range=0.2, sliding_window=5))


MODELS = {kind: build(kind).eval() for kind in ("gpt2", "opt", "llama", "mistral")}
PROMPTS = prompts_of([[5, 6, 7, 8, 9, 10, 11], [12], [13, 14], [5, 6, 7], [20, 21, 22, 23], [30], [31, 32], [33] * 6])


def run(
    lm: PreTrainedModel,
    prompts: Prompts = PROMPTS,
    counters: Sequence[int] | None = None,
    *,
    seed: int = 1,
    stop_ids: Sequence[int] = STOPS,
    pad_id: int = PAD,
    on_tokens: OnTokens | None = None,
    forbidden: Tensor | None = None,
    **settings: Any,
) -> Rollout:
    settings = {"max_new_tokens": 20, **settings}
    counters = range(len(prompts)) if counters is None else counters
    tokenizer: Any = Numbers(VOCAB, pad_id, forbidden)
    request = Request(prompts, Sampling(**settings), tokenizer, seed, list(counters), list(stop_ids))
    return sample(lm, request, on_tokens=on_tokens)


def plain_logits(lm: PreTrainedModel, prompt: Sequence[int], response: Sequence[int]) -> Tensor:
    """[len(response), V] logits each response token was drawn from: one row, no cache, no padding."""
    with torch.no_grad():
        logits = lm(input_ids=torch.tensor([[*prompt, *response]]), use_cache=False).logits[0]
    return logits[len(prompt) - 1 : -1]


def largest_gap(lm: PreTrainedModel, rollout: Rollout, temperature: float = 1.0) -> float:
    """Between the sampler's log-probs and those of plain forward passes."""
    gap = 0.0
    for row, response in enumerate(responses(rollout)):
        logprobs = (plain_logits(lm, rollout.prompts.ids[row], response) / temperature).log_softmax(-1)
        picked = logprobs.gather(-1, torch.tensor(response).unsqueeze(-1)).squeeze(-1)
        gap = max(gap, float((picked - rollout.rollout_logprobs[row, : len(response)]).abs().max()))
    return gap


class Scripted(torch.nn.Module):
    """Stands in for a model: the likeliest next token is the last one plus 1, by a margin that leaves no chance."""

    def __init__(self) -> None:
        super().__init__()
        self.config = GPT2Config(vocab_size=VOCAB, n_positions=64)
        self.device = torch.device("cpu")
        self.bias = torch.zeros(VOCAB)

    def forward(self, input_ids: Tensor, past_key_values: Any, **_: Any) -> Any:
        past_key_values.update(*(torch.zeros(*input_ids.shape[:1], 1, input_ids.shape[1], 1) for _ in range(2)), 0)
        logits = 1e4 * torch.nn.functional.one_hot((input_ids + 1) % VOCAB, VOCAB) + self.bias

        @dataclasses.dataclass
        class Output:
            logits: Tensor

        return Output(logits[:, -1:])


def scripted(ids: Sequence[Sequence[int]], **arguments: Any) -> Rollout:
    lm: Any = Scripted()
    return run(lm, prompts_of(ids), **arguments)

"""Tiny models of every family with weights that hide no error, and how a decoder is compared with them."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from rlhf.engines.inference.collectives import Collectives
from rlhf.engines.inference.decoder import Decoder
from rlhf.engines.inference.families import spec_of
from rlhf.engines.inference.shards import load

VOCAB = 51
"""No multiple of two."""
PROMPTS = [[5], [7, 11, 2, 9, 30, 4, 8], [3, 3, 12, 40], [50, 1, 0, 22, 17, 6, 9, 31, 44, 2, 13, 13]]
NEW = 16

LLAMA: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 36,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
BASES: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "opt": {
        "hidden_size": 32,
        "ffn_dim": 36,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 64,
    },
    "gpt_neox": LLAMA | {"num_key_value_heads": 4},
    "llama": LLAMA,
    "mistral": LLAMA | {"sliding_window": 5},
    "qwen2": LLAMA,
    "qwen3": LLAMA | {"head_dim": 12},
    "phi": LLAMA,
    "gemma2": LLAMA | {"head_dim": 10, "sliding_window": 5, "query_pre_attn_scalar": 12},
    "gemma3_text": LLAMA
    | {
        "num_hidden_layers": 3,
        "head_dim": 12,
        "sliding_window": 5,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
}
del BASES["gpt_neox"]["num_key_value_heads"]


def config_of(family: str, **settings: Any) -> PreTrainedConfig:
    # No padding id: its embedding would be zero, and Hugging Face's would not be asked for what ours is.
    ids: dict[str, Any] = {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
    values = {"vocab_size": VOCAB, **ids, **BASES[family], **settings}
    return AutoConfig.for_model(family, **copy.deepcopy(values))  # a config writes into the dicts it is given


def build(family: str, *, seed: int = 0, dtype: torch.dtype = torch.float32, **settings: Any) -> PreTrainedModel:
    """A model whose every weight, biases and norms too, is drawn with deviation 0.2 around what it starts from."""
    model = AutoModelForCausalLM.from_config(config_of(family, **settings), attn_implementation="eager")
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator) * 0.2
        around = parameter.data if "norm" in name or ".ln_" in name else 0
        parameter.data = around + noise
    model.tie_weights()
    return model.to(dtype).eval()


class Answer(NamedTuple):
    """Greedy continuations: [B, NEW] ids, [B, NEW, V] fp32 log-probs of every token."""

    ids: Tensor
    logprobs: Tensor


def _answer(logits: list[Tensor], ids: list[Tensor]) -> Answer:
    return Answer(torch.stack(ids, 1), torch.stack(logits, 1).float().log_softmax(-1))


def plain(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]] = PROMPTS, *, new: int = NEW, forced: Tensor | None = None
) -> Answer:
    """Hugging Face's forward pass over everything, once a token, with left padding.

    ``forced`` continues with given ids, whatever is best.
    """
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(row)) + list(row) for row in prompts])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in prompts])
    logits, chosen = [], []
    with torch.no_grad():
        for t in range(new):
            positions = (mask.cumsum(1) - 1).clamp(min=0)
            found = model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False).logits[:, -1]
            logits.append(found)
            chosen.append(found.argmax(-1) if forced is None else forced[:, t])
            ids = torch.cat([ids, chosen[-1].unsqueeze(1)], 1)
            mask = torch.cat([mask, mask.new_ones(len(mask), 1)], 1)
    return _answer(logits, chosen)


def decoder_of(model: PreTrainedModel, collectives: Collectives | None = None) -> Decoder:
    spec = spec_of(model.config)
    collectives = collectives or Collectives()
    return Decoder(spec, load(spec, model, collectives.rank, collectives.size), collectives)


def ours(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]] = PROMPTS,
    *,
    new: int = NEW,
    forced: Tensor | None = None,
    on_step: Callable[[int], None] | None = None,
) -> Answer:
    cache = decoder.cache(4 * len(prompts))
    rows = [cache.open() for _ in prompts]
    ids = torch.tensor([token for row in prompts for token in row])
    counts = [len(row) for row in prompts]
    logits, chosen = [], []
    for t in range(new):
        found = decoder.forward(ids, rows, counts, cache)
        logits.append(found)
        chosen.append(found.argmax(-1) if forced is None else forced[:, t])
        ids, counts = chosen[-1], [1] * len(rows)
        if on_step is not None:
            on_step(t)
    return _answer(logits, chosen)


def gap(one: Answer, other: Answer) -> float:
    """Largest difference of log-probs, over all tokens of the vocabulary."""
    return float((one.logprobs - other.logprobs).abs().max())


def check_parity(found: Answer, expected: Answer, tolerance: float = 1e-4) -> None:
    assert torch.equal(found.ids, expected.ids)
    assert gap(found, expected) < tolerance


class UnderTP(NamedTuple):
    """What a rank answers, and what it has said to the others: calls of every step, bytes of the last."""

    answer: Answer
    calls: list[int]
    bytes_of_last_step: int


def under_tp(cases: Sequence[tuple[str, dict[str, Any]]], forced: Tensor | None = None) -> list[UnderTP]:
    """Run by every rank of a group: the greedy continuations of each case."""
    found = []
    for family, settings in cases:
        collectives = Collectives(torch.distributed.group.WORLD)
        decoder = decoder_of(build(family, **settings), collectives)
        calls, sent = [0], [0]

        def on_step(step: int, collectives: Collectives = collectives, calls: list = calls, sent: list = sent) -> None:
            calls.append(collectives.calls)
            sent.append(collectives.bytes)

        answer = ours(decoder, forced=forced, on_step=on_step)
        steps = [after - before for before, after in itertools.pairwise(calls)]
        found.append(UnderTP(answer, steps, sent[-1] - sent[-2]))
    return found


class Deaf(Collectives):
    """Ranks that keep their sums to themselves."""

    def all_reduce(self, tensor: Tensor) -> Tensor:
        return tensor


def under_tp_with(fault: str, family: str) -> Answer:
    """Run by every rank of a group: continuations of a decoder with a fault that one rank alone cannot have."""
    collectives = (Deaf if fault == "no sum" else Collectives)(torch.distributed.group.WORLD)
    model = build(family)
    spec, rank = spec_of(model.config), collectives.rank
    weights = load(spec, model, 1 - rank if fault == "shards swapped" else rank, 2)
    decoder = Decoder(spec, weights, collectives)
    if fault == "bias summed":
        for name in [name for name in weights if name.endswith(("out.bias", "down.bias"))]:
            weights[name] = weights[name] * 2
    return ours(decoder)


def spoken() -> tuple[list[float], list[list[float]], int, int, int]:
    """What a rank of two hears of a sum and of a gathering, how often it spoke, in how many bytes, and its rank."""
    collectives = Collectives(torch.distributed.group.WORLD)
    own = float(collectives.rank + 1)
    total = collectives.all_reduce(torch.tensor([own, 10.0 * own]))
    gathered = collectives.all_gather(torch.tensor([[own], [-own]]))
    return total.tolist(), gathered.tolist(), collectives.calls, collectives.bytes, collectives.rank

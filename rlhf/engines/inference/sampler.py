"""Responses from any Hugging Face causal language model: prefill, then one token a step with a key-value cache.

The reference sampler: plain, and right for every architecture. A row's tokens depend on the weights, its prompt and
(seed, counter, position) only.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from rlhf.engines.inference.random import uniform
from rlhf.engines.inference.sampling import Sampling, draw
from rlhf.errors import NonFiniteError, UserError
from rlhf.types import Prompts, Rollout, Sequences

if TYPE_CHECKING:
    from transformers import PreTrainedModel

OnTokens = Callable[[list[int], list[int]], None]
COMPACT_AT = 4
"""Finished rows are taken out of the batch once they are a COMPACT_AT-th of it: each time costs a copy of the cache."""


def sample(
    lm: PreTrainedModel,
    prompts: Prompts,
    sampling: Sampling,
    *,
    seed: int,
    counters: Sequence[int] | Tensor,
    stop_ids: Sequence[int],
    pad_id: int,
    decode: Callable[[list[int]], str],
    groups: Tensor | None = None,
    on_tokens: OnTokens | None = None,
    forbidden: Tensor | None = None,
    all_done: Callable[[bool], bool] | None = None,
) -> Rollout:
    """One response per prompt, without gradient or dropout; the model is left in the mode it was in.

    Args:
        lm: The policy. Its cache is on while sampling, whatever its config says; the config is not written to.
        prompts: B prompts, already repeated for groups.
        sampling: How tokens are chosen.
        seed: Run seed of the random numbers.
        counters: B global rollout numbers.
        stop_ids: Ids that end a response.
        pad_id: Fills the slots without a token; any id will do, a stop id as well.
        decode: From response ids to text.
        groups: [B] int64, equal for responses to the same prompt. None: each row is its own group.
        on_tokens: Told of every step as it is made: the prompts still being answered and the token drawn for each.
        forbidden: [V] bool, ids that are never drawn, such as those the tokenizer has no token for. They keep their
            share of ``rollout_logprobs``, which are those of the full softmax. None: all may be drawn.
        all_done: Where processes must make the same number of forward passes: maps, at each step, whether the rows
            here are finished to whether those of all processes are. They must bring equally many prompts.

    Returns:
        The rollout on the model's device, T its longest response.

    Raises:
        UserError: an empty prompt, prompts that leave no room for the response, counters or groups of another
            length, or stop ids the model lacks.
        NonFiniteError: logits that are not finite.
    """
    rows = torch.as_tensor(counters, dtype=torch.int64, device=lm.device)
    groups = torch.arange(len(prompts), device=lm.device) if groups is None else groups.to(lm.device)
    _check(lm, prompts, sampling, rows, groups, stop_ids)
    stops = torch.zeros(lm.config.get_text_config().vocab_size, dtype=torch.bool, device=lm.device)
    stops[list(stop_ids)] = True
    forbidden = None if forbidden is None else forbidden.to(lm.device)
    _check_choice(stops, forbidden, sampling)
    out = _Columns.empty(len(prompts), sampling.max_new_tokens, pad_id, lm.device)
    with torch.no_grad(), _evaluating(lm):
        for start in range(0, len(prompts), sampling.max_rows):
            part = slice(start, start + sampling.max_rows)
            ids, mask = _left_padded(prompts.ids[part], pad_id, lm.device)
            _respond(lm, ids, mask, sampling, seed, rows[part], stops, forbidden, out, start, on_tokens, all_done)
    return _assemble(prompts, out, stops, pad_id, decode, groups)


class _Columns(NamedTuple):
    """[B, max_new_tokens] each: what is known of the response tokens. Slots after a stop token are meaningless."""

    ids: Tensor
    rollout_logprobs: Tensor
    behaviour_logprobs: Tensor

    @classmethod
    def empty(cls, rows: int, width: int, pad_id: int, device: torch.device) -> _Columns:
        ids = torch.full((rows, width), pad_id, device=device)
        return cls(ids, *(torch.zeros(rows, width, device=device) for _ in range(2)))


def _respond(
    lm: PreTrainedModel,
    ids: Tensor,
    prompt_mask: Tensor,
    sampling: Sampling,
    seed: int,
    counters: Tensor,
    stops: Tensor,
    never: Tensor | None,
    out: _Columns,
    first: int,
    on_tokens: OnTokens | None,
    all_done: Callable[[bool], bool] | None,
) -> None:
    """Fills ``out`` for rows decoded together, which are ``first`` and following of all.

    A finished row goes on being decoded until the next compaction: what it yields stands after its stop token and is
    masked at the end, which spares the step every other bookkeeping.
    """
    width = ids.shape[1]
    forward = _Forward(lm)
    steps = torch.arange(sampling.max_new_tokens, device=ids.device)
    uniforms = uniform(seed, counters.unsqueeze(1), steps)
    mask = torch.cat([prompt_mask, prompt_mask.new_ones(len(ids), sampling.max_new_tokens)], dim=1)
    rows = torch.arange(first, first + len(ids), device=ids.device)
    finished = torch.zeros_like(rows, dtype=torch.bool)
    too_early = stops if never is None else stops | never
    positions = Sequences(ids, prompt_mask, prompt_width=width).position_ids
    for t in range(sampling.max_new_tokens):
        logits = forward(ids, mask[:, : width + t], positions)
        forbidden = too_early if t < sampling.min_new_tokens else never
        drawn = draw(logits, uniforms[:, t], sampling, forbidden=forbidden)
        for column, values in zip(out, drawn, strict=True):
            column[rows, t] = values
        if on_tokens is not None:
            on_tokens(rows[~finished].tolist(), drawn.ids[~finished].tolist())
        finished |= stops[drawn.ids]
        ids, positions = drawn.ids.unsqueeze(1), positions[:, -1:] + 1
        done = int(finished.sum())
        if (done == len(rows)) if all_done is None else all_done(done == len(rows)):
            return
        if done * COMPACT_AT >= len(rows) > 1:
            keep = (~finished).nonzero().flatten() if done < len(rows) else finished.new_zeros(1, dtype=torch.int64)
            forward.keep(keep)
            rows, finished, mask, uniforms = rows[keep], finished[keep], mask[keep], uniforms[keep]
            ids, positions = ids[keep], positions[keep]


class _Forward:
    """The model with its key-value cache: each call reads the next columns and answers the logits after the last."""

    def __init__(self, lm: PreTrainedModel) -> None:
        from transformers import DynamicCache

        self.lm = lm
        self.cache = DynamicCache(config=lm.config)
        # transformers renames this argument within its version 5.
        self.name = "cache" if "cache" in inspect.signature(lm.forward).parameters else "past_key_values"

    def __call__(self, ids: Tensor, mask: Tensor, positions: Tensor) -> Tensor:
        """[B, V] from [B, L] new ids and their positions, and the [B, all columns so far] attention mask."""
        cache = {self.name: self.cache}
        return self.lm(
            input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=True, logits_to_keep=1, **cache
        ).logits[:, -1]

    def keep(self, rows: Tensor) -> None:
        """Drops all other rows from the cache."""
        self.cache.batch_select_indices(rows)


@contextmanager
def _evaluating(lm: nn.Module) -> Iterator[None]:
    """Evaluation mode inside, each module's own mode after it: some may have been frozen on purpose.

    Dropout and gradient checkpointing act in training mode only, so neither setting is touched.
    """
    modes = [(module, module.training) for module in lm.modules()]
    lm.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def _left_padded(rows: Sequence[Sequence[int]], pad_id: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Ids and mask, [B, P] each; P ≥ 1 even without rows."""
    width = max((len(row) for row in rows), default=1)
    ids = torch.tensor([[pad_id] * (width - len(row)) + list(row) for row in rows], dtype=torch.int64)
    lengths = torch.tensor([len(row) for row in rows], dtype=torch.int64)
    mask = torch.arange(width) >= width - lengths.unsqueeze(1)
    return ids.view(len(rows), width).to(device), mask.to(device)


def _assemble(
    prompts: Prompts, out: _Columns, stops: Tensor, pad_id: int, decode: Callable[[list[int]], str], groups: Tensor
) -> Rollout:
    """Cuts each response after its first stop token and lays the rollout out."""
    is_stop = stops[out.ids]
    mask = is_stop.cumsum(1) - is_stop.long() == 0
    lengths = mask.sum(1)
    width = int(lengths.max()) if len(lengths) else 0
    ended = (is_stop & mask).any(1)
    mask = mask[:, :width]
    ids = out.ids[:, :width].masked_fill(~mask, pad_id)
    rollout_logprobs, behaviour_logprobs = (column[:, :width].masked_fill(~mask, 0.0) for column in out[1:])
    finite = rollout_logprobs.isfinite().all(1)
    if not finite.all():
        row = int((~finite).nonzero()[0])
        raise NonFiniteError(
            f"logits of row {row}: not finite ({int((~finite).sum())} of {len(finite)} rows); the weights have "
            "diverged or overflow their dtype: check them, lower the learning rate or use bf16 instead of fp16."
        )
    spoken = (lengths - ended.long()).tolist()
    text = [decode(row[:length]) for row, length in zip(ids.tolist(), spoken, strict=True)]
    prompt_ids, prompt_mask = _left_padded(prompts.ids, pad_id, ids.device)
    sequences = Sequences(
        torch.cat([prompt_ids, ids], dim=1), torch.cat([prompt_mask, mask], dim=1), prompt_width=prompt_ids.shape[1]
    )
    return Rollout(prompts, sequences, mask, rollout_logprobs, behaviour_logprobs, ended, groups, text)


def _check(
    lm: PreTrainedModel, prompts: Prompts, sampling: Sampling, counters: Tensor, groups: Tensor, stop_ids: Sequence[int]
) -> None:
    for name, values in (("counters", counters), ("groups", groups)):
        if values.shape != (len(prompts),):
            raise UserError(f"{name}: shape {list(values.shape)} for {len(prompts)} prompts; give one per prompt.")
    lengths = [len(ids) for ids in prompts.ids]
    if 0 in lengths:
        raise UserError(f"prompt {lengths.index(0)}: no tokens; give at least a beginning-of-sequence token.")
    config = lm.config.get_text_config()
    limit = getattr(config, "max_position_embeddings", None)
    longest = max(lengths, default=0)
    if limit is not None and longest + sampling.max_new_tokens > limit:
        raise UserError(
            f"prompt {lengths.index(longest)}: {longest} tokens + max_new_tokens {sampling.max_new_tokens} = "
            f"{longest + sampling.max_new_tokens}, more than the model's {limit} positions (max_position_embeddings); "
            "shorten the prompts or lower max_new_tokens."
        )
    unknown = [i for i in stop_ids if not 0 <= i < config.vocab_size]
    if unknown:
        raise UserError(f"stop_ids: {unknown} with a vocabulary of {config.vocab_size}; give ids the model can draw.")


def _check_choice(stops: Tensor, forbidden: Tensor | None, sampling: Sampling) -> None:
    """Refuses settings that leave no token to draw."""
    excluded = stops if forbidden is None else stops | forbidden
    if sampling.min_new_tokens and excluded.all():
        raise UserError(
            f"stop_ids: all {len(stops)} tokens with min_new_tokens {sampling.min_new_tokens}; "
            "leave a token that can be drawn, or set min_new_tokens to 0."
        )

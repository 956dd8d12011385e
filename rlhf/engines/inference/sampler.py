"""Responses from any Hugging Face causal language model: prefill, then one token a step with a key-value cache.

The reference sampler: plain, and right for every architecture. A row's tokens depend on the weights, its prompt and
(seed, counter, position) only.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from rlhf.engines.inference.responses import OnTokens, Request, Responses, left_padded
from rlhf.types import Rollout, Sequences

if TYPE_CHECKING:
    from transformers import PreTrainedModel

COMPACT_AT = 4
"""Finished rows are taken out of the batch once they are a COMPACT_AT-th of it: each time costs a copy of the cache."""


def sample(
    lm: PreTrainedModel,
    request: Request,
    *,
    on_tokens: OnTokens | None = None,
    all_done: Callable[[bool], bool] | None = None,
) -> Rollout:
    """One response per prompt, without gradient or dropout; the model is left in the mode it was in.

    Args:
        lm: The policy. Its cache is on while sampling, whatever its config says; the config is not written to.
        request: What is to be answered, and how.
        on_tokens: Told of every step as it is made: the prompts still being answered and the token drawn for each.
        all_done: Where processes must make the same number of forward passes: maps, at each step, whether the rows
            here are finished to whether those of all processes are. They must bring equally many prompts.

    Returns:
        The rollout on the model's device, T its longest response; each prompt is its own group.

    Raises:
        UserError: see :meth:`Request.check`.
        NonFiniteError: logits that are not finite.
    """
    request.check(lm.config)
    responses = Responses(request, lm.config.get_text_config().vocab_size, lm.device)
    with torch.no_grad(), _evaluating(lm):
        for start in range(0, len(request), request.sampling.max_rows):
            rows = torch.arange(start, min(start + request.sampling.max_rows, len(request)), device=lm.device)
            _respond(lm, responses, rows, on_tokens, all_done)
    return responses.rollout()


def _respond(
    lm: PreTrainedModel,
    responses: Responses,
    rows: Tensor,
    on_tokens: OnTokens | None,
    all_done: Callable[[bool], bool] | None,
) -> None:
    """Draws all tokens of rows that are decoded together.

    A finished row goes on being decoded until the next compaction: what it yields stands behind its end and is masked,
    which spares the step every other bookkeeping.
    """
    request, limit = responses.request, responses.request.sampling.max_new_tokens
    ids, prompt_mask = left_padded([request.prompts.ids[row] for row in rows.tolist()], responses.pad_id, lm.device)
    width, forward = ids.shape[1], _Forward(lm)
    mask = torch.cat([prompt_mask, prompt_mask.new_ones(len(ids), limit)], dim=1)
    finished = torch.zeros_like(rows, dtype=torch.bool)
    positions = Sequences(ids, prompt_mask, prompt_width=width).position_ids
    for t in range(limit):
        logits = forward(ids, mask[:, : width + t], positions)
        drawn, complete = responses.draw(logits, rows, torch.full_like(rows, t))
        if on_tokens is not None:
            on_tokens(rows[~finished].tolist(), drawn[~finished].tolist())
        finished = complete
        ids, positions = drawn.unsqueeze(1), positions[:, -1:] + 1
        done = int(finished.sum())
        if (done == len(rows)) if all_done is None else all_done(done == len(rows)):
            return
        if done * COMPACT_AT >= len(rows) > 1:
            keep = (~finished).nonzero().flatten() if done < len(rows) else finished.new_zeros(1, dtype=torch.int64)
            forward.keep(keep)
            rows, finished, mask = rows[keep], finished[keep], mask[keep]
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

"""What contracts are checked on: rewards, batches and responses, small and of all sorts."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from rlhf.interfaces import AdvantageEstimator
from rlhf.types import Batch, Prompts, Rollout, Scored, Sequences

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LENGTHS = (6, 1, 3, 5, 2, 6, 4, 1)
"""Tokens of the responses: some as long as can be, some of a single token."""
GROUP = 4
NAN = float("nan")
S = TypeVar("S", Scored, Batch)


def _random(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def response_mask(lengths: Sequence[int] = LENGTHS) -> Tensor:
    """[B, T] bool."""
    return torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]


def scored(estimator: AdvantageEstimator) -> Scored:
    """Eight responses to two prompts, with what an estimator asks for and nothing else."""
    mask = response_mask()
    rows, width = mask.shape
    last = mask & (torch.arange(width) == torch.tensor(LENGTHS)[:, None] - 1)
    scores = _random(0, rows)
    ended = torch.arange(rows) % 3 != 0
    return Scored(
        rewards=(0.1 * _random(1, rows, width) + last * scores[:, None]).masked_fill(~mask, 0.0),
        scores=scores,
        values=_random(2, rows, width).masked_fill(~mask, 0.0) if estimator.needs_critic else None,
        bootstrap=_random(3, rows).masked_fill(ended, 0.0) if estimator.needs_critic else None,
        mask=mask,
        groups=torch.arange(rows) // GROUP,
        greedy=_random(4, rows // GROUP).repeat_interleave(GROUP) if estimator.needs_greedy else None,
        old_logprobs=-_random(5, rows, width).abs().masked_fill(~mask, 0.0),
        collision=_random(6, rows, width).sigmoid().masked_fill(~mask, 0.0) if estimator.needs_collision else None,
    )


def constant(given: Scored) -> Scored:
    """The same responses, all worth 1: nothing tells those of a group apart."""
    last = given.mask & ~torch.nn.functional.pad(given.mask[:, 1:], (0, 1))
    ones = torch.ones_like(given.scores)
    return replace(given, rewards=last.float(), scores=ones, greedy=None if given.greedy is None else ones)


def batch() -> Batch:
    """What an update reads, of eight responses."""
    mask = response_mask()
    rows, width = mask.shape
    real = torch.cat([torch.ones(rows, 2, dtype=torch.bool), mask], 1)
    ids = torch.arange(rows * (width + 2)).reshape(rows, -1) % 50 + 5
    old = -_random(5, rows, width).abs()

    def near(seed: int) -> Tensor:
        return (old + 0.1 * _random(seed, rows, width)).masked_fill(~mask, 0.0)

    return Batch(
        sequences=Sequences(ids.masked_fill(~real, 0), real, 2),
        mask=mask,
        rollout_logprobs=near(7),
        old_logprobs=old.masked_fill(~mask, 0.0),
        ref_logprobs=near(8),
        advantages=_random(9, rows, width).masked_fill(~mask, 0.0),
        returns=_random(10, rows, width).masked_fill(~mask, 0.0),
        values=_random(11, rows, width).masked_fill(~mask, 0.0),
        scores=_random(0, rows),
    )


def _each(sample: S, change: Any) -> S:
    """A sample whose ``[B, T]`` fields are changed."""
    shape = sample.mask.shape
    found = {f.name: getattr(sample, f.name) for f in fields(sample)}
    per_token = {name: x for name, x in found.items() if isinstance(x, Tensor) and x.shape == shape}
    return replace(sample, **{name: change(x) for name, x in per_token.items()})


def dirty(sample: S, filling: float = NAN) -> S:
    """The same with pads that hold anything."""
    return _each(sample, lambda x: x.masked_fill(~sample.mask, filling) if x.is_floating_point() else x)


def widened(sample: S, columns: int = 3) -> S:
    """The same with more pads on the right, filled with NaN."""

    def pad(x: Tensor) -> Tensor:
        extra = (len(x), columns)
        return torch.cat([x, x.new_full(extra, NAN) if x.is_floating_point() else x.new_zeros(extra)], 1)

    wide = _each(sample, pad)
    if not isinstance(wide, Batch):
        return wide
    given = wide.sequences
    sequences = replace(given, ids=pad(given.ids), attention_mask=pad(given.attention_mask))
    return replace(wide, sequences=sequences)


def reordered(sample: Scored, rows: Tensor) -> Scored:
    """The rows in another order."""
    found = {f.name: getattr(sample, f.name) for f in fields(sample)}
    return replace(sample, **{name: x[rows] for name, x in found.items() if isinstance(x, Tensor)})


def single_tokens(sample: Scored) -> Scored:
    """The first token of each response alone."""
    return _each(sample, lambda x: x[:, :1])


@functools.cache
def tokenizer() -> PreTrainedTokenizerBase:
    """A byte-level tokenizer with a chat template, made on the spot."""
    from rlhf.models.tokenizer import CHAT_TEMPLATES, train_bpe

    made = train_bpe(["What is new? Nothing much.", "The answer is 12, a number."], 280)
    made.chat_template = CHAT_TEMPLATES["turns"]
    return made


def rollout(texts: Sequence[str], columns: Mapping[str, Sequence[Any]] | None = None, *, pads: int = 0) -> Rollout:
    """Responses of the given texts to equal prompts, encoded by :func:`tokenizer`.

    Args:
        texts: Of the responses.
        columns: Further columns of the prompts.
        pads: Columns on the right that are padding in all rows.
    """
    known = tokenizer()
    end, pad = known.eos_token_id, known.pad_token_id
    rows = [[*known(text, add_special_tokens=False)["input_ids"], end] for text in texts]
    mask = torch.nn.functional.pad(response_mask([len(row) for row in rows]), (0, pads))
    width = mask.shape[1]
    ids = torch.tensor([[5, 6, *row, *[pad] * (width - len(row))] for row in rows])
    real = torch.cat([torch.ones(len(rows), 2, dtype=torch.bool), mask], 1)
    zeros, number = torch.zeros(mask.shape), len(rows)
    prompts = Prompts([[5, 6]] * number, ["prompt"] * number, ["source"] * number, dict(columns or {}))
    ended = torch.ones(number, dtype=torch.bool)
    return Rollout(prompts, Sequences(ids, real, 2), mask, zeros, zeros, ended, torch.arange(number), list(texts))

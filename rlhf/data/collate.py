"""From examples to the tensors of ``rlhf.types``.

Masks come from lengths, never from comparing ids with the pad id: the pad may well be the end token, and a prompt may
hold it too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rlhf.data.examples import ComparisonExample, DemonstrationExample, PromptExample, TextExample
from rlhf.errors import UserError
from rlhf.types import Comparisons, Labelled, Prompts, Sequences

LabelledExample = DemonstrationExample | TextExample


class _Row(NamedTuple):
    """One sequence: ids, and which of them are to be predicted (never the first: nothing stands before it)."""

    ids: list[int]
    targets: list[bool]


def _row(example: LabelledExample, train_on_prompt: bool) -> _Row:
    if isinstance(example, TextExample):
        ids, untrained = example.ids, 1
    else:
        ids = example.prompt_ids + example.response_ids
        untrained = 1 if train_on_prompt else max(len(example.prompt_ids), 1)
    return _Row(ids, [False] * untrained + [True] * (len(ids) - untrained))


def _pad(rows: Sequence[Sequence[int]], value: int, left: int = 0) -> Tensor:
    """[B, left + longest] int64, content behind ``left`` pads."""
    if not rows:
        raise UserError("batch: no examples; a batch needs at least one")
    width = max(map(len, rows))
    return torch.tensor([[value] * left + list(row) + [value] * (width - len(row)) for row in rows], dtype=torch.long)


def _sequences(rows: Sequence[_Row], pad_id: int, prompt_width: int = 1, pad_left: int = 0) -> tuple[Sequences, Tensor]:
    """Sequences and the [B, T] mask of targets."""
    ids = _pad([row.ids for row in rows], pad_id, pad_left)
    real = _pad([[1] * len(row.ids) for row in rows], 0, pad_left).bool()
    targets = _pad([row.targets for row in rows], 0, pad_left).bool()
    if not 1 <= prompt_width <= ids.shape[1] or targets[:, :prompt_width].any():
        raise UserError(f"prompt_width: {prompt_width}; must be at least 1 and leave every target behind it")
    return Sequences(ids, real, prompt_width), targets[:, prompt_width:]


def collate_labelled(
    examples: Sequence[LabelledExample],
    *,
    pad_id: int,
    train_on_prompt: bool = False,
    prompt_width: int = 1,
    pad_left: int = 0,
) -> Labelled:
    """One example a row, right-padded.

    Args:
        examples: B demonstrations or texts.
        pad_id: Fills the rows; may be any id, the end token's included.
        train_on_prompt: Whether prompt tokens enter the loss too. Of a text all tokens but the first always do.
        prompt_width: Column from which targets are looked at; 1 allows them everywhere.
        pad_left: Extra pads before every row: results must not depend on them.
    """
    rows = [_row(example, train_on_prompt) for example in examples]
    sequences, mask = _sequences(rows, pad_id, prompt_width, pad_left)
    return Labelled(sequences=sequences, mask=mask)


def pack(examples: Sequence[LabelledExample], length: int) -> list[list[LabelledExample]]:
    """Groups examples into rows of at most ``length`` tokens: each goes into the first row with room.

    Raises:
        UserError: an example alone is longer.
    """
    groups: list[list[LabelledExample]] = []
    room: list[int] = []
    for example in examples:
        size = len(_row(example, False).ids)
        if size > length:
            raise UserError(f"pack: an example of {size} tokens in rows of {length}; raise it or lower max_tokens")
        at = next((i for i, free in enumerate(room) if free >= size), len(groups))
        if at == len(groups):
            groups.append([])
            room.append(length)
        groups[at].append(example)
        room[at] -= size
    return groups


def collate_packed(
    groups: Sequence[Sequence[LabelledExample]], *, pad_id: int, train_on_prompt: bool = False
) -> Labelled:
    """Several examples a row, one behind the other; segments are numbered from 1, pads are segment 0.

    The first token of an example is never a target, as the token before it belongs to another one.

    Args:
        groups: B groups, see :func:`pack`.
        pad_id: Fills the rows.
        train_on_prompt: As in :func:`collate_labelled`.
    """
    rows, segments = [], []
    for group in groups:
        parts = [_row(example, train_on_prompt) for example in group]
        rows.append(_Row([i for part in parts for i in part.ids], [t for part in parts for t in part.targets]))
        segments.append([number for number, part in enumerate(parts, 1) for _ in part.ids])
    sequences, mask = _sequences(rows, pad_id)
    packed = Sequences(sequences.ids, sequences.attention_mask, sequences.prompt_width, _pad(segments, 0))
    return Labelled(sequences=packed, mask=mask)


def collate_comparisons(examples: Sequence[ComparisonExample], *, pad_id: int) -> Comparisons:
    """Rows chosen, rejected, chosen, rejected …, right-padded; the mask covers the responses.

    Args:
        examples: B pairs.
        pad_id: Fills the rows.
    """
    rows = [
        _row(DemonstrationExample(prompt_ids=pair.prompt_ids, response_ids=response), False)
        for pair in examples
        for response in (pair.chosen_ids, pair.rejected_ids)
    ]
    sequences, mask = _sequences(rows, pad_id)
    margin = torch.tensor([pair.margin for pair in examples], dtype=torch.float32).repeat_interleave(2)
    weight = torch.tensor([pair.weight for pair in examples], dtype=torch.float32).repeat_interleave(2)
    return Comparisons(sequences=sequences, mask=mask, margin=margin, weight=weight)


def collate_prompts(examples: Sequence[PromptExample]) -> Prompts:
    """Prompts as they are, unpadded. A column that only some of the sources have is None for the others."""
    names = dict.fromkeys(name for example in examples for name in example.columns)
    return Prompts(
        ids=[example.prompt_ids for example in examples],
        text=[example.prompt for example in examples],
        source=[example.source for example in examples],
        columns={name: [example.columns.get(name) for example in examples] for name in names},
    )

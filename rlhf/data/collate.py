"""From examples to the tensors of ``rlhf.types``.

Masks come from lengths, never from comparing ids with the pad id: the pad may well be the end token, and a prompt may
hold it too.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rlhf.data.examples import ComparisonExample, DemonstrationExample, PromptExample, TextExample, UnpairedExample
from rlhf.errors import UserError
from rlhf.types import Comparisons, Labelled, Prompts, Sequences, Unpaired

LabelledExample = DemonstrationExample | TextExample


class _Row(NamedTuple):
    """One sequence: ids, where they are from, and which are to be predicted (never the first: nothing is before it)."""

    ids: list[int]
    targets: list[bool]
    sources: list[str]


def _row(example: LabelledExample, train_on_prompt: bool) -> _Row:
    if isinstance(example, TextExample):
        ids, targets = example.ids, [True] * len(example.ids)
    else:
        ids = example.prompt_ids + example.response_ids
        said = example.targets or [True] * len(example.response_ids)
        targets = [True] * len(ids) if train_on_prompt else [False] * len(example.prompt_ids) + said
    return _Row(ids, [False, *targets[1:]], [example.source] * len(ids))


def _answer(prompt_ids: list[int], response_ids: list[int], source: str) -> _Row:
    """A prompt with a response to it."""
    example = DemonstrationExample(prompt_ids=prompt_ids, response_ids=response_ids, source=source)
    return _row(example, train_on_prompt=False)


def _numbered(sources: Sequence[str]) -> tuple[Tensor, tuple[str, ...]]:
    """[B] number of each row's source, and the sources' names."""
    names = tuple(dict.fromkeys(sources))
    return torch.tensor([names.index(source) for source in sources], dtype=torch.long), names


def _pad(rows: Sequence[Sequence[int]], value: int, left: int = 0) -> Tensor:
    """[B, left + longest] int64, content behind ``left`` pads."""
    if not rows:
        raise UserError("batch: no examples; a batch needs at least one")
    width = max(map(len, rows))
    return torch.tensor([[value] * left + list(row) + [value] * (width - len(row)) for row in rows], dtype=torch.long)


def _labelled(rows: Sequence[_Row], pad_id: int, prompt_width: int = 1, pad_left: int = 0) -> Labelled:
    sequences, mask = _sequences(rows, pad_id, prompt_width, pad_left)
    names = tuple(dict.fromkeys(source for row in rows for source in row.sources))
    sources = _pad([[names.index(source) for source in row.sources] for row in rows], 0, pad_left)
    return Labelled(sequences=sequences, mask=mask, sources=sources[:, prompt_width:], source_names=names)


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
    return _labelled([_row(example, train_on_prompt) for example in examples], pad_id, prompt_width, pad_left)


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
        rows.append(_Row(*(list(itertools.chain.from_iterable(column)) for column in zip(*parts, strict=True))))
        segments.append([number for number, part in enumerate(parts, 1) for _ in part.ids])
    batch = _labelled(rows, pad_id)
    packed = dataclasses.replace(batch.sequences, segments=_pad(segments, 0))
    return dataclasses.replace(batch, sequences=packed)


def collate_comparisons(examples: Sequence[ComparisonExample], *, pad_id: int) -> Comparisons:
    """Rows chosen, rejected, chosen, rejected …, right-padded; the mask covers the responses.

    Args:
        examples: B pairs.
        pad_id: Fills the rows.
    """
    rows = [
        _answer(pair.prompt_ids, response, pair.source)
        for pair in examples
        for response in (pair.chosen_ids, pair.rejected_ids)
    ]
    sequences, mask = _sequences(rows, pad_id)
    margin = torch.tensor([pair.margin for pair in examples], dtype=torch.float32).repeat_interleave(2)
    weight = torch.tensor([pair.weight for pair in examples], dtype=torch.float32).repeat_interleave(2)
    sources, names = _numbered([pair.source for pair in examples])
    return Comparisons(
        sequences=sequences,
        mask=mask,
        margin=margin,
        weight=weight,
        sources=sources.repeat_interleave(2),
        source_names=names,
    )


def collate_unpaired(examples: Sequence[UnpairedExample], *, pad_id: int) -> Unpaired:
    """One judged response a row, right-padded; the mask covers the responses.

    Args:
        examples: B responses.
        pad_id: Fills the rows.
    """
    rows = [_answer(example.prompt_ids, example.response_ids, example.source) for example in examples]
    sequences, mask = _sequences(rows, pad_id)
    sources, names = _numbered([example.source for example in examples])
    label = torch.tensor([example.label for example in examples], dtype=torch.bool)
    return Unpaired(sequences=sequences, mask=mask, label=label, sources=sources, source_names=names)


def collate_prompts(examples: Sequence[PromptExample]) -> Prompts:
    """Prompts as they are, unpadded. A column that only some of the sources have is None for the others."""
    names = dict.fromkeys(name for example in examples for name in example.columns)
    return Prompts(
        ids=[example.prompt_ids for example in examples],
        text=[example.prompt for example in examples],
        source=[example.source for example in examples],
        columns={name: [example.columns.get(name) for example in examples] for name in names},
    )

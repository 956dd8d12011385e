"""Figures by data source: ``<figure>/source/<name>``, where a stage has more than one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from rlhf.interfaces import LossFn
from rlhf.types import LossTerm, Outputs, Selectable, Tally

M = TypeVar("M", bound=Selectable)


def figure(name: str, source: str) -> str:
    """What a figure is called of one source."""
    return f"{name}/source/{source}"


def by_source(loss: LossFn[M]) -> LossFn[M]:
    """The loss, with each of its figures once more for every source in the batch.

    The loss is asked again for the part of each source: its figures are then means over real tokens, or weighted, in
    the same way, whatever the algorithm.
    """

    def measured(outputs: Outputs, batch: M) -> tuple[list[LossTerm], Tally]:
        terms, tally = loss(outputs, batch)
        with torch.no_grad():
            for source, part_outputs, part in _parts(outputs, batch):
                _, own = loss(part_outputs, part)
                tally.merge(_renamed(own, source))
        return terms, tally

    return measured


def mean_by_source(tally: Tally, name: str, values: Tensor, sources: Sequence[str]) -> None:
    """Adds a figure of responses, [B], to the mean of each one's source."""
    for source in dict.fromkeys(sources):
        here = torch.tensor([other == source for other in sources], device=values.device)
        tally.mean(figure(name, source), values, here)


def _parts(outputs: Outputs, batch: M) -> Iterator[tuple[str, Outputs, M]]:
    """What the model answers to each source's part of a batch: its rows, or its tokens where rows may hold several."""
    for number, source in enumerate(batch.source_names):
        assert batch.sources is not None
        here = batch.sources == number
        if here.ndim == 2:
            yield source, outputs, dataclasses.replace(batch, mask=batch.mask & here)
        elif here.any():
            rows = here.nonzero().flatten()
            part = batch.select(rows)
            yield source, _rows(outputs, rows, part.sequences.response_width), part


def _rows(outputs: Outputs, rows: Tensor, width: int) -> Outputs:
    fields = {field.name: getattr(outputs, field.name) for field in dataclasses.fields(outputs)}
    cut = {
        name: value[rows] if value.ndim == 1 else value[rows, :width]
        for name, value in fields.items()
        if value is not None
    }
    return Outputs(**cut)


def _renamed(tally: Tally, source: str) -> Tally:
    renamed = Tally()
    for kind in ("means", "sums", "maxima"):
        setattr(renamed, kind, {figure(name, source): value for name, value in getattr(tally, kind).items()})
    return renamed

"""How a batch is divided over processes, and what each answers is put together."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from rlhf import distributed
from rlhf.types import Outputs, Selectable

M = TypeVar("M", bound=Selectable)


def share(batch: M) -> M | None:
    """This process's rows of a batch; None where there are fewer rows than processes and none is left for this one."""
    units = torch.arange(len(batch) // batch.unit).tensor_split(distributed.world_size())[distributed.rank()]
    if not len(units):
        return None
    return batch.select(torch.arange(int(units[0]) * batch.unit, (int(units[-1]) + 1) * batch.unit))


def fields(outputs: Outputs) -> dict[str, Tensor]:
    """What a model has answered, by name."""
    found = {item.name: getattr(outputs, item.name) for item in dataclasses.fields(outputs)}
    return {name: value for name, value in found.items() if value is not None}


def join_outputs(whole: Selectable, names: Sequence[str], parts: Sequence[Mapping[str, Tensor]]) -> Outputs:
    """The answers on a batch.

    Args:
        whole: The batch.
        names: Fields of :class:`Outputs`.
        parts: Of each process what it answered on its rows, [b] or [b, t, …]; empty where it had none.
    """
    width, joined = whole.sequences.response_width, {}
    for name in names:
        values = [part[name] for part in parts if name in part]
        if (further := values[0].ndim - 2) >= 0:
            values = [nn.functional.pad(value, (0, 0) * further + (0, width - value.shape[1])) for value in values]
        joined[name] = torch.cat(values).to(whole.mask.device)
    return Outputs(**joined)

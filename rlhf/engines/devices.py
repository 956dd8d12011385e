"""Between the CPU, where everything outside an engine lies, and the device that an engine computes on."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

import torch
from torch import Tensor

V = TypeVar("V")

CPU = torch.device("cpu")


def moved(value: V, device: torch.device) -> V:
    """The same with every tensor on a device: of a dataclass those of its fields, at any depth."""
    if isinstance(value, Tensor):
        return value.to(device, non_blocking=device != CPU)  # pyright: ignore[reportReturnType]
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    fields: dict[str, Any] = {item.name: getattr(value, item.name) for item in dataclasses.fields(value)}
    changed = {name: moved(field, device) for name, field in fields.items() if _holds_tensors(field)}
    return dataclasses.replace(value, **changed)


def _holds_tensors(value: Any) -> bool:
    return isinstance(value, Tensor) or (dataclasses.is_dataclass(value) and not isinstance(value, type))

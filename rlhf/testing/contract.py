"""How a broken contract is told: which part of it, and the first number that is wrong."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")
TOLERANCE = 1e-4
"""Of numbers of about unit size in fp32, whose sums are cut differently."""


class BrokenContract(AssertionError):
    """A component does not keep the contract of its kind."""


class Contract:
    """The checks of one component, by its name.

    Args:
        name: Of its class.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def broken(self, what: str) -> NoReturn:
        """Tells what is wrong."""
        raise BrokenContract(f"{self.name}: {what}")

    def holds(self, condition: bool, what: str) -> None:
        """Tells what is wrong unless the condition holds."""
        if not condition:
            self.broken(what)

    def shaped(self, found: Any, shape: tuple[int, ...], what: str) -> Tensor:
        """Wants a tensor of floating-point numbers of a shape."""
        if not isinstance(found, Tensor) or not found.is_floating_point() or tuple(found.shape) != shape:
            is_tensor = isinstance(found, Tensor)
            got = f"{list(found.shape)} {found.dtype}" if is_tensor else f"a {type(found).__name__}"
            self.broken(f"shape: {what} must be a tensor {list(shape)} of floats, it is {got}")
        return found

    def finite(self, found: Tensor, what: str) -> None:
        """Wants no NaN and no infinity."""
        self._first(~found.isfinite(), lambda at: f"{what} {_place(at)} is {found[at].item():g}, not finite")

    def zero(self, found: Tensor, mask: Tensor, what: str) -> None:
        """Wants exactly 0 outside the mask."""
        wrong = ~mask & (found != 0)
        self._first(wrong, lambda at: f"masked slots: {what} {_place(at)} is {found[at].item():g}, not exactly 0")

    def same(self, found: Tensor, expected: Tensor, what: str) -> None:
        """Wants equal numbers, but for rounding."""
        if found.shape != expected.shape:
            self.broken(f"{what}: the shape is {list(found.shape)}, not {list(expected.shape)}")
        close = torch.isclose(found.double(), expected.double(), rtol=TOLERANCE, atol=TOLERANCE)
        self._first(~close, lambda at: f"{what}: {_place(at)} is {found[at].item():g}, not {expected[at].item():g}")

    def _first(self, wrong: Tensor, text: Callable[[tuple[int, ...]], str]) -> None:
        places = wrong.nonzero().tolist()
        if places:
            more = f" ({len(places)} of {wrong.numel()} numbers are wrong)" if len(places) > 1 else ""
            self.broken(text(tuple(places[0])) + more)

    @contextmanager
    def untouched(self, **arguments: Any) -> Iterator[None]:
        """Wants the tensors of some arguments to be after the context as they were before it."""
        before = {name: tensor.detach().clone() for name, tensor in _tensors(arguments)}
        yield
        for name, tensor in _tensors(arguments):
            now, then = tensor.detach(), before[name]
            same = (now == then) | ((now != now) & (then != then))  # NaN is NaN still
            if not same.all():
                changed = int((~same).sum())
                self.broken(
                    f"arguments are not written to, but {changed} of {tensor.numel()} numbers of {name} changed"
                )

    def answered(self, call: Callable[[], T], what: str) -> T:
        """What a call answers; an error of it is told as a broken contract."""
        try:
            return call()
        except BrokenContract:
            raise
        except Exception as error:
            raise BrokenContract(f"{self.name}: {what}, but it raised {type(error).__name__}: {error}") from error


def _place(at: tuple[int, ...]) -> str:
    names = ("row", "token") if len(at) == 2 else ("number",)
    return ", ".join(f"{name} {index}" for name, index in zip(names, at, strict=False)) or "it"


def _tensors(value: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, dict):
        for key, entry in value.items():
            yield from _tensors(entry, f"{name}.{key}".lstrip("."))
    elif isinstance(value, list | tuple):
        for at, entry in enumerate(value):
            yield from _tensors(entry, f"{name}[{at}]")
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _tensors(getattr(value, field.name), f"{name}.{field.name}")

"""Weights on their way from the processes that train them to the ranks of a tensor-parallel group.

Of each parameter a process holds all elements (``Local``, ZeRO up to stage 2) or a stretch of them in a row (stage 3);
a rank needs rectangles of it (:class:`~rlhf.engines.inference.shards.Piece`). What a rank lacks it is sent, and nothing
else, bucket by bucket: at no time is more under way than a bucket, and no process ever holds a whole model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, distributed as dist

from rlhf.engines.inference.shards import LocalTensor, Piece, plan
from rlhf.engines.inference.specs import DecoderSpec


class Held(NamedTuple):
    """What this process has of a parameter.

    Attributes:
        shape: Of the whole parameter.
        flat: 1-D, its elements from ``rank · stretch`` on, at most ``stretch`` of them; all without a stretch.
        stretch: Elements that each process holds, the last ones perhaps fewer. None: every process holds all.
    """

    shape: tuple[int, ...]
    flat: Tensor
    stretch: int | None


class Rectangle(NamedTuple):
    """Rows and columns of a parameter as it is stored; a vector has one column."""

    top: int
    bottom: int
    left: int
    right: int

    @property
    def size(self) -> int:
        """Number of elements."""
        return (self.bottom - self.top) * (self.right - self.left)

    def between(self, top: int, bottom: int) -> Rectangle | None:
        """The part in these rows."""
        top, bottom = max(self.top, top), min(self.bottom, bottom)
        return self._replace(top=top, bottom=bottom) if top < bottom else None

    def within(self, width: int, start: int, stop: int) -> Iterator[Rectangle]:
        """The parts whose elements lie between two places of the flattened parameter: at most three.

        Args:
            width: Columns of the parameter.
            start: First place.
            stop: Place after the last.
        """
        first, last = max(self.top, start // width), min(self.bottom, -(-stop // width))
        whole_from = max(self.top, -((self.left - start) // width))
        whole_to = min(self.bottom, (stop - self.right) // width + 1)
        row = first
        while row < last:
            if whole_from <= row < whole_to:
                yield self._replace(top=row, bottom=whole_to)
                row = whole_to
                continue
            left, right = max(self.left, start - row * width), min(self.right, stop - row * width)
            if left < right:
                yield Rectangle(row, row + 1, left, right)
            row += 1


class Unit(NamedTuple):
    """Rows of a parameter that travel in one bucket."""

    parameter: str
    top: int
    bottom: int


def stored(piece: Piece) -> Rectangle:
    """The rectangle of a piece in the parameter's own rows and columns."""
    columns = piece.columns or (0, 1)
    (top, bottom), (left, right) = (columns, piece.rows) if piece.transposed else (piece.rows, columns)
    return Rectangle(top, bottom, left, right)


class Resharder:
    """Fills the tensors of this process's rank, as often as the weights have changed.

    Args:
        spec: The model.
        ranks: By process of the group: its rank in its tensor-parallel group.
        tp: Size of a tensor-parallel group.
        process: Which of the group this is.
        group: All processes that hold weights; None: the default group, or this process alone.
        bucket_bytes: What may be sent and received at a time, beyond a single row of a weight.

    Attributes:
        received: Bytes that have come from other processes, in the latest :meth:`fill`.
        peak: Most bytes of buffers at a time, in the latest :meth:`fill`.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        *,
        ranks: Sequence[int] = (0,),
        tp: int = 1,
        process: int = 0,
        group: dist.ProcessGroup | None = None,
        bucket_bytes: int = 2**26,
    ) -> None:
        self.ranks, self.process, self.group, self.bucket_bytes = ranks, process, group, bucket_bytes
        self.plan = plan(spec, ranks[process], tp)
        own = {rank: self.plan if rank == ranks[process] else plan(spec, rank, tp) for rank in sorted(set(ranks))}
        self._wanted = {rank: _by_parameter(local) for rank, local in own.items()}
        self.received = self.peak = 0

    def fill(self, local: Mapping[str, Tensor], held: Mapping[str, Held]) -> None:
        """Writes every element of this rank's tensors; all processes have to call it.

        Args:
            local: By local name, of the shapes of the plan; what no piece fills is left.
            held: By name in the Hugging Face module, in the same order on all processes.

        Raises:
            KeyError: a parameter of the plan is not held.
        """
        self.received = self.peak = 0
        places = self._places(local)
        names = [name for name in held if any(name in wanted for wanted in self._wanted.values())]
        if missing := self._wanted[self.ranks[self.process]].keys() - held.keys():
            raise KeyError(f"{min(missing)} is needed, and not held")
        parted = []
        for name in names:
            if held[name].stretch is None or len(self.ranks) == 1:
                whole = held[name].flat.view(_matrix(held[name].shape))
                for rectangle, targets in places.get(name, {}).items():
                    _put(
                        rectangle,
                        rectangle,
                        whole[rectangle.top : rectangle.bottom, rectangle.left : rectangle.right],
                        targets,
                    )
            else:
                parted.append(name)
        dtype = next(iter(local.values())).dtype
        for bucket in self._buckets(parted, held, dtype):
            self._exchange(bucket, held, places, dtype)

    def _places(self, local: Mapping[str, Tensor]) -> dict[str, dict[Rectangle, list[Tensor]]]:
        """Where the elements of each rectangle go: views as [rows, columns] of the parameter as stored."""
        found: dict[str, dict[Rectangle, list[Tensor]]] = {}
        for name, tensor in self.plan.items():
            for piece in tensor.pieces:
                target = local[name][piece.at : piece.at + piece.rows[1] - piece.rows[0]]
                target = target.unsqueeze(1) if piece.columns is None else target
                target = target.t() if piece.transposed else target
                found.setdefault(piece.parameter, {}).setdefault(stored(piece), []).append(target)
        return found

    def _buckets(self, names: Sequence[str], held: Mapping[str, Held], dtype: torch.dtype) -> Iterator[list[Unit]]:
        """Rows of parameters that are exchanged at once."""
        bucket: list[Unit] = []
        filled = 0
        for name in names:
            rows, columns = _matrix(held[name].shape)
            top, step = 0, max(self.bucket_bytes // (columns * dtype.itemsize), 1)
            while top < rows:
                unit = Unit(name, top, min(top + step, rows))
                size = self._wanted_of(unit) * dtype.itemsize
                if size > self.bucket_bytes and step > 1:
                    step = step // 2
                    continue
                if bucket and filled + size > self.bucket_bytes:
                    yield bucket
                    bucket, filled = [], 0
                bucket.append(unit)
                top, filled = unit.bottom, filled + size
        if bucket:
            yield bucket

    def _wanted_of(self, unit: Unit) -> int:
        """Elements of a unit that processes need, counted for each of them.

        A process has to send no more than its own of them, to all who need them, and to receive others: no more
        together than this.
        """
        found = 0
        for rank in self.ranks:
            for rectangle in self._wanted[rank].get(unit.parameter, ()):
                rows = rectangle.between(unit.top, unit.bottom)
                found += 0 if rows is None else rows.size
        return found

    def _parts(self, unit: Unit, held: Held, giver: int, taker: int) -> Iterator[tuple[Rectangle, Rectangle]]:
        """What one process has and another needs of a unit: the rectangle needed, and the part of it."""
        assert held.stretch is not None
        width = _matrix(held.shape)[1]
        start, stop = giver * held.stretch, min((giver + 1) * held.stretch, _count(held.shape))
        for rectangle in self._wanted[self.ranks[taker]].get(unit.parameter, ()):
            rows = rectangle.between(unit.top, unit.bottom)
            if rows is not None and start < stop:
                for part in rows.within(width, start, stop):
                    yield rectangle, part

    def _exchange(
        self,
        bucket: Sequence[Unit],
        held: Mapping[str, Held],
        places: Mapping[str, Mapping[Rectangle, Sequence[Tensor]]],
        dtype: torch.dtype,
    ) -> None:
        me, others = self.process, range(len(self.ranks))
        device = held[bucket[0].parameter].flat.device

        def have(unit: Unit, part: Rectangle) -> Tensor:
            own, width = held[unit.parameter], _matrix(held[unit.parameter].shape)[1]
            assert own.stretch is not None
            first = part.top * width + part.left - me * own.stretch
            shape = (part.bottom - part.top, part.right - part.left)
            return own.flat.as_strided(shape, (width, 1), own.flat.storage_offset() + first)

        outgoing: list[Tensor] = []
        given: list[int] = []
        for taker in others:
            parts = [
                have(unit, part).to(dtype).flatten()
                for unit in bucket
                for _, part in (self._parts(unit, held[unit.parameter], me, taker) if taker != me else ())
            ]
            outgoing += parts
            given.append(sum(part.numel() for part in parts))
        coming = [
            [
                (unit, needed, part)
                for unit in bucket
                for needed, part in (self._parts(unit, held[unit.parameter], giver, me) if giver != me else ())
            ]
            for giver in others
        ]
        taken = [sum(part.size for *_, part in parts) for parts in coming]
        sent = torch.cat(outgoing) if outgoing else torch.empty(0, dtype=dtype, device=device)
        del outgoing
        got = torch.empty(sum(taken), dtype=dtype, device=device)
        dist.all_to_all_single(got, sent, taken, given, group=self.group)
        self.received += got.nbytes
        self.peak = max(self.peak, got.nbytes + sent.nbytes)
        at = 0
        for unit, needed, part in (item for parts in coming for item in parts):
            values = got[at : at + part.size].view(part.bottom - part.top, -1)
            _put(needed, part, values, places[unit.parameter][needed])
            at += part.size
        for unit in bucket:
            for needed, part in self._parts(unit, held[unit.parameter], me, me):
                _put(needed, part, have(unit, part), places[unit.parameter][needed])


def _by_parameter(local: Mapping[str, LocalTensor]) -> dict[str, list[Rectangle]]:
    """Every rectangle that a rank needs, once."""
    found: dict[str, dict[Rectangle, None]] = {}
    for tensor in local.values():
        for piece in tensor.pieces:
            found.setdefault(piece.parameter, {})[stored(piece)] = None
    return {name: list(rectangles) for name, rectangles in found.items()}


def _put(needed: Rectangle, part: Rectangle, values: Tensor, targets: Sequence[Tensor]) -> None:
    """Writes a part of a rectangle wherever the rectangle goes."""
    for target in targets:
        rows = slice(part.top - needed.top, part.bottom - needed.top)
        target[rows, part.left - needed.left : part.right - needed.left].copy_(values)


def _matrix(shape: Sequence[int]) -> tuple[int, int]:
    """Rows and columns; a vector has one column."""
    return (shape[0], shape[1]) if len(shape) == 2 else (shape[0], 1)


def _count(shape: Sequence[int]) -> int:
    return _matrix(shape)[0] * _matrix(shape)[1]

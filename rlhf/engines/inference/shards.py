"""Which part of which weight a rank of a tensor-parallel group holds, as data.

Queries, keys, values and both ways up are cut by output (column parallel), the output projection and the way down by
input (row parallel), so that one sum over the ranks closes each half of a block; embedding and head are cut by
vocabulary. Norms, positions, projections of the embedding, and biases that are added after a sum are whole on every
rank. A piece names the elements of one parameter, so it can be cut from a state dict here or sent by whoever holds a
part of that parameter.
Source: Shoeybi et al. 2019, arXiv:1909.08053, section 3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from rlhf.engines.inference.specs import NORMS, Attention, DecoderSpec, Layer, Norm, Unsupported

Range = tuple[int, int]
"""From, to: the latter is not in it."""

IGNORED = (".attn.bias", ".attn.masked_bias", ".attention.bias", ".attention.masked_bias", ".rotary_emb.inv_freq")
"""Ends of names in state dicts that are no weights: masks and angles that old versions of transformers saved."""


@dataclass(frozen=True)
class Piece:
    """A rectangle of a parameter, and where it goes in the local tensor.

    Attributes:
        parameter: Name in the Hugging Face module.
        rows: Outputs (or vocabulary entries, positions), in the parameter's own numbering.
        columns: Inputs, likewise; None for a vector.
        transposed: The parameter is stored as [inputs, outputs]: rows are its second dimension.
        at: First row of the local tensor that it fills.
    """

    parameter: str
    rows: Range
    columns: Range | None
    transposed: bool
    at: int

    def of(self, parameter: Tensor) -> Tensor:
        """The rectangle of the whole parameter, as [rows, columns], without a copy."""
        parameter = parameter.t() if self.transposed else parameter
        part = parameter[slice(*self.rows)]
        return part if self.columns is None else part[:, slice(*self.columns)]


@dataclass(frozen=True)
class LocalTensor:
    """A tensor of one rank; rows that no piece fills are zero.

    Attributes:
        shape: [rows, columns], or [rows].
        pieces: Disjoint, and together all of it but padding.
    """

    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]


class HeadPart(NamedTuple):
    """The attention heads of a rank.

    Attributes:
        queries: Range of query heads.
        kv: Key-value head of each group of queries here; one that several groups or ranks need is repeated.
        group: Query heads of a group.
    """

    queries: Range
    kv: tuple[int, ...]
    group: int

    @property
    def heads(self) -> int:
        """How many query heads."""
        return self.queries[1] - self.queries[0]


def part(size: int, rank: int, tp: int) -> Range:
    """The rank's share of ``size`` things: contiguous, and as even as can be."""
    return size * rank // tp, size * (rank + 1) // tp


def head_part(attention: Attention, rank: int, tp: int) -> HeadPart:
    """The rank's query heads, whatever their number, and the key-value heads they read.

    Where tp does not divide the key-value heads, some are held by two ranks. A rank whose queries do not fall into
    groups of the model's size has smaller groups, with key-value heads repeated among them.
    """
    first, last = part(attention.heads, rank, tp)
    per_kv = attention.heads // attention.kv_heads
    wanted = [head // per_kv for head in range(first, last)]

    def groups(size: int) -> bool:
        return len(wanted) % size == 0 and all(
            len(set(wanted[start : start + size])) == 1 for start in range(0, len(wanted), size)
        )

    group = max(size for size in range(1, per_kv + 1) if groups(size))
    return HeadPart((first, last), tuple(wanted[::group]), group)


def vocabulary_part(spec: DecoderSpec, rank: int, tp: int) -> Range:
    """The rank's entries of the vocabulary, which is padded to a multiple of tp: they may end behind its last."""
    rows = -(-spec.vocab_size // tp)
    return rank * rows, (rank + 1) * rows


def check_divisible(spec: DecoderSpec, tp: int) -> None:
    """Refuses more ranks than there are things to divide.

    Raises:
        Unsupported: a rank would have no head, no part of the MLP or no entry of the vocabulary.
    """
    for layer in spec.layers:
        if tp > min(layer.attention.heads, layer.mlp.width):
            raise Unsupported(
                f"tensor parallelism over {tp} ranks: a layer has {layer.attention.heads} heads and an MLP of width "
                f"{layer.mlp.width}; at most {min(layer.attention.heads, layer.mlp.width)} can share it"
            )
    if vocabulary_part(spec, tp - 1, tp)[0] >= spec.vocab_size:
        raise Unsupported(f"tensor parallelism over {tp} ranks: too many for {spec.vocab_size} vocabulary entries")


def plan(spec: DecoderSpec, rank: int, tp: int) -> dict[str, LocalTensor]:
    """Every tensor of a rank, by its local name.

    Args:
        spec: The model.
        rank: Which of the group, from 0.
        tp: Size of the group.

    Raises:
        Unsupported: see :func:`check_divisible`.
    """
    check_divisible(spec, tp)
    names = spec.names
    vocabulary = vocabulary_part(spec, rank, tp)
    found = {"embedding.weight": _vocabulary(spec, f"{names.embedding}.weight", vocabulary, spec.embedding_width)}
    if names.positions is not None and spec.max_positions is not None:
        rows = spec.max_positions + spec.position_offset
        found["positions.weight"] = _whole(f"{names.positions}.weight", rows, spec.width)
    if names.project_in is not None and names.project_out is not None:
        found["project_in.weight"] = _whole(f"{names.project_in}.weight", spec.width, spec.embedding_width)
        found["project_out.weight"] = _whole(f"{names.project_out}.weight", spec.embedding_width, spec.width)
    if spec.final_norm is not None:
        found |= _norm("final_norm", f"{names.final_norm}", spec.final_norm, spec.width)
    if not spec.tied:
        found["head.weight"] = _vocabulary(spec, f"{names.head}.weight", vocabulary, spec.embedding_width)
    if spec.head_bias:
        found["head.bias"] = _vocabulary(spec, f"{names.head}.bias", vocabulary, None)
    for index, layer in enumerate(spec.layers):
        block = _layer(spec, layer, names.block.format(index), rank, tp)
        found |= {f"layers.{index}.{name}": tensor for name, tensor in block}
    return found


def _layer(spec: DecoderSpec, layer: Layer, prefix: str, rank: int, tp: int) -> Iterator[tuple[str, LocalTensor]]:
    names, attention, mlp = spec.names, layer.attention, layer.mlp
    for name in NORMS[layer.residual]:
        yield from _norm(name, prefix + names.norms[name], layer.norm, spec.width).items()
    if attention.qk_norm is not None and names.qk_norms is not None:
        for name, module in zip(("q_norm", "k_norm"), names.qk_norms, strict=True):
            yield from _norm(name, prefix + module, attention.qk_norm, attention.head_dim).items()
    heads = head_part(attention, rank, tp)
    inputs, inner = (0, spec.width), part(mlp.width, rank, tp)
    qkv = list(_qkv(spec, attention, heads, prefix))
    ups = [(prefix + name, inner) for name in (names.gate, names.up) if name is not None]
    yield "qkv.weight", _stack(qkv, "weight", inputs, names.transposed)
    yield "up.weight", _stack(ups, "weight", inputs, names.transposed)
    columns = (heads.queries[0] * attention.head_dim, heads.queries[1] * attention.head_dim)
    yield "out.weight", _stack([(prefix + names.out, (0, spec.width))], "weight", columns, names.transposed)
    yield "down.weight", _stack([(prefix + names.down, (0, spec.width))], "weight", inner, names.transposed)
    if attention.qkv_bias:
        yield "qkv.bias", _stack(qkv, "bias", None, False)
    if attention.out_bias:
        yield "out.bias", _stack([(prefix + names.out, (0, spec.width))], "bias", None, False)
    if mlp.up_bias:
        yield "up.bias", _stack(ups, "bias", None, False)
    if mlp.down_bias:
        yield "down.bias", _stack([(prefix + names.down, (0, spec.width))], "bias", None, False)


def _qkv(spec: DecoderSpec, attention: Attention, heads: HeadPart, prefix: str) -> Iterator[tuple[str, Range]]:
    """Modules and their rows, in the local order: all queries, then all keys, then all values."""
    names, width = spec.names, attention.head_dim
    wanted = (range(*heads.queries), heads.kv, heads.kv)
    modules = [prefix + name for name in names.qkv]
    if names.qkv_layout == "interleaved":
        for kind, chosen in enumerate(wanted):
            for head in chosen:
                yield modules[0], ((3 * head + kind) * width, (3 * head + kind + 1) * width)
        return
    stacked = names.qkv_layout == "stacked"
    starts = (0, attention.heads, attention.heads + attention.kv_heads) if stacked else (0, 0, 0)
    for kind, (chosen, start) in enumerate(zip(wanted, starts, strict=True)):
        for first, last in _runs(chosen):
            yield modules[0 if stacked else kind], ((start + first) * width, (start + last) * width)


def _runs(numbers: range | tuple[int, ...]) -> Iterator[Range]:
    """Consecutive numbers as ranges."""
    first = last = None
    for number in numbers:
        if first is not None and number == last:
            last = number + 1
            continue
        if first is not None and last is not None:
            yield first, last
        first, last = number, number + 1
    if first is not None and last is not None:
        yield first, last


def _stack(modules: list[tuple[str, Range]], kind: str, columns: Range | None, transposed: bool) -> LocalTensor:
    """Rows of several modules under one another."""
    pieces, at = [], 0
    for module, rows in modules:
        pieces.append(Piece(f"{module}.{kind}", rows, columns, transposed, at))
        at += rows[1] - rows[0]
    return LocalTensor((at,) if columns is None else (at, columns[1] - columns[0]), tuple(pieces))


def _whole(parameter: str, rows: int, columns: int | None) -> LocalTensor:
    shape = (rows,) if columns is None else (rows, columns)
    return LocalTensor(shape, (Piece(parameter, (0, rows), None if columns is None else (0, columns), False, 0),))


def _norm(name: str, module: str, norm: Norm, width: int) -> dict[str, LocalTensor]:
    kinds = ["weight"] * norm.affine + ["bias"] * norm.bias
    return {f"{name}.{kind}": _whole(f"{module}.{kind}", width, None) for kind in kinds}


def _vocabulary(spec: DecoderSpec, parameter: str, rows: Range, columns: int | None) -> LocalTensor:
    real = (rows[0], min(rows[1], spec.vocab_size))
    shape = (rows[1] - rows[0],) if columns is None else (rows[1] - rows[0], columns)
    return LocalTensor(shape, (Piece(parameter, real, None if columns is None else (0, columns), False, 0),))


# ------------------------------------------------------------------------------------------------------------- loading


def shapes(spec: DecoderSpec) -> dict[str, tuple[int, ...]]:
    """The shape of every parameter of the Hugging Face module that the spec speaks of, as it is stored."""
    found: dict[str, tuple[int, ...]] = {}
    for tensor in plan(spec, 0, 1).values():
        for piece in tensor.pieces:
            known = found.get(piece.parameter, (0, 0))
            rows = max(known[-1 if piece.transposed else 0], piece.rows[1])
            if piece.columns is None:
                found[piece.parameter] = (rows,)
            else:
                found[piece.parameter] = (piece.columns[1], rows) if piece.transposed else (rows, piece.columns[1])
    return found


def check_weights(spec: DecoderSpec, state: Mapping[str, Tensor]) -> None:
    """Refuses a state dict that is not exactly what the spec says.

    Raises:
        Unsupported: a weight is missing, of another shape, or has no place in the spec; or the model is tied by its
            config and has a head of its own all the same.
    """
    wanted = shapes(spec)
    if missing := sorted(wanted.keys() - state.keys()):
        raise Unsupported(f"{spec.family}: no weight {missing[0]} ({len(missing)} missing)")
    for name, shape in wanted.items():
        if tuple(state[name].shape) != shape:
            raise Unsupported(f"{spec.family}: {name} has shape {list(state[name].shape)}, not {list(shape)}")
    head, embedding = f"{spec.names.head}.weight", state[f"{spec.names.embedding}.weight"]
    if spec.tied and head in state and not _same(state[head], embedding):
        raise Unsupported(f"{spec.family}: tie_word_embeddings, but {head} is not the embedding")
    known = wanted.keys() | ({head} if spec.tied else set())
    if extra := sorted(name for name in state if name not in known and not name.endswith(IGNORED)):
        raise Unsupported(f"{spec.family}: no place for the weight {extra[0]} ({len(extra)} left over)")


def _same(one: Tensor, other: Tensor) -> bool:
    return one.data_ptr() == other.data_ptr() or torch.equal(one.detach(), other.detach())


def load(
    spec: DecoderSpec,
    source: nn.Module | Mapping[str, Tensor],
    rank: int = 0,
    tp: int = 1,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> dict[str, Tensor]:
    """A rank's weights, copied from whole ones.

    Args:
        spec: The model.
        source: A Hugging Face causal language model, or its state dict.
        rank: Which of the group.
        tp: Size of the group.
        dtype: Of the copies. None: as they are.
        device: Of the copies. None: where they are.

    Raises:
        Unsupported: see :func:`check_divisible` and :func:`check_weights`.
    """
    state = source.state_dict() if isinstance(source, nn.Module) else source
    check_weights(spec, state)
    found = {}
    for name, local in plan(spec, rank, tp).items():
        like = state[local.pieces[0].parameter]
        tensor = torch.zeros(local.shape, dtype=dtype or like.dtype, device=device or like.device)
        for piece in local.pieces:
            cut = piece.of(state[piece.parameter].detach())
            tensor[piece.at : piece.at + len(cut)].copy_(cut)
        found[name] = tensor
    return found

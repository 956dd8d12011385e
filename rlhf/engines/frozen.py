"""Weights that no step changes: kept once for all models that have them, and known by their content."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn

from rlhf.errors import UserError

_kept: ContextVar[dict[tuple[bytes, int], Tensor] | None] = ContextVar("kept", default=None)


@contextmanager
def kept_once() -> Iterator[None]:
    """Frozen weights that are equal bit for bit, in models taken in hand inside, lie in memory once.

    Such are the base under the adapters of a policy and of a critic, and a reward model that the critic started from.
    """
    token = _kept.set({})
    try:
        yield
    finally:
        _kept.reset(token)


def digests(model: nn.Module) -> dict[str, bytes]:
    """A hash of the content of every frozen weight."""
    from xxhash import xxh3_128_digest

    found = {}
    for name, weight in model.named_parameters():
        if not weight.requires_grad:
            content: Any = weight.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
            form = f"{weight.dtype} {list(weight.shape)} {weight.device}".encode()
            found[name] = xxh3_128_digest(form + xxh3_128_digest(content))
    return found


def share(model: nn.Module, content: Mapping[str, bytes]) -> None:
    """Puts weights that are kept already in the place of the model's own; outside of :func:`kept_once` does nothing.

    Args:
        model: Its frozen weights are given other storage, with the same numbers in it.
        content: Their :func:`digests`.
    """
    kept = _kept.get()
    if kept is None:
        return
    seen: Counter[bytes] = Counter()  # equal weights of one model, such as norms at their start, stay apart
    for name, weight in model.named_parameters():
        if name in content:
            digest = content[name]
            weight.data = kept.setdefault((digest, seen[digest]), weight.data)
            seen[digest] += 1


def fingerprint(content: Mapping[str, bytes]) -> str:
    """One text for all frozen weights of a model."""
    from xxhash import xxh3_128_hexdigest

    return xxh3_128_hexdigest(b"".join(name.encode() + digest for name, digest in sorted(content.items())))


def check(model: nn.Module, here: str, saved: str) -> None:
    """Refuses to go on with other frozen weights, such as with another reference, than a checkpoint was made with.

    Args:
        model: Whose they are.
        here: Their :func:`fingerprint`.
        saved: That of the checkpoint.

    Raises:
        UserError: they differ.
    """
    if here != saved:
        raise UserError(
            f"the frozen weights of the {type(model).__name__} are not those that the checkpoint was made with, so the "
            "model it starts from has changed; put that back, or begin the stage anew with --resume never"
        )


def trained_state(model: nn.Module) -> dict[str, Tensor]:
    """The state dict without the frozen weights: what whoever builds the model again does not have."""
    frozen = _frozen(model)
    return {name: tensor.detach() for name, tensor in model.state_dict().items() if name not in frozen}


def load_trained_state(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Loads what :func:`trained_state` kept into a model built in the same way.

    Raises:
        UserError: the model trains other weights.
    """
    result = model.load_state_dict(state, strict=False)
    if wrong := [*result.unexpected_keys, *sorted(set(result.missing_keys) - _frozen(model))]:
        raise UserError(
            f"checkpoint: {wrong[0]} ({len(wrong)} such weights) is trained here or there only; continue with the "
            "settings it was made with"
        )


def _frozen(model: nn.Module) -> set[str]:
    return {name for name, p in model.named_parameters(remove_duplicate=False) if not p.requires_grad}

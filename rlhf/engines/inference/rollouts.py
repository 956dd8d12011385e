"""Rollouts of several processes as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from rlhf import distributed
from rlhf.engines.devices import CPU, moved
from rlhf.engines.inference.responses import Request
from rlhf.errors import NonFiniteError
from rlhf.models.tokenizer import pad_id
from rlhf.types import Prompts, Rollout, Sequences


def answered_together(request: Request, answer: Callable[[], Rollout], count: int, *, step: int) -> Rollout:
    """The rollout of all processes, each of which answers some of the prompts; every process has to call it.

    Args:
        request: All prompts, in the order in which the processes have them.
        answer: Answers those of this process, and perhaps more.
        count: How many of its first rows count; 0 where there are none, or another process has the same.
        step: Optimiser steps made, for the error.

    Raises:
        NonFiniteError: on all processes, where the logits of one were not finite.
    """
    if not len(request):
        return answer()
    own, error = None, None
    try:
        own = answer()
    except NonFiniteError as raised:
        error = str(raised)
    found = distributed.gather((moved(own, CPU) if own is not None and count else None, count, error))
    if errors := [text for *_, text in found if text is not None]:
        raise NonFiniteError(errors[0], {"step": step, "first": "logits", "pass": None, "model": None})
    parts = [(part, part_count) for part, part_count, _ in found if part is not None]
    return join_rollouts(request.prompts, parts, pad_id=pad_id(request.tokenizer))


def join_rollouts(prompts: Prompts, parts: Sequence[tuple[Rollout, int]], *, pad_id: int) -> Rollout:
    """One rollout of all prompts, each its own group.

    Args:
        prompts: All of them, in order.
        parts: The rollout of each process, and how many of its first rows count.
        pad_id: Fills the slots without a token.
    """
    width = max(int(part.mask[:count].sum(1).max()) if count else 0 for part, count in parts)
    before = max(len(ids) for ids in prompts.ids)

    def response(part: Tensor, count: int, value: float) -> Tensor:
        cut = part[:count, :width]
        return F.pad(cut, (0, width - cut.shape[1]), value=value)

    def prompt(part: Tensor, count: int, value: float) -> Tensor:
        cut = part[:count, max(0, part.shape[1] - before) :]
        return F.pad(cut, (before - cut.shape[1], 0), value=value)

    def whole(column: str, value: float) -> Tensor:
        """[B, P + T] of the sequences' ids or attention mask."""
        rows = []
        for part, count in parts:
            tensor, split = getattr(part.sequences, column), part.sequences.prompt_width
            rows.append(
                torch.cat([prompt(tensor[:, :split], count, value), response(tensor[:, split:], count, value)], 1)
            )
        return torch.cat(rows)

    def column(name: str) -> Tensor:
        return torch.cat([response(getattr(part, name), count, 0) for part, count in parts])

    mask = column("mask")
    return Rollout(
        prompts,
        Sequences(whole("ids", pad_id), whole("attention_mask", 0), prompt_width=before),
        mask,
        column("rollout_logprobs"),
        column("behaviour_logprobs"),
        torch.cat([part.ended[:count] for part, count in parts]),
        torch.arange(len(prompts), device=mask.device),
        [text for part, count in parts for text in part.text[:count]],
    )

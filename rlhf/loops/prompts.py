"""The prompts of an on-policy stage, in the order in which they are answered."""

from __future__ import annotations

from typing import Any

from rlhf.algorithms.ppo import PPO
from rlhf.data.collate import collate_prompts
from rlhf.data.preparation import Prepared
from rlhf.data.stream import Stream
from rlhf.types import Prompts


def prompt_stream(settings: PPO, data: Prepared, *, seed: int) -> Stream[Any]:
    """The prompts of a stage in the order in which they are answered."""
    stream: Stream[Any] = Stream(data.train, settings.data.blender, seed=seed)
    stream.plan(draws=settings.iterations * settings.prompts, batch_size=settings.prompts)
    return stream


def next_prompts(settings: PPO, stream: Stream[Any]) -> Prompts:
    """An iteration's prompts, one per group."""
    return collate_prompts(stream.next(settings.prompts))

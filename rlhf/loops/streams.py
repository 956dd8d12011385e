"""Prompts and mixed-in texts of an on-policy stage in their order, the same for a run and for its preview."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlhf.algorithms.ppo import PPO
from rlhf.data.collate import collate_labelled, collate_prompts
from rlhf.data.preparation import Prepared
from rlhf.data.stream import Stream
from rlhf.loops.context import StageContext
from rlhf.types import Labelled, Prompts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def prompt_stream(settings: PPO, data: Prepared, *, seed: int) -> Stream[Any]:
    """The prompts of a stage in the order in which they are answered."""
    stream: Stream[Any] = Stream(data.train, settings.data.blender, seed=seed)
    stream.plan(draws=settings.iterations * settings.prompts, batch_size=settings.prompts)
    return stream


def next_prompts(settings: PPO, stream: Stream[Any]) -> Prompts:
    """An iteration's prompts, one per group."""
    return collate_prompts(stream.next(settings.prompts))


def mixture_stream(
    settings: PPO, tokenizer: PreTrainedTokenizerBase, context: StageContext
) -> tuple[Prepared, Stream[Any]]:
    """The texts of the mixture that the settings name, and their order."""
    mixture = settings.mixture
    assert mixture is not None
    phase = mixture.data.phase or settings.phase
    texts = mixture.data.prepare(tokenizer, form="text", phase=phase, cache_dir=context.cache_dir)
    stream: Stream[Any] = Stream(texts.train, mixture.data.blender, seed=context.seed_for("mixture"))
    rows = _mixture_rows(settings)
    stream.plan(draws=settings.policy_steps * rows, batch_size=rows)
    return texts, stream


def next_texts(settings: PPO, stream: Stream[Any], *, pad_id: int) -> Labelled:
    """The mixture's texts of one optimiser step."""
    return collate_labelled(stream.next(_mixture_rows(settings)), pad_id=pad_id)


def _mixture_rows(settings: PPO) -> int:
    assert settings.mixture is not None
    return settings.mixture.batch_size or settings.mini_batch_size

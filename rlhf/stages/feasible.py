"""What of the models can be checked before the first stage: whether they have what is to be trained, and the room."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from rlhf.errors import UserError
from rlhf.interfaces import Algorithm, Critic, Policy

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Outlines = Callable[[str], "PreTrainedModel | None"]


def infeasible(stages: Mapping[str, Algorithm], names: Sequence[str]) -> Iterator[str]:
    """Problems of stages with their models, each with its place.

    A model that an earlier stage leaves is of the architecture that this one trains. Models that are not known before
    they are loaded are passed over.

    Args:
        stages: All stages.
        names: Those to look at.
    """

    @functools.cache
    def left_by(stage: str) -> PreTrainedModel | None:
        found = _trained(stages[stage])
        return None if found is None else outline(found)

    def outline(component: Any) -> PreTrainedModel | None:
        path = getattr(component, "path", None)
        if isinstance(path, str) and path.startswith("@"):
            return left_by(path.removeprefix("@").split("/")[0])
        return component.outline() if isinstance(component, Policy) else None

    for name in names:
        algorithm = stages[name]
        policy = _trained(algorithm)
        own = None if policy is None else outline(policy)
        for item in fields(algorithm):  # pyright: ignore[reportArgumentType]
            component = getattr(algorithm, item.name)
            if not isinstance(component, Policy | Critic):
                continue
            starts = isinstance(component, Critic) and not component.starts_as_reward_model
            if (model := own if starts else outline(component)) is None:
                continue
            try:
                component.check_training(model)
            except UserError as error:
                yield f"stages.{name}.{item.name}: {error}"
        positions = getattr(own and own.config.get_text_config(), "max_position_embeddings", None)
        if positions is not None:
            yield from (f"stages.{name}.{problem}" for problem in algorithm.check_positions(positions))


def _trained(algorithm: Algorithm) -> Policy | None:
    """Where the model comes from that an algorithm trains, and leaves."""
    found = getattr(algorithm, "policy", None) or getattr(algorithm, "model", None)
    return found if isinstance(found, Policy) else None

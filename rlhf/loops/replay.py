"""The rollouts that an on-policy stage learns from in the place of sampling."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch

from rlhf.algorithms.ppo import PPO
from rlhf.data.stored_rollouts import StoredRollouts
from rlhf.errors import UserError
from rlhf.interfaces import LiveEngine
from rlhf.loops.context import StageContext
from rlhf.models.modules import PolicyModel
from rlhf.types import Rollout

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def open_replay(
    settings: PPO, policy: LiveEngine, tokenizer: PreTrainedTokenizerBase, context: StageContext
) -> StoredRollouts | None:
    """What the settings name to be replayed, or None.

    Raises:
        UserError: there are not enough rollouts, or they are those that this stage is about to replace.
    """
    if settings.replay is None:
        return None
    StoredRollouts.check(settings.replay, settings.iterations, settings.batch_size)
    folder = Path(settings.replay).expanduser().resolve()
    if folder.is_relative_to(context.directory.resolve()):
        raise UserError(f"replay: {settings.replay} is in this stage's own folder, which begins empty; change --name")
    config = cast(PolicyModel, policy.model).lm.config.get_text_config()
    return StoredRollouts(folder, tokenizer, config.vocab_size)


def check_groups(rollout: Rollout, size: int) -> None:
    """Refuses stored rollouts whose prompts were answered another number of times.

    Raises:
        UserError: how often they were.
    """
    counts = torch.unique(rollout.groups, return_counts=True)[1].tolist()
    if other := next((count for count in counts if count != size), None):
        raise UserError(
            f"replay: its prompts have {other} responses each, but samples_per_prompt is {size}; set it to that of "
            "its run (where that had a filter, to the responses of a prompt that it kept)"
        )

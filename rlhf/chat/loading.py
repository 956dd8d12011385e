"""Loads a model and all that its answers depend on."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from rlhf.chat.speaker import Speaker, default_template
from rlhf.data.templates import Chat
from rlhf.engines.inference import Sampling
from rlhf.engines.local import Local
from rlhf.models.policy import Pretrained
from rlhf.models.rewards import ScalarReward
from rlhf.models.storage import load_usage


def load_speaker(path: str, *, name: str, reward: str | None = None, settings: dict[str, Any] | None = None) -> Speaker:
    """A model ready to talk, prompted and sampled from as in its training where that is known.

    Args:
        path: Of the model, as :func:`rlhf.chat.folders.find_model` answers it.
        name: What to call it.
        reward: Folder of a reward model that judges its answers; None for none.
        settings: Settings of the sampling that replace those of its training.
    """
    model = Pretrained(path=path).build(lambda: (), seed=0)
    template, trained = load_usage(path)
    template = template or default_template(model.tokenizer)
    scorer = None if reward is None else ScalarReward(path=reward).build(Local(), model.tokenizer)
    system = None
    if isinstance(template, Chat):  # the conversation has it from here on, and may change it
        system, template = template.system, dataclasses.replace(template, system=None)
    sampling = Sampling(**{**trained, **(settings or {})})
    return Speaker(name, model, template, sampling, scorer=scorer, system=system)


def names_of(paths: list[str]) -> list[str]:
    """Ends of the paths by which they can be told apart, such as ``ppo/model`` and ``ppo/ema``."""
    for length in range(2, 2 + max(len(Path(path).parts) for path in paths)):
        names = ["/".join(Path(path).parts[-length:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    return [f"{letter}: {path}" for letter, path in zip("AB", paths, strict=False)]

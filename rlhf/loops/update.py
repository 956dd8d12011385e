"""Optimiser steps of models that learn together, and how far the update on an iteration's experience is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rlhf.interfaces import LiveEngine
from rlhf.types import Batch, Experience, Tally


def step_together(engines: Mapping[str, LiveEngine]) -> tuple[bool, dict[str, float]]:
    """One optimiser step of all, or of none where the gradient of one has overflowed.

    Args:
        engines: Models with what was accumulated for the step, by the name that their figures carry.

    Returns:
        Whether it was made, and figures: ``grad_norm/<name>`` and ``lr/<name>`` of a step made, and where losses are
        scaled ``loss_scale/<name>`` and ``skipped_steps``, all that were skipped so far.
    """
    overflowed = [engine.overflowed() for engine in engines.values()]  # all are asked, on every process
    made, figures = not any(overflowed), {}
    for name, engine in engines.items():
        found = engine.step() if made else engine.skip()
        figures |= {f"{figure}/{name}": value for figure, value in found.items()}
        if "loss_scale" in found:
            figures["skipped_steps"] = max(engine.skipped for engine in engines.values())
    return made, figures


def skipped(figures: Mapping[str, float]) -> list[str]:
    """What to say at the end of a stage of the steps that it has skipped."""
    count = int(figures.get("skipped_steps", 0))
    return [f"{count} optimiser steps were skipped: their gradient overflowed in fp16"] if count else []


@dataclass
class Update:
    """How far an iteration's update is.

    Attributes:
        experience: What it learns from.
        steps: Figures of the optimiser steps, skipped ones included.
        made: How many of them were made.
        samples: Responses that these learned from.
        tokens: Tokens of all, prompts included.
        seconds: What they took.
    """

    experience: Experience
    steps: list[dict[str, float]] = field(default_factory=list)
    made: int = 0
    samples: int = 0
    tokens: int = 0
    seconds: float = 0.0

    def add(self, figures: dict[str, float], batch: Batch, seconds: float, *, made: bool = True) -> None:
        """Takes in an optimiser step, made or skipped."""
        self.steps.append(figures)
        self.made += made
        self.samples += len(batch) if made else 0
        self.tokens += int(batch.sequences.attention_mask.sum())
        self.seconds += seconds

    def tally(self) -> Tally:
        """Figures of the experience and of the update as a whole; those of single steps are not among them."""
        tally = Tally()
        tally.merge(self.experience.metrics)
        tally.sum("update/steps", self.made)
        tally.sum("update/samples", self.samples)
        tally.sum("time/train", self.seconds)
        tally.sum("throughput/train_tokens_per_s", self.tokens / self.seconds)
        return tally

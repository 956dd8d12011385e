"""An update of the policy on one iteration's experience, as far as it is: what a checkpoint in its middle keeps."""

from __future__ import annotations

from dataclasses import dataclass, field

from rlhf.types import Batch, Experience, Tally


@dataclass
class Update:
    """How far an iteration's update is.

    Attributes:
        experience: What it learns from.
        steps: Figures of the optimiser steps made.
        samples: Responses they learned from.
        tokens: Tokens of these, prompts included.
        seconds: What they took.
    """

    experience: Experience
    steps: list[dict[str, float]] = field(default_factory=list)
    samples: int = 0
    tokens: int = 0
    seconds: float = 0.0

    def add(self, figures: dict[str, float], batch: Batch, seconds: float) -> None:
        """Takes in an optimiser step."""
        self.steps.append(figures)
        self.samples += len(batch)
        self.tokens += int(batch.sequences.attention_mask.sum())
        self.seconds += seconds

    def tally(self) -> Tally:
        """Figures of the experience and of the update as a whole; those of single steps are not among them."""
        tally = Tally()
        tally.merge(self.experience.metrics)
        tally.sum("update/steps", len(self.steps))
        tally.sum("update/samples", self.samples)
        tally.sum("time/train", self.seconds)
        tally.sum("throughput/train_tokens_per_s", self.tokens / self.seconds)
        return tally

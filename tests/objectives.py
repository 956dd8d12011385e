"""The whole objective of an on-policy algorithm on two responses to one prompt, and its gradient: for numbers by hand.

The first response has one token and the score 1, the second two tokens and the score 0; at most eight are allowed.
"""

from __future__ import annotations

import math
from typing import Any

import tiny_runs
import torch
from torch import Tensor

from rlhf.algorithms.functional.masking import aggregate
from rlhf.algorithms.ppo import PPO
from rlhf.types import Batch, Outputs, Scored

SEQUENCES, MASK = tiny_runs.right_padded([[1, 2], [1, 3, 4]])
SCORES, GROUPS = torch.tensor([1.0, 0.0]), torch.tensor([0, 0])
OLD = torch.tensor([[-1.0, 0.0], [-2.0, -3.0]])
STD = math.sqrt(0.5) + 1e-4
"""Of the scores 1 and 0, with ε."""


def batch_of(settings: PPO, *, reference: Tensor = OLD, coef: float = 0.0, greedy: Tensor | None = None) -> Batch:
    """What the update reads, from scores and log-probabilities."""
    rewards = settings.rewards(SCORES, OLD, reference, MASK, kl_coef=coef)
    values = torch.zeros(2, 2) if settings.advantage.needs_critic else None
    bootstrap = None if values is None else torch.zeros(2)
    scored = Scored(rewards, SCORES, values, bootstrap, MASK, GROUPS, greedy=greedy, old_logprobs=OLD)
    advantages, returns = settings.advantages(scored)
    return Batch(
        sequences=SEQUENCES,
        mask=MASK,
        rollout_logprobs=OLD,
        old_logprobs=OLD,
        ref_logprobs=reference,
        advantages=advantages,
        returns=returns,
        values=values,
        scores=SCORES,
    )


def slope(settings: PPO, *, log_ratio: float = 0.0, coef: float = 0.0, **more: Any) -> list[float]:
    """Gradient of what is minimised by the log-probabilities of the three tokens.

    Args:
        settings: The algorithm.
        log_ratio: By how much the first response's token has become likelier since it was sampled.
        coef: β of the KL.
        more: For :func:`batch_of`.
    """
    batch = settings.policy_loss.prepare(batch_of(settings, coef=coef, **more))
    moved = OLD.clone()
    moved[0, 0] += log_ratio
    logprobs = moved.requires_grad_()
    terms, _ = settings.loss(Outputs(logprobs=logprobs), batch, kl_coef=coef)
    denominators = settings.denominators(batch)
    total = sum(
        term.coef * aggregate(term.values, term.mask, mode=term.mode, denominator=denominators[term.name])
        for term in terms
    )
    (found,) = torch.autograd.grad(total, logprobs)  # pyright: ignore[reportArgumentType]
    assert found[0, 1] == 0
    return found[MASK].tolist()

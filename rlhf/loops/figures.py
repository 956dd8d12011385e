"""Figures of an on-policy iteration: of its rollouts, its optimiser steps and its gradients."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from rlhf.algorithms.functional import kl
from rlhf.algorithms.functional.statistics import explained_variance
from rlhf.errors import NonFiniteError, UserError
from rlhf.interfaces import LiveEngine
from rlhf.types import Batch, Rollout, Scored, Scores, Tally


def describe(tally: Tally, rollout: Rollout, scored: Scored, batch: Batch) -> None:
    """Adds what is known of an iteration before its update: rewards, lengths, advantages, KL, values."""
    mask = rollout.mask
    tally.mean("reward/total", scored.rewards.sum(1))
    tally.mean("rollout/length", mask.sum(1))
    tally.mean("rollout/truncated_fraction", ~rollout.ended)
    tally.mean("advantage/mean", batch.advantages, mask)
    spread = batch.advantages[mask].double()
    tally.sum("advantage/std", float(spread.std(unbiased=False)) if len(spread) else 0.0)
    if batch.ref_logprobs is not None:
        for estimator in ("k1", "k2", "k3"):
            values = kl.estimate(estimator, batch.old_logprobs, batch.ref_logprobs, mask=mask)
            tally.mean(f"kl/ref_{estimator}", values, mask)
        tally.mean("kl/sequence", kl.k1(batch.old_logprobs, batch.ref_logprobs, mask=mask).sum(1))
    if batch.values is not None and batch.returns is not None:
        tally.sum("value/explained_variance", float(explained_variance(batch.values, batch.returns, mask)))


def check_scores(rollout: Rollout, scores: Scores) -> None:
    """Refuses scores of another shape than the responses', or not finite.

    Raises:
        UserError: the shape is neither [B] nor [B, T].
        NonFiniteError: a score is NaN or infinite; the message has its response.
    """
    total, mask = scores.total, rollout.mask
    if total.shape not in (mask.shape[:1], mask.shape):
        raise UserError(
            f"reward: scores of shape {list(total.shape)} for {len(mask)} responses; a reward model answers "
            f"{list(mask.shape[:1])}, one per response, or {list(mask.shape)}, one per token"
        )
    wrong = ~total.isfinite()
    wrong = wrong if total.ndim == 1 else (wrong & mask).any(1)
    if wrong.any():
        row = int(wrong.nonzero()[0])
        value = float(total[row] if total.ndim == 1 else total[row][mask[row] & ~total[row].isfinite()][0])
        raise NonFiniteError(
            f"reward: the score is {value} for {int(wrong.sum())} of {len(wrong)} responses, first for "
            f"{rollout.text[row][:200]!r} to the prompt {rollout.prompts.text[row][:200]!r}; no weight was changed. "
            "Mend the reward model",
            {"rollout": rollout, "scores": scores},
        )


def mean_of(steps: Sequence[dict[str, float]]) -> dict[str, float]:
    """Mean over optimiser steps, of those that have the figure; the largest for ``…_max`` and for a count."""
    names = dict.fromkeys(name for step in steps for name in step if name not in ("step", "iteration"))
    means = {}
    for name in names:
        values = [step[name] for step in steps if name in step]
        largest = name.endswith("_max") or name == "skipped_steps"
        means[name] = max(values) if largest else sum(values) / len(values)
    return means


def compare_gradients(engine: LiveEngine, before: Sequence[Tensor]) -> dict[str, float]:
    """Norms of the gradient that was there before and of what has been added to it, and their cosine."""
    added = [after - earlier for after, earlier in zip(engine.gradient(), before, strict=True)]
    policy, mixture = engine.inner(before, before) ** 0.5, engine.inner(added, added) ** 0.5
    cosine = engine.inner(before, added) / (policy * mixture) if policy * mixture > 0 else float("nan")
    return {"gradient/policy_norm": policy, "gradient/mixture_norm": mixture, "gradient/cosine": cosine}

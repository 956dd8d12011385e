"""Estimators of KL(policy ‖ reference) per token, the exact divergence, and the laws of coefficients that follow it."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from rlhf.algorithms.functional._shared import check_mask, check_same_shape, keep, to_float
from rlhf.algorithms.functional.logprobs import log_softmax


def _log_ratio(logprobs: Tensor, ref_logprobs: Tensor, mask: Tensor | None) -> Tensor:
    check_same_shape(logprobs=logprobs, ref_logprobs=ref_logprobs)
    if mask is not None:
        check_mask(mask, logprobs=logprobs)
    logprobs, ref_logprobs = to_float(logprobs, ref_logprobs)
    return keep(logprobs, mask) - keep(ref_logprobs, mask)


def k1(logprobs: Tensor, ref_logprobs: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """The plain log-ratio: unbiased, high variance, of either sign.

    k1 = log π(a) − log π_ref(a); its mean over a ~ π is KL(π ‖ π_ref), positive where the policy likes its tokens
    better than the reference does. As a loss it is useless: its expected gradient is 0.
    Source: J. Schulman, "Approximating KL divergence", http://joschu.net/blog/kl-approx.html, k1.

    Args:
        logprobs: [B, T] (or any shape) log-probabilities of the policy's tokens under the policy, in nats.
        ref_logprobs: Same shape, of the same tokens under the reference.
        mask: Same shape, bool; where False the result is 0.

    Returns:
        Shape of `logprobs`, in nats.

    Raises:
        ValueError: shapes differ or the mask is not bool.
    """
    return _log_ratio(logprobs, ref_logprobs, mask)


def k2(logprobs: Tensor, ref_logprobs: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """Half the squared log-ratio: never negative, little biased while the two are close.

    k2 = ½ (log π(a) − log π_ref(a))². As a loss on samples of π its expected gradient is that of KL(π ‖ π_ref).
    Source: J. Schulman, "Approximating KL divergence", http://joschu.net/blog/kl-approx.html, k2.

    Args:
        logprobs: [B, T] (or any shape) log-probabilities of the policy's tokens under the policy, in nats.
        ref_logprobs: Same shape, of the same tokens under the reference.
        mask: Same shape, bool; where False the result is 0.

    Returns:
        Shape of `logprobs`, ≥ 0.

    Raises:
        ValueError: shapes differ or the mask is not bool.
    """
    return 0.5 * _log_ratio(logprobs, ref_logprobs, mask).square()


def k3(logprobs: Tensor, ref_logprobs: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """Log-ratio with a control variate: unbiased, never negative, low variance while the two are close.

    k3 = (ρ − 1) − log ρ with ρ = π_ref(a) / π(a). As a loss on samples of π its expected gradient is that of the
    *other* direction, KL(π_ref ‖ π). Overflows to inf where the reference is likelier by more than 88 nats.
    Source: arXiv:2402.03300, eq. 4; J. Schulman, http://joschu.net/blog/kl-approx.html, k3.

    Args:
        logprobs: [B, T] (or any shape) log-probabilities of the policy's tokens under the policy, in nats.
        ref_logprobs: Same shape, of the same tokens under the reference.
        mask: Same shape, bool; where False the result is 0.

    Returns:
        Shape of `logprobs`, ≥ 0.

    Raises:
        ValueError: shapes differ or the mask is not bool.
    """
    log_rho = -_log_ratio(logprobs, ref_logprobs, mask)
    return torch.expm1(log_rho) - log_rho


ESTIMATORS: dict[str, Callable[..., Tensor]] = {"k1": k1, "k2": k2, "k3": k3}


def estimate(name: str, logprobs: Tensor, ref_logprobs: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """The estimator called `name`.

    Args:
        name: "k1", "k2" or "k3".
        logprobs: As in `k1`.
        ref_logprobs: As in `k1`.
        mask: As in `k1`.

    Returns:
        Shape of `logprobs`, in nats.

    Raises:
        ValueError: no estimator has that name, shapes differ or the mask is not bool.
    """
    if name not in ESTIMATORS:
        raise ValueError(f"No KL estimator is called {name!r}. Known: {', '.join(ESTIMATORS)}.")
    return ESTIMATORS[name](logprobs, ref_logprobs, mask=mask)


def exact(logits: Tensor, ref_logits: Tensor, *, temperature: float = 1.0, mask: Tensor | None = None) -> Tensor:
    """KL(policy ‖ reference) of the two whole distributions of the next token.

    KL = Σ_v p_v (log p_v − log q_v) with 0 log 0 = 0: a token the policy excludes (logit −inf) adds nothing. A token
    that only the reference excludes makes the divergence inf, which it is.
    Source: arXiv:1909.08593, §2.2 (the penalty in expectation over the token).

    Args:
        logits: [B, T, V] of the policy, any floating dtype.
        ref_logits: [B, T, V] of the reference.
        temperature: τ > 0, divides both.
        mask: [B, T] bool; where False the logits may hold anything and the result is 0.

    Returns:
        [B, T] in nats, ≥ 0 up to rounding.

    Raises:
        ValueError: shapes differ or the temperature is not positive.
    """
    check_same_shape(logits=logits, ref_logits=ref_logits)
    logits, ref_logits = to_float(logits, ref_logits)
    logp = log_softmax(logits, temperature=temperature, mask=mask)
    logq = log_softmax(ref_logits, temperature=temperature, mask=mask)
    p = logp.exp()
    excluded = p == 0
    return keep((p * (logp.masked_fill(excluded, 0.0) - logq.masked_fill(excluded, 0.0))).sum(-1), mask)


def adaptive_update(
    coef: float, observed: float, *, target: float, horizon: float, samples: float, clip: float = 0.2
) -> float:
    """Next coefficient of a KL penalty that is steered towards a target divergence.

    β' = β (1 + clip(KL / target − 1, ±clip) · samples / horizon).
    Source: arXiv:1909.08593, §2.2 (K_β = 1 / horizon there per sample).

    Args:
        coef: β now.
        observed: KL measured since the last update, in the units of `target` (nats per sequence, as a rule).
        target: Divergence to hold, > 0.
        horizon: Samples over which an error of 100 % would double β, > 0.
        samples: Samples (sequences) the observation stands for.
        clip: Largest relative error that counts, > 0.

    Returns:
        β'.

    Raises:
        ValueError: a setting is out of range, the observation is NaN, or one update could make β negative.
    """
    if not (target > 0 and horizon > 0 and samples >= 0 and clip > 0):
        raise ValueError(
            f"Need target, horizon, clip > 0 and samples >= 0: {target=}, {horizon=}, {clip=}, {samples=}."
        )
    if math.isnan(observed):
        raise ValueError("The observed KL is NaN: the coefficient cannot follow it.")
    if clip * samples >= horizon:
        raise ValueError(f"One update could turn the coefficient negative: {clip=} * {samples=} >= {horizon=}.")
    error = min(max(observed / target - 1.0, -clip), clip)
    return coef * (1.0 + error * samples / horizon)


def rising_target(done: int, *, budget: float, iterations: int) -> float:
    """What a budget of divergence for a whole run allows so far, in equal parts for all iterations.

    target_i = budget · min(i / n, 1).

    Args:
        done: i, iterations made, the one that was observed included.
        budget: Divergence that the run may end with, > 0 (nats per sequence, as a rule).
        iterations: n, of the whole run, ≥ 1.

    Returns:
        The target, in the units of the budget.

    Raises:
        ValueError: a setting is out of range.
    """
    if not (budget > 0 and iterations >= 1 and done >= 1):
        raise ValueError(f"Need budget > 0, iterations and done >= 1: {budget=}, {iterations=}, {done=}.")
    return budget * min(done / iterations, 1.0)

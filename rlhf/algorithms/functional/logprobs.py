"""From logits to the log-probability of a token and the entropy of a distribution, in fp32."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rlhf.algorithms.functional._shared import check_dims, check_integer, check_mask, check_same_shape, keep, to_float


def token_logprobs(logits: Tensor, tokens: Tensor, *, temperature: float = 1.0, mask: Tensor | None = None) -> Tensor:
    """Log-probability of given tokens under a tempered softmax.

    log π(a) = z_a / τ − log Σ_v exp(z_v / τ), on logits brought to fp32 first: in bf16 a log-softmax over a large
    vocabulary is wrong by several per cent of the ratio. A logit of −inf is a token that cannot occur: it takes no
    part in the sum, and its own log-probability is −inf. One fp32 copy of the logits is held for the gradient.

    Args:
        logits: [B, T, V] scores of the next token, any floating dtype.
        tokens: [B, T] int ids in [0, V).
        temperature: τ > 0; the sampler's, in everything that enters a ratio.
        mask: [B, T] bool; where False logits and tokens may hold anything (ids out of range too) and the result is 0.

    Returns:
        [B, T] in nats, ≤ 0.

    Raises:
        ValueError: shapes differ, tokens are not integers or the temperature is not positive.
    """
    check_dims("B T V", logits=logits)
    check_integer(tokens=tokens)
    if tokens.shape != logits.shape[:2]:
        raise ValueError(f"logits {list(logits.shape)} need tokens {list(logits.shape[:2])}, not {list(tokens.shape)}.")
    scaled = _scaled(logits, temperature, mask)
    ids = tokens.long()
    if mask is not None:
        ids = torch.where(mask, ids, torch.zeros_like(ids))
    picked = scaled.gather(-1, ids.unsqueeze(-1)).squeeze(-1)
    return keep(picked - scaled.logsumexp(-1), mask)


def entropy(logits: Tensor, *, temperature: float = 1.0, mask: Tensor | None = None) -> Tensor:
    """Entropy of the tempered softmax.

    H = −Σ_v p_v log p_v with 0 log 0 = 0: tokens with a logit of −inf add nothing, and no NaN to the gradient.

    Args:
        logits: [B, T, V] scores of the next token, any floating dtype.
        temperature: τ > 0, as in `token_logprobs`.
        mask: [B, T] bool; where False the logits may hold anything and the result is 0.

    Returns:
        [B, T] in nats, between 0 and log V.

    Raises:
        ValueError: shapes differ or the temperature is not positive.
    """
    check_dims("B T V", logits=logits)
    logp = _scaled(logits, temperature, mask).log_softmax(-1)
    p = logp.exp()
    return keep(-(p * logp.masked_fill(p == 0, 0.0)).sum(-1), mask)


def collision(logits: Tensor, *, temperature: float = 1.0, mask: Tensor | None = None) -> Tensor:
    """Probability that two draws from the tempered softmax agree.

    C = Σ_v p_v². With the sampled token's p it gives the squared norm of the log-probability's gradient by the logits:
    ‖∇_z log π(a)‖² = 1 − 2 p_a + Σ_v p_v² (at τ = 1).

    Args:
        logits: [B, T, V] scores of the next token, any floating dtype.
        temperature: τ > 0, as in `token_logprobs`.
        mask: [B, T] bool; where False the logits may hold anything and the result is 0.

    Returns:
        [B, T], between 1 / V and 1.

    Raises:
        ValueError: shapes differ or the temperature is not positive.
    """
    check_dims("B T V", logits=logits)
    return keep(_scaled(logits, temperature, mask).softmax(-1).square().sum(-1), mask)


def log_softmax(logits: Tensor, *, temperature: float = 1.0, mask: Tensor | None = None) -> Tensor:
    """The whole log-distribution in fp32: log π(v) = z_v / τ − log Σ_u exp(z_u / τ).

    Args:
        logits: [B, T, V] scores of the next token, any floating dtype.
        temperature: τ > 0, as in `token_logprobs`.
        mask: [B, T] bool; where False the logits count as all 0, so nothing they hold gets into value or gradient.

    Returns:
        [B, T, V] in nats.

    Raises:
        ValueError: shapes differ or the temperature is not positive.
    """
    check_dims("B T V", logits=logits)
    return _scaled(logits, temperature, mask).log_softmax(-1)


def _scaled(logits: Tensor, temperature: float, mask: Tensor | None) -> Tensor:
    """Logits in fp32 over the temperature, with the row maximum at 0, which keeps the digits of large logits."""
    if not (temperature > 0 and math.isfinite(temperature)):
        raise ValueError(f"temperature must be positive and finite, it is {temperature}.")
    if logits.shape[-1] == 0:
        raise ValueError(f"logits need a vocabulary, they are {list(logits.shape)}.")
    (logits,) = to_float(logits)
    if mask is not None:
        check_mask(mask)
        check_same_shape(positions_of_logits=logits[..., 0], mask=mask)
        logits = keep(logits, mask.unsqueeze(-1))
    scaled = logits - logits.detach().amax(-1, keepdim=True)
    return scaled if temperature == 1 else scaled / temperature

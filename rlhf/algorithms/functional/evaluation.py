"""What a policy's answers come to: pass@k, best of k, win rates, distinct n-grams."""

from __future__ import annotations

import torch
from torch import Tensor

from rlhf.algorithms.functional._shared import check_dims, check_integer, check_mask, check_same_shape


def pass_at_k(correct: Tensor, *, k: int) -> Tensor:
    """Probability that at least one of k responses is correct, without bias from n ≥ k samples of a prompt.

    pass@k = 1 − C(n − c, k) / C(n, k),   c correct ones among n.
    The quotient is the product of (1 − k / i) over i = n − c + 1 … n, in which nothing overflows.
    Source: arXiv:2107.03374, eq. 1.

    Args:
        correct: [P, n] bool, whether response j to a prompt is correct.
        k: Responses that one may try, 1 to n.

    Returns:
        [P] float64, one estimate per prompt.

    Raises:
        ValueError: another shape, no bool, or k out of range.
    """
    check_dims("P n", correct=correct)
    if correct.dtype != torch.bool:
        raise ValueError(f"correct must be bool, it is {correct.dtype} (shape {list(correct.shape)}).")
    n = _responses(correct, k)
    index = torch.arange(1, n + 1, device=correct.device, dtype=torch.float64)
    wrong = n - correct.sum(1, keepdim=True)
    # at i = k the factor is 0: with fewer than k wrong ones among the n, every k have a correct one
    factors = torch.where(index > wrong, (1 - k / index).clamp(min=0), 1.0)
    return 1 - factors.prod(1)


def best_at_k(scores: Tensor, *, k: int) -> Tensor:
    """Expected score of the best of k responses, without bias from n ≥ k samples of a prompt.

    best@k = Σ_i s_(i) C(i − 1, k − 1) / C(n, k),   s_(1) ≤ … ≤ s_(n): in so many of the subsets of k is s_(i) the best.
    The weights follow from w_n = k / n and w_(i−1) = w_i (i − k) / (i − 1), in which nothing overflows. k = 1 is the
    mean, k = n the largest; of scores 0 and 1 it is pass@k.
    Source: arXiv:2107.03374, eq. 1, whose mean over subsets is taken of scores here.

    Args:
        scores: [P, n] score of response j to a prompt, in any unit.
        k: Responses of which the best counts, 1 to n.

    Returns:
        [P] float64, in the unit of the scores.

    Raises:
        ValueError: another shape, or k out of range.
    """
    check_dims("P n", scores=scores)
    n = _responses(scores, k)
    weights, weight = [0.0] * n, k / n
    for i in range(n, k - 1, -1):
        weights[i - 1] = weight
        weight *= (i - k) / max(i - 1, 1)
    ordered = scores.double().sort(1).values
    return (ordered * torch.tensor(weights, dtype=torch.float64, device=scores.device)).sum(1)


def _responses(samples: Tensor, k: int) -> int:
    """How many responses there are to a prompt, if k of them can be chosen."""
    n = samples.shape[1]
    if not 1 <= k <= n:
        raise ValueError(f"k is {k}; of {n} responses to a prompt, 1 to {n} can be chosen.")
    return n


def win_rate(scores: Tensor, opponent: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """How often one policy's response is scored above another's to the same prompt; a tie is half a win.

    rate = 1/B Σ w_i,   w_i = 1 where s_i > o_i, ½ where they are equal, 0 else;
    error = sqrt(Σ (w_i − rate)² / (B − 1) / B), the standard error of the mean over prompts.

    Args:
        scores: [B] of one, in any unit.
        opponent: [B] of the other, in the same unit.

    Returns:
        Rate, its standard error (NaN for fewer than two prompts), and the share of ties: float64 scalars.

    Raises:
        ValueError: shapes differ, or a score is NaN, which is neither above nor below another.
    """
    check_dims("B", scores=scores, opponent=opponent)
    check_same_shape(scores=scores, opponent=opponent)
    for name, values in (("scores", scores), ("opponent", opponent)):
        if values.isnan().any():
            raise ValueError(f"{name} hold NaN (shape {list(values.shape)}).")
    ties = (scores == opponent).double()
    wins = (scores > opponent).double() + 0.5 * ties
    error = wins.std() / len(wins) ** 0.5 if len(wins) > 1 else wins.new_tensor(float("nan"))
    return wins.mean(), error, ties.mean()


def distinct_n(ids: Tensor, mask: Tensor, *, n: int) -> Tensor:
    """Different n-grams over all n-grams of the responses, all of them together.

    Source: arXiv:1510.03055, section 5.

    Args:
        ids: [B, T] integer tokens.
        mask: [B, T] bool, the tokens that count; those of a row are taken to follow one another.
        n: Tokens of an n-gram, at least 1.

    Returns:
        A float64 scalar in [0, 1]; 0 where no row has n tokens.

    Raises:
        ValueError: shapes differ, ids are no integers, or n is below 1.
    """
    check_dims("B T", ids=ids, mask=mask)
    check_integer(ids=ids)
    check_mask(mask, ids=ids)
    if n < 1:
        raise ValueError(f"n is {n}; an n-gram has at least 1 token.")
    rows = [row[real].tolist() for row, real in zip(ids, mask, strict=True)]
    grams = [tuple(row[start : start + n]) for row in rows for start in range(len(row) - n + 1)]
    share = len(set(grams)) / len(grams) if grams else 0.0
    return torch.tensor(share, dtype=torch.float64, device=ids.device)

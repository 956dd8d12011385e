"""Splits by prompt: which phase a row serves, and what is held out.

A row's place depends on the *set* of prompts only: not on row order, seed, rank or how often a prompt occurs. Equal
prompts are never parted, so nothing is trained on in one phase and evaluated, or trained on again, in another.

Prompts are known here by 16-byte hashes (``rlhf.data.fingerprint.of_texts``), so that millions of them fit in memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rlhf.errors import UserError

PHASE, HOLDOUT = "phase", "holdout"
"""Salts of the hashes: the two splits are independent of each other."""


def _ranks(prompts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each row's place among the distinct prompts in the order of their hashes [N], and how often each occurs [P]."""
    order = np.lexsort((prompts[:, 1], prompts[:, 0]))
    ordered = prompts[order]
    new = np.ones(len(prompts), dtype=bool)
    new[1:] = (ordered[1:] != ordered[:-1]).any(1)
    ranks = np.empty(len(prompts), dtype=np.int64)
    ranks[order] = np.cumsum(new) - 1
    return ranks, np.bincount(ranks, minlength=int(new.sum()))


def _nearest(value: float) -> int:
    """Halves go up: Python's ``round`` would send them to the even neighbour."""
    return math.floor(value + 0.5)


def check(fractions: Sequence[float]) -> None:
    """Refuses shares that cannot be dealt out.

    Raises:
        UserError: a fraction is negative, or all are 0.
    """
    if any(not 0 <= fraction < math.inf for fraction in fractions) or math.fsum(fractions) <= 0:
        raise UserError(f"split: {list(fractions)}; give shares that are not negative and not all 0")


def assign(prompts: np.ndarray, fractions: Sequence[float]) -> np.ndarray:
    """Deals rows out to phases by prompt, exactly in the given proportions of distinct prompts.

    Args:
        prompts: [N, 2] hash of each row's prompt with the salt ``PHASE``.
        fractions: Share of each phase, in any unit: (2, 4, 4) is (0.2, 0.4, 0.4).

    Returns:
        [N] int64, index into ``fractions`` for each row.

    Raises:
        UserError: a fraction is negative, or all are 0.
    """
    check(fractions)
    total = math.fsum(fractions)
    ranks, counts = _ranks(prompts)
    ends = [_nearest(len(counts) * math.fsum(fractions[: i + 1]) / total) for i in range(len(fractions))]
    return np.searchsorted(ends, ranks, side="right")


def holdout(prompts: np.ndarray, *, fraction: float = 0.0, rows: int | None = None) -> np.ndarray:
    """Chooses the prompts whose rows are kept for evaluation.

    Args:
        prompts: [N, 2] hash of each row's prompt with the salt ``HOLDOUT``.
        fraction: Share of the distinct prompts, to the nearest whole number.
        rows: Instead of a share: whole prompts until at least this many rows are held out.

    Returns:
        [N] bool, True on held-out rows.

    Raises:
        UserError: nothing would be left to train on.
    """
    ranks, counts = _ranks(prompts)
    if rows is None:
        count = _nearest(fraction * len(counts))
    else:
        count = int(np.searchsorted(np.cumsum(counts), rows)) + 1 if rows > 0 else 0
    if count >= len(counts) > 0:
        asked = f"eval_fraction: {fraction}" if rows is None else f"eval_rows: {rows}"
        raise UserError(f"{asked} of {len(prompts)} rows with {len(counts)} prompts leaves none to train on; lower it")
    return ranks < count

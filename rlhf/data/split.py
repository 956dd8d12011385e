"""Splits by prompt: which phase a row serves, and what is held out.

A row's place depends on the *set* of prompts only: not on row order, seed, rank or how often a prompt occurs. Equal
prompts are never parted, so nothing is trained on in one phase and evaluated, or trained on again, in another.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from rlhf.errors import UserError


def _ordered(prompts: Sequence[str], salt: str) -> list[str]:
    """The distinct prompts in an order that only their texts decide."""

    def digest(text: str) -> bytes:
        return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16, key=salt.encode()).digest()

    return sorted(set(prompts), key=digest)


def _nearest(value: float) -> int:
    """Halves go up: Python's ``round`` would send them to the even neighbour."""
    return math.floor(value + 0.5)


def assign(prompts: Sequence[str], fractions: Sequence[float]) -> np.ndarray:
    """Deals rows out to phases by prompt, exactly in the given proportions of distinct prompts.

    Args:
        prompts: Prompt of each row.
        fractions: Share of each phase, in any unit: (2, 4, 4) is (0.2, 0.4, 0.4).

    Returns:
        [N] int64, index into ``fractions`` for each row.

    Raises:
        UserError: a fraction is negative, or all are 0.
    """
    total = math.fsum(fractions)
    if any(not 0 <= fraction < math.inf for fraction in fractions) or total <= 0:
        raise UserError(f"split: {list(fractions)}; give shares that are not negative and not all 0")
    order = _ordered(prompts, "phase")
    ends = [_nearest(len(order) * math.fsum(fractions[: i + 1]) / total) for i in range(len(fractions))]
    phases = np.searchsorted(ends, np.arange(len(order)), side="right")
    phase = dict(zip(order, phases.tolist(), strict=True))
    return np.array([phase[prompt] for prompt in prompts], dtype=np.int64)


def holdout(prompts: Sequence[str], *, fraction: float = 0.0, rows: int | None = None) -> np.ndarray:
    """Chooses the prompts whose rows are kept for evaluation.

    Args:
        prompts: Prompt of each row.
        fraction: Share of the distinct prompts, to the nearest whole number.
        rows: Instead of a share: whole prompts until at least this many rows are held out.

    Returns:
        [N] bool, True on held-out rows.

    Raises:
        UserError: nothing would be left to train on.
    """
    order = _ordered(prompts, "holdout")
    if rows is None:
        count = _nearest(fraction * len(order))
    else:
        occurrences = Counter(prompts)
        held = np.cumsum([occurrences[prompt] for prompt in order])
        count = int(np.searchsorted(held, rows)) + 1 if rows > 0 else 0
    if count >= len(order) > 0:
        asked = f"eval_fraction: {fraction}" if rows is None else f"eval_rows: {rows}"
        raise UserError(f"{asked} of {len(prompts)} rows with {len(order)} prompts leaves none to train on; lower it")
    chosen = set(order[:count])
    return np.array([prompt in chosen for prompt in prompts], dtype=bool)

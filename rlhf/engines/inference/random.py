"""Random numbers by address instead of by turn.

A generator that is advanced makes a row's tokens depend on every row drawn before it. Here the number used for a token
is a function of (seed, counter, position) alone, so batch size, order, padding and the layout over processes leave a
rollout as it is, and a rollout can be redone on its own.
"""

from __future__ import annotations

import torch
from torch import Tensor


def _signed(value: int) -> int:
    """An integer modulo 2⁶⁴ as the int64 of the same bits: torch has no arithmetic on uint64."""
    value %= 1 << 64
    return value - (1 << 64) if value >= 1 << 63 else value


GOLDEN = _signed(0x9E3779B97F4A7C15)  # 2⁶⁴ divided by the golden ratio: the step from state to state
_MULTIPLIER_1 = _signed(0xBF58476D1CE4E5B9)
_MULTIPLIER_2 = _signed(0x94D049BB133111EB)


def uniform(seed: int, counters: Tensor, position: int | Tensor) -> Tensor:
    """One uniform number per row.

    Position t of a row is output t of SplitMix64 started at the row's key, and the row's key is output ``counter`` of
    SplitMix64 started at a hash of the seed. As SplitMix64 is a bijection of its state, no two rows of a seed share a
    key, and no two positions of a row their 64 bits.
    Source: Steele, Lea & Flood 2014, doi:10.1145/2660193.2660195; the mixing constants are Stafford's variant 13.

    Args:
        seed: Any integer, taken modulo 2⁶⁴.
        counters: [B] int64, the global number of each rollout.
        position: Index of the token in the response: an integer, or an int64 tensor that broadcasts with ``counters``.

    Returns:
        [B] (or the broadcast shape) float64 in [0, 1), multiples of 2⁻⁵³; bit-equal on every device.

    Raises:
        ValueError: counters or positions are not int64.
    """
    positions = torch.as_tensor(_signed(position) if isinstance(position, int) else position, device=counters.device)
    for name, value in (("counters", counters), ("position", positions)):
        if value.dtype != torch.int64:
            raise ValueError(f"{name}: {value.dtype} (shape {list(value.shape)}); give int64.")
    start = splitmix64(torch.tensor(_signed(seed), device=counters.device))
    keys = splitmix64(start + counters * GOLDEN)
    return _shift(splitmix64(keys + positions * GOLDEN), 11).double() * 2.0**-53


def splitmix64(state: Tensor) -> Tensor:
    """The output of SplitMix64 in the given int64 states: a bijection of 64 bits; products wrap around."""
    z = state + GOLDEN
    z = (z ^ _shift(z, 30)) * _MULTIPLIER_1
    z = (z ^ _shift(z, 27)) * _MULTIPLIER_2
    return z ^ _shift(z, 31)


def _shift(z: Tensor, bits: int) -> Tensor:
    """Logical right shift: torch's carries the sign bit along, so the copies of it are cut off."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)

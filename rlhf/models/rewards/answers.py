"""Checks of what code or a server outside answers: the right number of finite numbers, or an error that says which."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from rlhf.errors import UserError


def finite_numbers(answer: Any, things: Sequence[str], who: str, what: str = "responses") -> list[float]:
    """One finite number for each thing that was to be scored.

    Args:
        answer: A list, tuple, array or tensor of numbers.
        things: Texts of what was scored.
        who: Who answered, with the setting that names it: ``"function: my_rewards.length"``.
        what: What the things are.

    Raises:
        UserError: the answer is not that; the text names the first that is wrong.
    """
    if isinstance(answer, Tensor):
        answer = answer.tolist()
    if isinstance(answer, str | dict) or not hasattr(answer, "__len__") or not hasattr(answer, "__iter__"):
        raise UserError(f"{who} answered {answer!r:.200}; it must be {len(things)} numbers")
    if len(answer) != len(things):
        raise UserError(f"{who} answered {len(answer)} scores for {len(things)} {what}; give one for each")
    for score, thing in zip(answer, things, strict=True):
        value = score.item() if isinstance(score, Tensor) and score.numel() == 1 else score
        if not (isinstance(value, numbers.Real) and math.isfinite(value)):
            raise UserError(
                f"{who} answered {score!r:.200}, no finite number, for {thing[:200]!r}; answer a "
                "number for every one, such as 0 where there is nothing to say"
            )
    return [float(score) for score in answer]

"""Mistakes that are the user's to mend: shown as a message, without a traceback."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any


class UserError(ValueError):
    """Something asked for cannot be done; the text says what, where, and what to do instead."""


class ConfigError(UserError):
    """An experiment's settings are wrong; every problem found is told at once.

    Attributes:
        problems: One line each, beginning with the place and the key.
    """

    def __init__(self, problems: Sequence[str] | str) -> None:
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(self.problems))


class UserCodeError(UserError):
    """Code of the user's own has raised something; see ``rlhf.user_code``."""


class NonFiniteError(UserError):
    """A loss, gradient, logit or score is NaN or infinite; the weights were left as they are.

    Attributes:
        evidence: What it takes to see it again, by name; a stage saves it.
    """

    def __init__(self, text: str, evidence: Mapping[str, Any] | None = None) -> None:
        super().__init__(text)
        self.evidence = dict(evidence or {})


@contextmanager
def telling(place: str) -> Iterator[None]:
    """A mistake met inside is told with its place, such as ``stage ppo``, and stays the error that it is."""
    try:
        yield
    except UserError as error:
        error.args = (f"{place}: {error}", *error.args[1:])
        raise


def require(
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    **values: float | None,
) -> None:
    """Refuses settings out of their range; None passes, NaN and infinity do not.

    Args:
        at_least: Smallest value allowed.
        above: Bound below, itself not allowed.
        at_most: Largest value allowed.
        below: Bound above, itself not allowed.
        **values: The settings by name.

    Raises:
        UserError: for the first that is out of range: name, value and range.
    """
    rules = [
        (at_least, "at least", lambda value, bound: value >= bound),
        (above, "above", lambda value, bound: value > bound),
        (at_most, "at most", lambda value, bound: value <= bound),
        (below, "below", lambda value, bound: value < bound),
    ]
    for name, value in values.items():
        holding = all(bound is None or holds(value, bound) for bound, _, holds in rules if value is not None)
        if value is None or (holding and math.isfinite(value)):
            continue
        wanted = " and ".join(f"{word} {bound:g}" for bound, word, _ in rules if bound is not None)
        wanted += ", and finite" if holding else ""
        raise UserError(f"{name} is {value}; must be {wanted}")

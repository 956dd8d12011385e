"""Mistakes that are the user's to mend: shown as a message, without a traceback."""

from __future__ import annotations

from collections.abc import Sequence


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

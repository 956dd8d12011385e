"""What a component needs to find outside of its settings."""

from __future__ import annotations

from typing import Annotated


class _OutputOfAStage:
    """Mark of ``ModelPath``."""


ModelPath = Annotated[str, _OutputOfAStage()]
"""Type of a setting that says where a saved model is: a folder, a hub name, or ``@stage`` or ``@stage/output`` for what
an earlier stage leaves. An experiment puts the folder in its place before the component is built."""


class NeedsInputs:
    """A component that needs files or functions to be there, which can be known before anything runs."""

    def check_inputs(self) -> None:
        """Raises what using it would raise for a file or function that is not there; loads nothing."""

    def fingerprint(self) -> str | None:
        """A text that is equal where the files and functions that it needs are; None where there are none.

        What settings of the type ``ModelPath`` lead to, and the source of the component's own class, count without it.
        """
        return None

"""Asking the Hugging Face hub without waiting long for a network that is not there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE = 5.0
"""Seconds that the hub may take to answer at all."""


def _answers() -> bool:
    from huggingface_hub import constants, get_session

    if constants.HF_HUB_OFFLINE:
        return False
    try:
        get_session().head(constants.ENDPOINT, timeout=PATIENCE)
    except Exception:  # the client's errors differ between versions and share no base; all mean the same here
        return False
    return True


@contextmanager
def hub_or_cache() -> Iterator[bool]:
    """Inside, a hub that does not answer is not asked again: its libraries look into their cache at once.

    Without a network they ask six times for each file, with 23 seconds of pauses, before they do so themselves.

    Yields:
        Whether the hub answers.
    """
    from huggingface_hub import constants

    before, answers = constants.HF_HUB_OFFLINE, _answers()
    constants.HF_HUB_OFFLINE = before or not answers
    try:
        yield answers
    finally:
        constants.HF_HUB_OFFLINE = before

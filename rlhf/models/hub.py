"""Reading models: refusals in our words, and no long wait for a Hugging Face hub that does not answer."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from rlhf.errors import UserError

PATIENCE = 5.0
"""Seconds that the hub may take to answer at all."""
WHOLE_MODEL = "give the folder of a whole model, or save it again"
"""What to do about a folder that cannot be read."""


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


@contextmanager
def reading(path: str | Path, *, local: bool, remedy: str = WHOLE_MODEL) -> Iterator[None]:
    """Whatever a library cannot read inside becomes a message that names the path.

    Args:
        path: What is read: a folder, or a name on the hub.
        local: Whether it is a file or folder here.
        remedy: What to do about one that cannot be read.

    Raises:
        UserError: the library raised anything else.
    """
    with nullcontext(True) if local else hub_or_cache() as answers:
        try:
            yield
        except UserError:
            raise
        except Exception as error:  # each format's reader raises its own errors, and they share no base
            reason = textwrap.shorten(str(error).strip() or type(error).__name__, 300, placeholder=" …")
            if local:
                text = f"cannot be read ({reason}); {remedy}"
            else:
                hub = "the Hugging Face hub " + ("did not give it" if answers else "does not answer")
                text = f"is no folder in {Path.cwd()}, and {hub} ({reason}); check the spelling" + (
                    "" if answers else ", or the network: without one give a folder"
                )
            raise UserError(f"path: {path} {text}") from error

"""Where the steps of a response end, in its text and in its tokens."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import NamedTuple

from rlhf.errors import UserError


class Step(NamedTuple):
    """A piece of a response.

    Attributes:
        text: Without the separators behind it.
        end: Index of its last token in the response.
    """

    text: str
    end: int


def step_ends(text: str, separator: str) -> list[int]:
    """Where in a text each step ends: behind a run of separators, the last one with the text.

    A piece of white space only is no step of its own: it belongs to the next, or at the end to the last. There is
    always at least one step.
    """
    ends: list[int] = []
    start = 0
    for run in re.finditer(f"(?:{re.escape(separator)})+", text):
        if text[start : run.start()].strip():
            ends.append(run.end())
            start = run.end()
    if ends and not text[start:].strip():
        ends.pop()
    return [*ends, len(text)]


def split_steps(ids: Sequence[int], text: str, separator: str, decode: Callable[[list[int]], str]) -> list[Step]:
    """The steps of a response, with the token that completes each.

    A step's last token is the first with which the decoded tokens hold the step whole, the separators behind it
    included. Prefixes are decoded rather than single tokens, so that pieces of a character, and tokenizers that join
    pieces differently within a text, are read right. Steps that end within one token are one step: nothing smaller can
    be scored. The last step ends with the response, its end token included.

    Args:
        ids: At least one token, the end token included where the policy drew it.
        text: What they decode to, without the end token.
        separator: What parts steps.
        decode: From ids to text.

    Raises:
        UserError: the ids decode to another text.
    """

    def settled(count: int) -> int:
        """How much of the text the first ``count`` tokens have settled: half a character decodes to another one."""
        pairs = zip(decode(list(ids[:count])), text, strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

    if settled(len(ids)) < len(text):
        raise UserError(f"separator: the response {text[:200]!r} is not what its tokens decode to, so it has no steps")
    last = len(ids) - 1
    ends = step_ends(text, separator)
    tokens = [*(bisect_left(range(1, last + 1), end, key=settled) for end in ends[:-1]), last]
    of_token = dict(zip(tokens, ends, strict=True))  # the last of several ends within one token counts
    starts = [0, *of_token.values()]
    return [
        Step(_without(text[start:end], separator), token)
        for start, (token, end) in zip(starts, of_token.items(), strict=False)
    ]


def _without(piece: str, separator: str) -> str:
    while piece.endswith(separator):
        piece = piece.removesuffix(separator)
    return piece

r"""Numbers in text as exact fractions. Text of a model is read by patterns and never evaluated.

The answer of a text is what its last ``\boxed{…}`` holds, else the last number in it. Read are ``42``, ``-2.50``,
``.5``, ``1,234.5``, ``3/4``, ``1 3/4``, ``\frac{3}{4}``, ``2e-3``, with a currency sign before or any unit after them:
``$5``, ``3 km``, ``50%`` is 50. A power (``2^{10}``), a fraction over 0 and a date (``1/2/2020``) count as a
number that cannot be read.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

_NUMBER = re.compile(
    r"""
    (?:(?<![\w)\]}])(?P<sign>[-−+]))?           # after a word or a bracket it subtracts
    (?<![\w^])(?<![0-9]\.)                      # not inside a word, a number or an exponent
    [$€£¥]?
    (?:(?P<whole>[0-9]+)[ ](?=[0-9]+/[0-9]))?   # of a mixed number
    (?P<number>(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)
    (?:(?:[eE]|\s?(?:\\times|×|\*)\s?10\^\{?)(?P<exponent>[-−+]?[0-9]+)\}?(?!\w)
      |\s?/\s?(?P<below>[0-9]+(?:[./][0-9]+)*))?
    (?P<power>\s?\^\s?\{?[-−+]?[0-9.]*\}?)?
    """,
    re.VERBOSE,
)
_FRACTION = re.compile(r"\\[dt]?frac\s*(?:\{\s*([0-9]+)\s*\}\s*\{\s*([0-9]+)\s*\}|([0-9])([0-9]))")
_TEXT = re.compile(r"\\(?:text|mathrm|mbox)\s*\{([^{}]*)\}")
_UNIT_POWER = re.compile(r"(?<=[A-Za-z])\s?\^\s?(?:\{\s*-?[0-9]+\s*\}|-?[0-9])")
_LONGEST = 400
"""Characters, and powers of ten, of a number that is still read: what is written in a loop must not cost time."""


def numbers_in(text: str) -> list[Fraction | None]:
    """The numbers of a text in their order; None for one that cannot be read."""
    return [_value(match) for match in _NUMBER.finditer(_plain(text))]


def answer_of(text: str) -> Fraction | None:
    """The number that a text answers; None where there is none, or a box does not hold exactly one."""
    box = _last_box(text)
    found = numbers_in(text if box is None else box)
    return None if not found or (box is not None and len(found) > 1) else found[-1]


def gold_number(value: Any) -> Fraction | None:
    """The number of a data set's column: one already, or text to read as an answer."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        return answer_of(repr(value))  # of a float the decimals that are written: 0.1 is 1/10
    return answer_of(str(value))


def _plain(text: str) -> str:
    """The text without the LaTeX that stands between or around digits."""
    for latex, plain in (("{,}", ","), ("\\!", ""), ("\\,", ""), ("\\$", "$")):
        text = text.replace(latex, plain)
    text = _TEXT.sub(r" \1", text)
    text = _FRACTION.sub(lambda m: f"{' ' if _follows_digit(m) else ''}{m[1] or m[3]}/{m[2] or m[4]}", text)
    return _UNIT_POWER.sub("", text)


def _follows_digit(match: re.Match[str]) -> bool:
    return match.start() > 0 and match.string[match.start() - 1].isdigit()


def _value(match: re.Match[str]) -> Fraction | None:
    below, exponent = match["below"] or "1", (match["exponent"] or "0").replace("−", "-")
    unreadable = match["power"] or not below.isdigit() or len(match[0]) > _LONGEST or abs(int(exponent)) > _LONGEST
    if unreadable or int(below) == 0:
        return None
    value = Fraction(match["number"].replace(",", "")) * Fraction(10) ** int(exponent)
    value = int(match["whole"] or 0) + value / int(below)
    return -value if match["sign"] in ("-", "−") else value


def _last_box(text: str) -> str | None:
    r"""Content of the last ``\boxed{…}`` whose braces close."""
    opened: list[tuple[bool, int]] = []
    boxes: list[tuple[int, int]] = []
    for brace in re.finditer(r"(\\boxed)?\{|\}", text):
        if brace[0] != "}":
            opened.append((brace[1] is not None, brace.end()))
        elif opened:
            is_box, start = opened.pop()
            boxes += [(start, brace.start())] if is_box else []
    return text[slice(*max(boxes))] if boxes else None

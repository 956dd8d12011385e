"""Which form of example a row can serve as, and the texts it then gives.

A richer row serves as a poorer one:

========================  ========================================================================================
form                      made of
========================  ========================================================================================
``prompt``                prompt
``demonstration``         prompt, response · or prompt, chosen · or prompt, responses, scores: the best response
``comparison``            prompt, chosen, rejected[, margin] · or prompt, responses, scores: every pair of responses
``text``                  text · or prompt, response
========================  ========================================================================================
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from rlhf.errors import UserError
from rlhf.types import Form

if TYPE_CHECKING:
    import datasets

NEEDS: dict[Form, tuple[tuple[str, ...], ...]] = {
    "prompt": (("prompt",),),
    "demonstration": (("prompt", "response"), ("prompt", "chosen"), ("prompt", "responses", "scores")),
    "comparison": (("prompt", "chosen", "rejected"), ("prompt", "responses", "scores")),
    "text": (("text",), ("prompt", "response")),
}
RESPONSES = ("response", "chosen", "rejected", "responses")
"""Columns that hold responses."""
TEXTS = ("prompt", *RESPONSES, "text")
"""Columns that hold text."""


class Record(NamedTuple):
    """Texts of one example.

    Attributes:
        prompt: The prompt; for a ``text`` made of the column ``text``, that text.
        responses: None, one (a demonstration) or two (chosen, rejected).
        margin: By how much chosen is better than rejected; 0 where unknown.
        columns: Further columns of the row, for the form ``prompt``.
    """

    prompt: str
    responses: tuple[str, ...] = ()
    margin: float = 0.0
    columns: Mapping[str, Any] = {}


def made_of(columns: Sequence[str], form: Form, where: str) -> tuple[str, ...]:
    """The columns a form is made of.

    Raises:
        UserError: these columns cannot give the form.
    """
    for needed in NEEDS[form]:
        if set(needed) <= set(columns):
            return needed
    wanted = " or ".join(f"({', '.join(needed)})" for needed in NEEDS[form])
    possible = [other for other in get_args(Form) if any(set(needed) <= set(columns) for needed in NEEDS[other])]
    raise UserError(
        f"{where}: cannot give the form {form!r}, which needs {wanted}; its columns are {', '.join(columns)}, "
        f"good for: {', '.join(possible) or 'no form'}. Rename with columns (ours: theirs), or use another source"
    )


def keys(dataset: datasets.Dataset, where: str) -> list[str]:
    """What a row is split and held out by: its prompt, or its text where there are no prompts."""
    for name in ("prompt", "text"):
        if name in dataset.column_names:
            return ["" if value is None else str(value) for value in dataset[name][:]]
    raise UserError(f"{where}: no column prompt or text among {', '.join(dataset.column_names)}; rename with columns")


def _text(value: Any, name: str, where: str) -> str:
    if isinstance(value, str):
        return value
    remedy = (
        "map a field inside it (columns: {ours: theirs.0.content})" if isinstance(value, list | dict) else "quote it"
    )
    raise UserError(f"{where}: {name} is a {type(value).__name__}, not text; {remedy}")


def _number(value: Any, name: str, where: str) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise UserError(f"{where}: {name} is {value!r}; give numbers") from None


def _incomplete(value: Any) -> bool:
    if isinstance(value, list):
        return any(_incomplete(item) for item in value)
    return value is None or (isinstance(value, float) and math.isnan(value))


def _scored(row: Mapping[str, Any], where: str) -> tuple[list[str], list[float]]:
    responses, scores = row["responses"], row["scores"]
    if not isinstance(responses, list) or not isinstance(scores, list) or len(responses) != len(scores):
        raise UserError(f"{where}: responses and scores must be two lists of one length; got {responses!r}, {scores!r}")
    texts = [_text(response, "responses", where) for response in responses]
    return texts, [_number(score, "scores", where) for score in scores]


def _pairs(row: Mapping[str, Any], prompt: str, drops: Counter[str], where: str) -> list[Record]:
    """All pairs of scored responses, the better one first; equal scores say nothing and are dropped."""
    responses, scores = _scored(row, where)
    pairs = []
    for (a, score_a), (b, score_b) in combinations(zip(responses, scores, strict=True), 2):
        if score_a == score_b:
            drops["tie"] += 1
        else:
            pairs.append(Record(prompt, (a, b) if score_a > score_b else (b, a), abs(score_a - score_b)))
    if len(responses) < 2:
        drops["single_response"] += 1
    return pairs


def _row_records(
    row: Mapping[str, Any], form: Form, needed: tuple[str, ...], drops: Counter[str], where: str
) -> list[Record]:
    if any(_incomplete(row[name]) for name in needed):
        drops["missing_value"] += 1
        return []
    if needed == ("text",):
        return [Record(_text(row["text"], "text", where))]
    prompt = _text(row["prompt"], "prompt", where)
    if form == "prompt":
        return [Record(prompt, columns={name: value for name, value in row.items() if name != "prompt"})]
    if "scores" not in needed:
        margin = row.get("margin") if form == "comparison" else None
        responses = tuple(_text(row[name], name, where) for name in needed[1:])
        return [Record(prompt, responses, 0.0 if _incomplete(margin) else _number(margin, "margin", where))]
    if form == "comparison":
        return _pairs(row, prompt, drops, where)
    responses, scores = _scored(row, where)
    if not responses:
        drops["missing_value"] += 1
        return []
    return [Record(prompt, (responses[max(range(len(scores)), key=scores.__getitem__)],))]


def records(
    dataset: datasets.Dataset, rows: Sequence[int], form: Form, drops: Counter[str], where: str
) -> Iterator[list[Record]]:
    """The examples of each row: one, none (counted in ``drops``), or every pair of a row with scored responses.

    Args:
        dataset: A source under our names.
        rows: Which of its rows.
        form: What to make of them.
        drops: Takes the counts: ``missing_value`` per row, ``tie`` per pair, ``single_response`` per row.
        where: The source, for errors.

    Raises:
        UserError: the columns cannot give the form, or a value has the wrong type.
    """
    needed = made_of(dataset.column_names, form, where)
    columns = dataset.select(rows)[:]  # all at once: a data set answers single rows slowly
    for at, number in enumerate(rows):
        row = {name: values[at] for name, values in columns.items()}
        yield _row_records(row, form, needed, drops, f"{where}, row {number}")

"""Which form of example a row can serve as, and the texts it then gives.

A richer row serves as a poorer one:

========================  ========================================================================================
form                      made of
========================  ========================================================================================
``prompt``                prompt · or messages: what stands before the last assistant turn
``demonstration``         prompt, response · or prompt, chosen · or prompt, responses, scores: the best response
                          · or messages: every assistant turn · where there is a label, of the rows it calls good
``comparison``            prompt, chosen, rejected[, margin] · or prompt, responses, scores: every pair of responses
``unpaired``              prompt, response, label · or messages, label · or prompt, chosen, rejected: one of each label
``text``                  text · or prompt, response · or messages
========================  ========================================================================================

A prompt is a text or a conversation (``rlhf.data.conversations``), a response a text or the assistant's message; with
chosen, or chosen and rejected, ``messages`` is the prompt.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from rlhf.data import conversations
from rlhf.errors import UserError
from rlhf.types import Conversation, Form

if TYPE_CHECKING:
    import datasets

NEEDS: dict[Form, tuple[tuple[str, ...], ...]] = {
    "prompt": (("prompt",), ("messages",)),
    "demonstration": (
        ("prompt", "response"),
        ("prompt", "chosen"),
        ("prompt", "responses", "scores"),
        ("messages", "chosen"),
        ("messages",),
    ),
    "comparison": (
        ("prompt", "chosen", "rejected"),
        ("prompt", "responses", "scores"),
        ("messages", "chosen", "rejected"),
    ),
    "unpaired": (
        ("prompt", "response", "label"),
        ("messages", "label"),
        ("prompt", "chosen", "rejected"),
        ("messages", "chosen", "rejected"),
    ),
    "text": (("text",), ("prompt", "response"), ("messages",)),
}
RESPONSES = ("response", "chosen", "rejected", "responses")
"""Columns that hold responses."""
TEXTS = ("prompt", "messages", *RESPONSES, "text")
"""Columns that hold text."""
_BLOCK = 10_000
"""Labels looked at together."""
GOOD, BAD = ("true", "1"), ("false", "0", "-1")
"""How a label may be spelt, in capitals or not, as text (a CSV has nothing else) or as the value itself."""


class Record(NamedTuple):
    """Texts of one example.

    Attributes:
        prompt: The prompt; for a ``text`` made of the column ``text``, that text.
        responses: None, one (a demonstration) or two (chosen, rejected).
        margin: By how much chosen is better than rejected; 0 where unknown.
        columns: Further columns of the row, for the form ``prompt``.
        label: Whether the response is a good one, for the form ``unpaired``.
    """

    prompt: str | Conversation
    responses: tuple[str, ...] = ()
    margin: float = 0.0
    columns: Mapping[str, Any] = {}
    label: bool = True


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


def keys(dataset: datasets.Dataset, where: str, first: int = 0) -> list[str]:
    """What a row is split and held out by: its prompt, or its text where there are no prompts.

    Of a conversation that is what stands before the first answer, see :func:`rlhf.data.conversations.opening`.

    Args:
        dataset: Rows of a source.
        where: The source, for errors.
        first: How many rows of the source stand before the first one, for errors.
    """
    for name in ("prompt", "messages", "text"):
        if name in dataset.column_names:
            values = dataset[name][:]
            return [
                conversations.opening(value, f"{where}, row {row}: {name}")
                for row, value in enumerate(values, first + 1)
            ]
    names = ", ".join(dataset.column_names)
    raise UserError(f"{where}: no column prompt, messages or text among {names}; rename with columns")


def said(value: Any, name: str, where: str) -> str:
    """What a value of a column says as one text, the same for a text and for messages that say no more than it.

    Raises:
        UserError: a message has no role or text, or a role that nobody knows.
    """
    if isinstance(value, str):
        return value
    if name == "responses" and isinstance(value, list):
        return "\x1e".join(said(response, "response", where) for response in value)
    if name not in TEXTS or not isinstance(value, list | Mapping):
        return json.dumps(value, default=str)
    messages = tuple(conversations.contents(value, where))
    if name in RESPONSES:  # the messages before it are the prompt's
        return messages[-1].content if messages else ""
    return conversations.text(conversations.plain(messages))


def _prompt(value: Any, name: str, where: str) -> str | Conversation:
    """A prompt, or a conversation that is one."""
    if not isinstance(value, list):
        return _text(value, name, where)
    conversation = conversations.read(value, f"{where}: {name}")
    if conversation[-1].role == "assistant":
        raise UserError(f"{where}: {name} ends with what the assistant says; map whole conversations to messages")
    return conversations.plain(conversation)


def _response(value: Any, name: str, prompt: str | Conversation, where: str) -> str:
    """What the assistant says to the prompt: a text, its message, or the prompt's messages and then its own."""
    if not isinstance(value, list | Mapping):
        return _text(value, name, where)
    *before, last = conversations.read(value, f"{where}: {name}")
    if last.role != "assistant" or (before and conversations.plain(tuple(before)) != prompt):
        raise UserError(f"{where}: {name} is not the prompt and one assistant message; map that ({name}: theirs.-1)")
    return last.content


def _text(value: Any, name: str, where: str) -> str:
    if isinstance(value, str):
        return value
    remedy = "map a field inside it (columns: {ours: theirs.content})" if isinstance(value, list | dict) else "quote it"
    raise UserError(f"{where}: {name} is a {type(value).__name__}, not text; {remedy}")


def _number(value: Any, name: str, where: str) -> float:
    with contextlib.suppress(TypeError, ValueError):
        if math.isfinite(number := float(value)):
            return number
    raise UserError(f"{where}: {name} is {value!r}; give numbers")


def _incomplete(value: Any) -> bool:
    if isinstance(value, list):
        return any(_incomplete(item) for item in value)
    if isinstance(value, Mapping):
        return conversations.is_empty(value)
    return value is None or (isinstance(value, float) and math.isnan(value))


def _spelling(value: Any) -> str:
    """A label as ``GOOD`` and ``BAD`` have it: 1, 1.0, "1" and " 1.0" are one."""
    text = f"{value:g}" if isinstance(value, float) else str(value).strip().lower()
    return text.removesuffix(".0")


def _label(value: Any, where: str) -> bool:
    """Whether a label says good or bad.

    Raises:
        UserError: it says something else.
    """
    spelling = _spelling(value)
    if spelling not in (*GOOD, *BAD):
        raise UserError(
            f"{where}: label is {value!r}; give true or 1 for a good response, false, 0 or -1 for a bad one, or rename "
            "a column that says something else (columns: {theirs: label})"
        )
    return spelling in GOOD


def check_labels(dataset: datasets.Dataset, form: Form, where: str) -> None:
    """Refuses labels of which nobody can say what they mean: beside −1 for bad and 1 for good, what is a 0?

    Args:
        dataset: A source under our names.
        form: What is to be made of its rows.
        where: The source, for errors.

    Raises:
        UserError: a label is no known spelling, or the column has both 0 and −1; the text names the row.
    """
    if form not in ("demonstration", "unpaired") or not _judges(made_of(dataset.column_names, form, where), dataset):
        return
    seen: dict[str, int] = {}
    column = dataset.select_columns(["label"])
    for start in range(0, len(column), _BLOCK):
        for row, value in enumerate(column[start : start + _BLOCK]["label"], start + 1):
            if not _incomplete(value):
                _label(value, f"{where}, row {row}")
                seen.setdefault(_spelling(value), row)
    if {"0", "-1"} <= set(seen):
        raise UserError(
            f"{where}: label is 0 in row {seen['0']} and -1 in row {seen['-1']}, so that nobody can say which of them "
            "is bad; leave out the rows without a judgement, and give true or 1, and false, 0 or -1"
        )


def _judges(needed: Sequence[str], dataset: datasets.Dataset) -> bool:
    """Whether the label of a row counts: of a comparison the better response is known without."""
    return "label" in dataset.column_names and not {"chosen", "responses"} & set(needed)


def _scored(row: Mapping[str, Any], prompt: str | Conversation, where: str) -> tuple[list[str], list[float]]:
    responses, scores = row["responses"], row["scores"]
    if not isinstance(responses, list) or not isinstance(scores, list) or len(responses) != len(scores):
        raise UserError(f"{where}: responses and scores must be two lists of one length; got {responses!r}, {scores!r}")
    texts = [_response(response, "responses", prompt, where) for response in responses]
    return texts, [_number(score, "scores", where) for score in scores]


def _pairs(row: Mapping[str, Any], prompt: str | Conversation, drops: Counter[str], where: str) -> list[Record]:
    """All pairs of scored responses, the better one first; equal scores say nothing and are dropped."""
    responses, scores = _scored(row, prompt, where)
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
    if any(_incomplete(row[name]) for name in needed) or row[needed[0]] == []:
        drops["missing_value"] += 1
        return []
    if needed == ("text",):
        return [Record(_text(row["text"], "text", where))]
    if set(needed) <= {"messages", "label"}:
        return _conversation(row, form, drops, where)
    prompt = _prompt(row[needed[0]], needed[0], where)
    if form == "prompt":
        return [Record(prompt, columns=_columns(row, "prompt", prompt))]
    if "scores" in needed and form == "comparison":
        return _pairs(row, prompt, drops, where)
    if "scores" in needed:
        responses, scores = _scored(row, prompt, where)
        if not responses:
            drops["missing_value"] += 1
            return []
        return [Record(prompt, (responses[max(range(len(scores)), key=scores.__getitem__)],))]
    responses = [_response(row[name], name, prompt, where) for name in needed[1:] if name != "label"]
    if form == "comparison":
        margin = row.get("margin")
        return [Record(prompt, tuple(responses), 0.0 if _incomplete(margin) else _number(margin, "margin", where))]
    if "rejected" in needed:
        return [Record(prompt, (text,), label=label) for text, label in zip(responses, (True, False), strict=True)]
    record = Record(prompt, (responses[0],))
    return [record] if "chosen" in needed else _judged(record, row, form, drops, where)


def _conversation(row: Mapping[str, Any], form: Form, drops: Counter[str], where: str) -> list[Record]:
    """The record of a whole conversation."""
    before, answer = conversations.part(conversations.read(row["messages"], f"{where}: messages"))
    prompt = conversations.plain(before)
    if form == "prompt":
        return [Record(prompt, columns=_columns(row, "messages", prompt))]
    if answer is None:
        drops["no_response"] += 1
        return []
    return _judged(Record(prompt, (answer,)), row, form, drops, where)


def _judged(record: Record, row: Mapping[str, Any], form: Form, drops: Counter[str], where: str) -> list[Record]:
    """The record with its row's label: a bad response is nothing to imitate."""
    value = row.get("label")
    if form not in ("unpaired", "demonstration") or _incomplete(value):
        return [record]
    label = _label(value, where)
    if form == "demonstration" and not label:
        drops["bad_label"] += 1
        return []
    return [record._replace(label=label)]


def _columns(row: Mapping[str, Any], of: str, prompt: str | Conversation) -> dict[str, Any]:
    """What travels along with a prompt: the other columns, and of a conversation its messages.

    Who finds ``messages`` there may rely on their being the prompt, whatever the source's own column of that name held.
    """
    others = {name: value for name, value in row.items() if name != of}
    if isinstance(prompt, str) and "messages" not in row:
        return others
    return {**others, "messages": [m._asdict() for m in conversations.messages(prompt)]}


def records(
    dataset: datasets.Dataset, rows: Sequence[int], form: Form, drops: Counter[str], where: str
) -> Iterator[list[Record]]:
    """The examples of each row: one, none (counted in ``drops``), or every pair of a row with scored responses.

    Args:
        dataset: A source under our names.
        rows: Which of its rows.
        form: What to make of them.
        drops: Takes the counts: ``tie`` per pair; per row ``missing_value``, ``single_response``, ``no_response`` (a
            conversation in which the assistant says nothing) and ``bad_label`` (a demonstration that is called bad).
        where: The source, for errors.

    Raises:
        UserError: the columns cannot give the form, or a value has the wrong type.
    """
    needed = made_of(dataset.column_names, form, where)
    columns = dataset.select(rows)[:]  # all at once: a data set answers single rows slowly
    for at, number in enumerate(rows):
        row = {name: values[at] for name, values in columns.items()}
        yield _row_records(row, form, needed, drops, f"{where}, row {number + 1}")

"""Trees of messages: conversations in which several answers were written, and ranked, at each point."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlhf.data import conversations
from rlhf.errors import UserError
from rlhf.interfaces import Source

if TYPE_CHECKING:
    import datasets

NEEDED = ("message_id", "parent_id", "role", "text")


@dataclass(frozen=True, kw_only=True)
class MessageTrees(Source):
    """Rows of conversations from rows of single messages, as those of OpenAssistant (oasst1, oasst2).

    A message that the assistant has answered becomes a row: ``prompt``, the conversation up to it; ``responses``, the
    answers; ``scores``, minus their ranks (0 is the best). So it serves as a prompt, a demonstration (the best answer)
    and a comparison (all pairs). Answers without a rank are left out where others have one; where none has, all score
    0: the first is the demonstration, and no pair is made. A message whose parent is missing has no value, and is
    counted as ``missing_value``.

    Args:
        messages: Where the messages come from, under the names ``message_id``, ``parent_id`` (none for the first),
            ``role``, ``text`` and ``rank``.
        lang: Use only messages whose column ``lang`` is this; None uses all.
    """

    messages: Source
    lang: str | None = None

    def load(self) -> datasets.Dataset:
        import datasets

        table = self.messages.load()
        wanted = (*NEEDED, "lang") if self.lang is not None else NEEDED
        if absent := [name for name in wanted if name not in table.column_names]:
            raise UserError(
                f"messages: no column {absent[0]} among {', '.join(table.column_names)}; map it with columns"
            )
        rows: list[dict[str, Any]] = [dict(row) for row in table if self.lang in (None, row["lang"])]  # pyright: ignore
        known = {row["message_id"]: row for row in rows}
        answers: dict[str, list[dict[str, Any]]] = {}
        for row in rows:
            if row["parent_id"] is not None and conversations.ROLES.get(row["role"]) == "assistant":
                answers.setdefault(row["parent_id"], []).append(row)
        if not answers:
            raise UserError(
                f"messages: none of {len(rows)} is an assistant's answer to another; see role and parent_id"
            )
        made = [self._row(parent, replies, known) for parent, replies in answers.items()]
        return datasets.Dataset.from_list(made)

    @staticmethod
    def _row(
        parent: str, replies: list[dict[str, Any]], known: Mapping[str, Mapping[str, Any]]
    ) -> dict[str, list[Any] | None]:
        path: list[dict[str, Any]] = []
        at: Any = parent
        while at is not None:
            if at not in known or len(path) > len(known):  # an orphan, or a ring
                return {"prompt": None, "responses": None, "scores": None}
            path.insert(0, {"role": known[at]["role"], "content": known[at]["text"]})
            at = known[at]["parent_id"]
        ranked = [reply for reply in replies if reply.get("rank") is not None] or replies
        scores = [0.0 - (reply.get("rank") or 0) for reply in ranked]
        return {"prompt": path, "responses": [reply["text"] for reply in ranked], "scores": scores}

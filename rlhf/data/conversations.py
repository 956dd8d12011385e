"""Conversations as data sets write them: ``[{role, content}, …]`` or ShareGPT's ``[{from, value}, …]``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rlhf.errors import UserError
from rlhf.types import Conversation, Message

ROLES = {
    **{name: name for name in ("system", "developer", "user", "assistant", "tool")},
    **dict.fromkeys(("human", "prompter"), "user"),
    **dict.fromkeys(("gpt", "chatgpt", "bot", "model"), "assistant"),
    **dict.fromkeys(("function", "observation"), "tool"),
}
"""Roles as they are called in data sets -> as chat templates know them."""
KEYS = (("role", "content"), ("from", "value"))


def is_empty(message: Mapping[str, Any]) -> bool:
    """Whether a message has neither of the two keys that hold what was said."""
    return all(message.get(key) is None for _, key in KEYS)


def _message(value: Any, where: str) -> Message:
    if not isinstance(value, Mapping):
        raise UserError(f"{where}: a message is a {type(value).__name__}; give {{role, content}} or {{from, value}}")
    for role_key, content_key in KEYS:
        role, content = value.get(role_key), value.get(content_key)
        if role is None or content is None:
            continue
        if role not in ROLES:
            raise UserError(f"{where}: a message's role is {role!r}; known: {', '.join(ROLES)}")
        if not isinstance(content, str):
            raise UserError(f"{where}: a message's {content_key} is a {type(content).__name__}; give text")
        return Message(ROLES[role], content)
    raise UserError(f"{where}: a message has the keys {', '.join(value)}; give role and content, or from and value")


def read(value: Any, where: str) -> Conversation:
    """A conversation from a list of messages, or from one message.

    Raises:
        UserError: a message has no role or text, or a role that nobody knows.
    """
    return tuple(_message(item, where) for item in (value if isinstance(value, list) else [value]))


def part(conversation: Conversation) -> tuple[Conversation, str | None]:
    """What stands before the last assistant turn, and that turn; what follows it is nothing to learn from.

    A conversation in which the assistant says nothing is a prompt as a whole.
    """
    for at in reversed(range(len(conversation))):
        if conversation[at].role == "assistant":
            return conversation[:at], conversation[at].content
    return conversation, None


def plain(conversation: Conversation) -> str | Conversation:
    """The text of a conversation that is nothing but one user message; others stay as they are."""
    single = len(conversation) == 1 and conversation[0].role == "user"
    return conversation[0].content if single else conversation


def messages(prompt: str | Conversation) -> Conversation:
    """A prompt as a conversation: the inverse of :func:`plain`."""
    return (Message("user", prompt),) if isinstance(prompt, str) else prompt


def text(prompt: str | Conversation) -> str:
    """A prompt as a person reads it."""
    if isinstance(prompt, str):
        return prompt
    return "\n\n".join(f"{role}: {content}" for role, content in prompt)


def opening(value: Any, where: str) -> str:
    """What a row with this prompt, or these messages, is split and held out by.

    Of a conversation that is all before the first assistant turn: conversations that begin alike stay together, since
    one may be the beginning of another.
    """
    if not isinstance(value, list):
        return "" if value is None else str(value)
    conversation = read(value, where)
    first = next((at for at, m in enumerate(conversation) if m.role == "assistant"), len(conversation))
    return text(plain(conversation[:first]))


def contents(value: Any, where: str) -> Iterator[Message]:
    """Everything said in a text, a message, or lists of these; a text alone has no role."""
    if isinstance(value, str):
        yield Message("", value)
    elif isinstance(value, Mapping):
        if not is_empty(value):
            yield _message(value, where)
    elif isinstance(value, list):
        for item in value:
            yield from contents(item, where)

import pytest

from rlhf.data.conversations import contents, messages, opening, part, plain, read, text
from rlhf.types import Message

TALK = (Message("user", "a"), Message("assistant", "b"), Message("user", "c"))


@pytest.mark.parametrize(
    "rows",
    [
        [("role", "user", "content", "a"), ("role", "assistant", "content", "b"), ("role", "user", "content", "c")],
        [("from", "human", "value", "a"), ("from", "gpt", "value", "b"), ("from", "human", "value", "c")],
        [("role", "prompter", "content", "a"), ("from", "model", "value", "b"), ("role", "user", "content", "c")],
    ],
)
def test_both_ways_of_writing_are_one_conversation(rows) -> None:
    written = [{role: who, content: said} for role, who, content, said in rows]
    assert read(written, "x") == TALK
    assert read(written[1], "x") == (Message("assistant", "b"),)  # one message


def test_keys_that_are_there_without_a_value_are_not_read() -> None:
    assert read([{"from": None, "value": None, "role": "user", "content": "a", "name": None}], "x") == TALK[:1]


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ("a", "there: a message is a str; give {role, content}"),
        ({"speaker": "user", "content": "a"}, "there: a message has the keys speaker, content; give role and content"),
        ({"role": "asistant", "content": "a"}, "there: a message's role is 'asistant'; known: system, developer, user"),
        ({"role": "user", "content": ["a"]}, "there: a message's content is a list; give text"),
    ],
)
def test_what_is_no_message_is_an_error(message, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        read([message], "there")


def test_parted_before_the_last_assistant_turn() -> None:
    assert part(TALK) == (TALK[:1], "b")  # what follows it is nothing to learn from
    assert part((*TALK, Message("assistant", "d"))) == (TALK, "d")
    assert part(TALK[:1]) == (TALK[:1], None)


def test_one_user_message_is_a_text() -> None:
    assert plain(TALK[:1]) == "a" and plain(TALK) == TALK
    assert plain((Message("system", "s"),)) == (Message("system", "s"),)
    assert messages("a") == TALK[:1] and messages(TALK) == TALK
    assert text("a") == "a" and text(TALK) == "user: a\n\nassistant: b\n\nuser: c"


def test_conversations_that_begin_alike_have_one_opening() -> None:
    rows = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}, {"from": "human", "value": "c"}]
    assert opening(rows, "x") == opening(rows[:1], "x") == opening("a", "x") == "a"
    assert opening([{"role": "system", "content": "s"}, *rows], "x") == "system: s\n\nuser: a"
    assert opening(None, "x") == "" and opening(3, "x") == "3"


def test_contents_of_anything_that_holds_text() -> None:
    assert list(contents("a", "x")) == [Message("", "a")]
    assert list(contents(["a", {"role": "user", "content": "b"}, None], "x")) == [("", "a"), ("user", "b")]
    assert list(contents({"role": "user", "content": None}, "x")) == []

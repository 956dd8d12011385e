import json
from collections import Counter

import pytest

from rlhf.data.forms import Record, records
from rlhf.data.sources import Files
from rlhf.data.trees import MessageTrees
from rlhf.types import Message


def said(id: str, parent: str | None, role: str, text: str, rank: int | None = None, lang: str = "en") -> dict:
    return {"message_id": id, "parent_id": parent, "role": role, "text": text, "rank": rank, "lang": lang}


MESSAGES = [
    said("a", None, "prompter", "Hi"),
    said("b", "a", "assistant", "Go away.", 1),
    said("c", "a", "assistant", "Hello!", 0),
    said("d", "a", "assistant", "Not ranked."),
    said("e", "c", "prompter", "Bye"),
    said("f", "e", "assistant", "Bye!"),
    said("g", "e", "assistant", "So long."),
    said("h", "lost", "assistant", "To whom?", 0),
    said("i", None, "prompter", "Salut", lang="fr"),
    said("j", "i", "assistant", "Bonjour", 0, lang="fr"),
]
ASKED = (Message("user", "Hi"), Message("assistant", "Hello!"), Message("user", "Bye"))


RING = [said("a", "b", "prompter", "x"), said("b", "a", "assistant", "y"), *MESSAGES[8:]]


@pytest.fixture
def trees(tmp_path):
    def make(rows: list[dict] = MESSAGES, **settings) -> MessageTrees:
        path = tmp_path / "messages.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return MessageTrees(messages=Files(path=str(path)), **settings)

    return make


def made(form, source: MessageTrees) -> tuple[list[list[Record]], Counter]:
    drops: Counter[str] = Counter()
    dataset = source.load()
    return list(records(dataset, range(len(dataset)), form, drops, "x")), drops


def test_every_form_of_a_tree(trees) -> None:
    found, drops = made("comparison", trees(lang="en"))
    assert found == [[Record("Hi", ("Hello!", "Go away."), 1.0)], [], []]  # ranked; not ranked; an orphan
    assert drops == {"tie": 1, "missing_value": 1}
    found, _ = made("demonstration", trees(lang="en"))
    assert found == [[Record("Hi", ("Hello!",))], [Record(ASKED, ("Bye!",))], []]
    found, _ = made("prompt", trees(lang="en"))
    assert [record.prompt for row in found for record in row] == ["Hi", ASKED]


def test_languages(trees) -> None:
    assert [row[0].responses for row in made("demonstration", trees(lang="fr"))[0]] == [("Bonjour",)]
    assert len(trees().load()) == 4


def test_a_ring_ends(trees) -> None:
    assert made("demonstration", trees(RING)) == ([[], [Record("Salut", ("Bonjour",))]], Counter(missing_value=1))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (MESSAGES[:1], "none of 1 is an assistant's answer"),
        ([{"id": 1, "text": "a"}], "no column message_id among id, text; map it"),
    ],
)
def test_rows_that_are_no_trees_are_refused(trees, rows: list[dict], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        trees(rows).load()

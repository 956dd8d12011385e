from collections import Counter

import pytest
from datasets import Dataset

from rlhf.data.forms import Record, check_labels, keys, records
from rlhf.types import Form, Message


def make(rows: list[dict], form) -> tuple[list[list[Record]], Counter]:
    drops: Counter[str] = Counter()
    return list(records(Dataset.from_list(rows), range(len(rows)), form, drops, "sources.x")), drops


DEMO = {"prompt": "p", "response": "r"}
PAIR = {"prompt": "p", "chosen": "c", "rejected": "d"}
SCORED = {"prompt": "p", "responses": ["a", "b", "c"], "scores": [1.0, 3.0, 1.0]}


@pytest.mark.parametrize(
    ("row", "form", "expected"),
    [
        (DEMO, "prompt", Record("p", columns={"response": "r"})),
        (DEMO, "demonstration", Record("p", ("r",))),
        (PAIR, "demonstration", Record("p", ("c",))),
        (SCORED, "demonstration", Record("p", ("b",))),
        (PAIR, "comparison", Record("p", ("c", "d"))),
        ({**PAIR, "margin": "0.5"}, "comparison", Record("p", ("c", "d"), 0.5)),
        ({**PAIR, "margin": None}, "comparison", Record("p", ("c", "d"))),
        ({"text": "t"}, "text", Record("t")),
        (DEMO, "text", Record("p", ("r",))),
    ],
)
def test_a_richer_row_serves_as_a_poorer_one(row: dict, form, expected: Record) -> None:
    assert make([row], form) == ([[expected]], Counter())


def test_all_pairs_of_scored_responses_but_ties() -> None:
    rows, drops = make([SCORED, {**SCORED, "scores": [1.0, 2.0, 4.0]}], "comparison")
    assert rows[0] == [Record("p", ("b", "a"), 2.0), Record("p", ("b", "c"), 2.0)]
    assert rows[1] == [Record("p", ("b", "a"), 1.0), Record("p", ("c", "a"), 3.0), Record("p", ("c", "b"), 2.0)]
    assert drops == {"tie": 1}


def test_missing_values_are_counted() -> None:
    rows = [DEMO, {"prompt": "p", "response": None}, {"prompt": None, "response": "r"}]
    assert make(rows, "demonstration") == ([[Record("p", ("r",))], [], []], Counter(missing_value=2))
    nan = {"prompt": "p", "responses": ["a", "b"], "scores": [1.0, float("nan")]}
    assert make([nan, {**nan, "responses": ["a"], "scores": [1.0]}], "comparison")[1] == {
        "missing_value": 1,
        "single_response": 1,
    }


@pytest.mark.parametrize(
    ("row", "form", "message"),
    [
        (
            DEMO,
            "comparison",
            "sources.x: cannot give the form 'comparison'.*chosen.*good for: prompt, demonstration, text",
        ),
        ({"rating": 1}, "text", "good for: no form. Rename"),
        (
            {"prompt": [{"content": "p"}]},
            "prompt",
            "row 1: prompt: a message has the keys content; give role and content",
        ),
        ({**SCORED, "scores": [1.0]}, "comparison", "two lists of one length"),
        ({**PAIR, "margin": "much"}, "comparison", "margin is 'much'; give numbers"),
        ({**PAIR, "margin": "NaN"}, "comparison", "margin is 'NaN'; give numbers"),
        ({**SCORED, "scores": ["1", "nan", "2"]}, "comparison", "scores is 'nan'; give numbers"),
    ],
)
def test_wrong_rows_are_errors(row: dict, form, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make([row], form)


def test_the_row_named_is_the_row_of_the_source() -> None:
    dataset = Dataset.from_list([SCORED, SCORED, {**SCORED, "scores": [1.0]}])
    with pytest.raises(ValueError, match="row 3"):
        list(records(dataset, [0, 2], "comparison", Counter(), "x"))


def test_keys() -> None:
    assert keys(Dataset.from_list([DEMO]), "x") == ["p"]
    assert keys(Dataset.from_list([{"text": "t"}, {"text": None}]), "x") == ["t", ""]
    with pytest.raises(ValueError, match="no column prompt, messages or text among rating"):
        keys(Dataset.from_list([{"rating": 1}]), "x")


USER, BOT, AGAIN = (
    {"role": role, "content": text} for role, text in [("user", "p"), ("assistant", "a"), ("user", "q")]
)
ANSWER = {"role": "assistant", "content": "r"}
ASKED = (Message("user", "p"), Message("assistant", "a"), Message("user", "q"))


@pytest.mark.parametrize(
    ("row", "form", "expected"),
    [
        ({"messages": [USER, ANSWER]}, "demonstration", Record("p", ("r",))),
        ({"messages": [USER, BOT, AGAIN, ANSWER]}, "demonstration", Record(ASKED, ("r",))),
        ({"messages": [USER, ANSWER, AGAIN]}, "demonstration", Record("p", ("r",))),
        ({"messages": [USER, BOT, AGAIN, ANSWER]}, "text", Record(ASKED, ("r",))),
        ({"prompt": [USER, BOT, AGAIN], "response": "r"}, "demonstration", Record(ASKED, ("r",))),
        ({"prompt": [USER, BOT, AGAIN], "chosen": ANSWER, "rejected": BOT}, "comparison", Record(ASKED, ("r", "a"))),
        ({"messages": [USER, BOT, AGAIN], "chosen": ANSWER, "rejected": BOT}, "comparison", Record(ASKED, ("r", "a"))),
        ({"messages": [USER, BOT, AGAIN], "chosen": ANSWER, "rejected": BOT}, "demonstration", Record(ASKED, ("r",))),
        ({"prompt": "p", "chosen": [USER, ANSWER], "rejected": [USER, BOT]}, "comparison", Record("p", ("r", "a"))),
        ({"prompt": "p", "responses": [[ANSWER], [BOT]], "scores": [1, 0]}, "comparison", Record("p", ("r", "a"), 1.0)),
        ({**DEMO, "label": True}, "unpaired", Record("p", ("r",), label=True)),
        ({**DEMO, "label": 0}, "unpaired", Record("p", ("r",), label=False)),
        ({**DEMO, "label": "False"}, "unpaired", Record("p", ("r",), label=False)),
        ({"messages": [USER, BOT, AGAIN, ANSWER], "label": True}, "unpaired", Record(ASKED, ("r",), label=True)),
    ],
)
def test_conversations_and_judged_responses(row: dict, form, expected: Record) -> None:
    assert make([row], form) == ([[expected]], Counter())


def test_a_conversation_as_a_prompt_keeps_its_messages() -> None:
    rows, _ = make([{"messages": [USER, BOT, AGAIN, ANSWER], "topic": 1}], "prompt")
    assert rows == [[Record(ASKED, columns={"topic": 1, "messages": [USER, BOT, AGAIN]})]]
    assert make([{"messages": [USER, ANSWER]}], "prompt")[0] == [[Record("p", columns={"messages": [USER]})]]
    assert make([{"prompt": [USER], "topic": 1}], "prompt")[0] == [[Record("p", columns={"topic": 1})]]
    both = [{"prompt": "p", "messages": [USER, BOT, AGAIN, ANSWER]}]  # a text that was cut out of its conversation
    assert make(both, "prompt")[0] == [[Record("p", columns={"messages": [USER]})]]


def test_a_pair_gives_one_response_of_each_label() -> None:
    assert make([PAIR], "unpaired")[0] == [[Record("p", ("c",), label=True), Record("p", ("d",), label=False)]]


def test_what_is_called_bad_is_not_imitated() -> None:
    rows, drops = make([{**DEMO, "label": True}, {**DEMO, "label": False}], "demonstration")
    assert [len(row) for row in rows] == [1, 0] and drops == {"bad_label": 1}
    rows, drops = make([{**DEMO, "label": None}], "demonstration")
    assert len(rows[0]) == 1 and not drops  # nobody has judged it
    assert make([{**DEMO, "label": False}], "text") == ([[Record("p", ("r",))]], Counter())


GOOD = [True, 1, 1.0, "true", "True", " TRUE ", "1", "1.0"]
BAD = [False, 0, 0.0, -1, -1.0, "false", "False", "0", "-1", "0.0", "-1.0"]


@pytest.mark.parametrize("form", ["demonstration", "unpaired"])
@pytest.mark.parametrize("talk", [DEMO, {"messages": [USER, ANSWER]}])
def test_how_labels_may_be_spelt(form, talk: dict) -> None:
    for value in (*GOOD, *BAD):
        rows, drops = make([{**talk, "label": value}], form)
        kept = [] if form == "demonstration" and value in BAD else [Record("p", ("r",), label=value in GOOD)]
        assert (rows, drops) == ([kept], Counter() if kept else Counter(bad_label=1)), value
    for value in (2, -2, 0.5, "maybe", "", "yes", "-0.1", "10"):
        with pytest.raises(ValueError, match=rf"x, row 1: label is {value!r}; give true or 1 .* rename a"):
            make([{**talk, "label": value}], form)


def test_labels_are_looked_at_as_a_column() -> None:
    def check(labels: list, form: Form, row: dict = DEMO) -> None:
        check_labels(Dataset.from_list([{**row, "label": label} for label in labels]), form, "sources.x")

    check([1, -1, None, 1], "demonstration")
    check(["true", "0", "1"], "unpaired")
    for form in ("demonstration", "unpaired"):
        with pytest.raises(ValueError, match=r"x: label is 0 in row 3 and -1 in row 2, so that nobody can say"):
            check([1, -1, 0], form)
        with pytest.raises(ValueError, match=r"x, row 2: label is 3; give true or 1"):
            check([1, 3], form)
    check([1, -1, 0, 3], "prompt")  # not looked at
    check([1, 3], "demonstration", PAIR)


def test_conversations_without_an_answer_or_a_text_are_counted() -> None:
    silent = {"messages": [USER]}
    blank = {"messages": [USER, {"role": "assistant", "content": None}]}
    assert make([silent, blank, {"messages": []}], "demonstration")[1] == {"no_response": 1, "missing_value": 2}
    assert make([silent], "prompt")[0] == [[Record("p", columns={"messages": [USER]})]]


@pytest.mark.parametrize(
    ("row", "form", "message"),
    [
        ({**DEMO, "label": "maybe"}, "unpaired", "row 1: label is 'maybe'; give true"),
        ({"prompt": [USER, BOT]}, "prompt", "row 1: prompt ends with what the assistant says; map whole conversations"),
        (
            {"prompt": "p", "response": USER},
            "demonstration",
            "row 1: response is not the prompt and one assistant mess",
        ),
        ({"prompt": "q", "response": [USER, BOT]}, "demonstration", "row 1: response is not the prompt and one"),
        ({"prompt": "p", "response": [USER, BOT, AGAIN, BOT]}, "demonstration", "row 1: response is not the prompt"),
        ({"messages": "p"}, "prompt", "row 1: messages: a message is a str"),
    ],
)
def test_wrong_conversations_are_errors(row: dict, form, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make([row], form)


def test_keys_of_conversations_are_what_they_begin_with() -> None:
    rows = [{"messages": [USER, BOT, AGAIN, ANSWER]}, {"messages": [USER, ANSWER]}]
    assert keys(Dataset.from_list(rows), "x") == ["p", "p"] == keys(Dataset.from_list([DEMO] * 2), "x")
    with pytest.raises(ValueError, match="x, row 2: messages: a message's role is 'boss'"):
        keys(Dataset.from_list([rows[1], {"messages": [{"role": "boss", "content": "a"}]}]), "x")

from collections import Counter

import pytest
from datasets import Dataset

from rlhf.data.forms import Record, keys, records


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
            "row 0: prompt: a message has the keys content; give role and content",
        ),
        ({**SCORED, "scores": [1.0]}, "comparison", "two lists of one length"),
        ({**PAIR, "margin": "much"}, "comparison", "margin is 'much'; give numbers"),
    ],
)
def test_wrong_rows_are_errors(row: dict, form, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make([row], form)


def test_the_row_named_is_the_row_of_the_source() -> None:
    dataset = Dataset.from_list([SCORED, SCORED, {**SCORED, "scores": [1.0]}])
    with pytest.raises(ValueError, match="row 2"):
        list(records(dataset, [0, 2], "comparison", Counter(), "x"))


def test_keys() -> None:
    assert keys(Dataset.from_list([DEMO]), "x") == ["p"]
    assert keys(Dataset.from_list([{"text": "t"}, {"text": None}]), "x") == ["t", ""]
    with pytest.raises(ValueError, match="no column prompt, messages or text among rating"):
        keys(Dataset.from_list([{"rating": 1}]), "x")

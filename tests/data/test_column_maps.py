"""Every named map, on rows of the form that its data set has."""

import json
from collections import Counter

import pytest

from rlhf.data.column_maps import COLUMN_MAPS
from rlhf.data.forms import Record, records
from rlhf.data.sources import Files
from rlhf.types import Message

DIALOGUE = "\n\nHuman: Hi\n\nAssistant:"
HH = {"prompt": DIALOGUE, "response": " Hello.", "chosen": " Hello.", "rejected": " Go away."}
WEBGPT = {
    "question": {"dataset": "eli5", "id": "7", "full_text": "Why?"},
    "quotes_0": {"title": ["t"], "extract": ["e"]},
    "answer_0": "Because.",
    "tokens_0": {"prefix": [1], "completion": [2]},
    "score_0": -0.5,
    "answer_1": "So.",
    "score_1": 0.5,
}
SHP = {
    "post_id": "a",
    "domain": "cooking",
    "history": "How long?",
    "human_ref_A": "An hour.",
    "human_ref_B": "No idea.",
    "labels": 1,
    "score_ratio": 3.5,
}
HC3 = {
    "id": "0",
    "question": "Why?",
    "human_answers": ["So.", "Or so."],
    "chatgpt_answers": ["Because."],
    "source": "x",
}
TALK = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello."}]
PAIR_OF_TALKS = {
    "conversations": [*TALK, {"from": "human", "value": "Bye"}],
    "chosen": {"from": "gpt", "value": "Bye!"},
    "rejected": {"from": "gpt", "value": "No."},
}
ASKED = (Message("user", "Hi"), Message("assistant", "Hello."), Message("user", "Bye"))
CASES = [
    ("rm_static", HH, "comparison", [Record(DIALOGUE, (" Hello.", " Go away."))]),
    ("rm_static", HH, "demonstration", [Record(DIALOGUE, (" Hello.",))]),
    ("full_hh_rlhf", HH, "comparison", [Record(DIALOGUE, (" Hello.", " Go away."))]),
    (
        "synthetic_instruct_gptj_pairwise",
        {"prompt": "Hi", "chosen": "Hello.", "rejected": "Go."},
        "comparison",
        [Record("Hi", ("Hello.", "Go."))],
    ),
    ("webgpt_comparisons", WEBGPT, "comparison", [Record("Why?", ("So.", "Because."), 1.0)]),
    ("webgpt_comparisons", WEBGPT, "demonstration", [Record("Why?", ("So.",))]),
    ("webgpt_comparisons", {**WEBGPT, "score_1": -0.5}, "comparison", []),
    ("shp", SHP, "comparison", [Record("How long?", ("An hour.", "No idea."))]),
    ("shp", {**SHP, "labels": 0}, "comparison", [Record("How long?", ("No idea.", "An hour."))]),
    ("hc3", HC3, "demonstration", [Record("Why?", ("So.",))]),
    ("hc3", {**HC3, "human_answers": []}, "demonstration", []),
    (
        "alpaca",
        {"instruction": "Add.", "input": "1, 2", "output": "3"},
        "demonstration",
        [Record("Add.\n1, 2", ("3",))],
    ),
    ("sharegpt", {"id": "a", "conversations": TALK}, "demonstration", [Record("Hi", ("Hello.",))]),
    ("sharegpt_pairs", PAIR_OF_TALKS, "comparison", [Record(ASKED, ("Bye!", "No."))]),
    ("sharegpt_pairs", PAIR_OF_TALKS, "demonstration", [Record(ASKED, ("Bye!",))]),
]


def test_every_map_is_tried() -> None:
    assert {name for name, *_ in CASES} == set(COLUMN_MAPS)


@pytest.mark.parametrize(("name", "row", "form", "expected"), CASES)
def test_rows_of_the_data_set(tmp_path, name: str, row: dict, form, expected: list[Record]) -> None:
    path = tmp_path / "rows.jsonl"
    usual = next(other for known, other, *_ in CASES if known == name)  # an empty list alone has no type
    path.write_text(json.dumps(usual) + "\n" + json.dumps(row) + "\n")
    dataset = Files(path=str(path), columns=name).load()
    assert list(records(dataset, [1], form, Counter(), name)) == [expected]

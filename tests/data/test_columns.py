import pytest
from datasets import Dataset

from rlhf.data.columns import map_columns

ALPACA = Dataset.from_list(
    [
        {"instruction": "Add.", "input": "1 and 2", "output": "3"},
        {"instruction": "Greet.", "input": "", "output": "Hi"},
    ]
)
CHATS = Dataset.from_list([{"chosen": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}])


def test_renames_and_keeps_the_others() -> None:
    mapped = map_columns(ALPACA, {"prompt": "instruction", "response": "output"}, "x")
    assert mapped[0] == {"prompt": "Add.", "response": "3", "input": "1 and 2"}
    assert map_columns(ALPACA, {}, "x") is ALPACA


def test_joins_columns() -> None:
    mapped = map_columns(ALPACA, {"prompt": "{instruction}\n{input}"}, "x")
    assert mapped["prompt"][:] == ["Add.\n1 and 2", "Greet."]
    assert "instruction" in mapped.column_names


def test_reads_nested_fields() -> None:
    mapped = map_columns(CHATS, {"prompt": "chosen.0.content", "response": "chosen.-1.content"}, "x")
    assert mapped["prompt"][:] == ["q"] and mapped["response"][:] == ["a"]
    assert map_columns(CHATS, {"prompt": "chosen.7.content"}, "x")["prompt"][:] == [None]


def test_names_may_be_swapped_and_the_mapped_one_wins() -> None:
    swapped = map_columns(Dataset.from_dict({"a": ["1"], "b": ["2"]}), {"a": "b", "b": "a"}, "x")
    assert swapped[0] == {"a": "2", "b": "1"}
    assert map_columns(Dataset.from_dict({"a": ["1"], "b": ["2"]}), {"a": "b"}, "x")[0] == {"a": "2"}


@pytest.mark.parametrize(
    ("dataset", "theirs", "message"),
    [
        (
            ALPACA,
            "instructions",
            r"there: no column 'instructions'; did you mean 'instruction'\? Columns present: .*output",
        ),
        (ALPACA, "zzz", "no column 'zzz'; correct the column map"),
        (ALPACA, "{outputs}", r"no column 'outputs' \(in '{outputs}'\); did you mean 'output'"),
        (CHATS, "chosen.0.contents", "did you mean 'content'"),
        (CHATS, "chosen.content", "meets a list at 'content'; give an index"),
        (ALPACA, "output.text", "looks for 'text' in a str"),
    ],
)
def test_what_is_not_there_is_an_error(dataset: Dataset, theirs: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        map_columns(dataset, {"prompt": theirs}, "there")

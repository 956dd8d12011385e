import pytest
from datasets import Dataset

from rlhf.data import columns
from rlhf.data.columns import check_columns, map_columns

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


JUDGED = Dataset.from_dict({"a": ["x", "y", "z"], "b": ["u", "v", "w"], "best": [1, 0, 2]})


def test_a_list_gathers_columns_row_by_row() -> None:
    mapped = map_columns(JUDGED, {"responses": ["a", "<{b}>"], "scores": ["best", "best"]}, "x")
    assert mapped["responses"][:] == [["x", "<u>"], ["y", "<v>"], ["z", "<w>"]]
    assert mapped["scores"][:] == [[1, 1], [0, 0], [2, 2]]


@pytest.mark.parametrize("keys", [(1, 0), ("1", "0")])
@pytest.mark.parametrize("best", [[1, 0, 2], [1.0, 0.0, None], ["1", "0", "tie"]])
def test_a_column_chooses_between_others(keys, best) -> None:
    one, nought = keys
    rows = JUDGED.remove_columns("best").add_column("best", best)
    mapped = map_columns(rows, {"chosen": {"best": {one: "a", nought: "b"}}}, "x")
    assert mapped["chosen"][:] == ["x", "v", None]


def test_truth_chooses_too() -> None:
    rows = Dataset.from_dict({"a": ["x", "y"], "b": ["u", "v"], "ok": [True, False]})
    assert map_columns(rows, {"chosen": {"ok": {True: "a", False: "b"}}}, "x")["chosen"][:] == ["x", "v"]


def test_what_a_choice_names_must_be_there() -> None:
    with pytest.raises(ValueError, match="there: no column 'bests'; did you mean 'best'"):
        map_columns(JUDGED, {"chosen": {"bests": {1: "a"}}}, "there")
    with pytest.raises(ValueError, match="there: no column 'c'"):
        map_columns(JUDGED, {"chosen": {"best": {1: "c"}}}, "there")


@pytest.mark.parametrize("spec", [3, [], [3], {}, {"a": "b"}, {"a": {}}, {"a": {1: 2}}, {"a": {1: "x"}, "b": {1: "x"}}])
def test_maps_that_say_nothing_are_refused(spec) -> None:
    with pytest.raises(ValueError, match=r"columns.prompt: .*; give a column, a list of columns, or \{column:"):
        check_columns({"prompt": spec})


def test_maps_by_name() -> None:
    assert map_columns(ALPACA, "alpaca", "x")[0]["prompt"] == "Add.\n1 and 2"
    with pytest.raises(ValueError, match="columns: 'rmstatic' is no column map; did you mean rm_static"):
        check_columns("rmstatic")


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = {"responses": ["a", "<{b}>"], "chosen": {"best": {1: "a", 0: "b"}}, "kept": "a"}
    whole = map_columns(JUDGED, wanted, "x")[:]
    monkeypatch.setattr(columns, "_BLOCK", 2)
    assert map_columns(JUDGED, wanted, "x")[:] == whole
    assert whole["chosen"] == ["x", "v", None] and list(whole) == ["responses", "chosen", "kept", "b", "best"]

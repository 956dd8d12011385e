import datetime
from pathlib import Path

import pytest

from rlhf.data.examples import ComparisonExample, DemonstrationExample, PromptExample, UnpairedExample
from rlhf.data.stored import Shard, Stored, read_note, write_shard


def demonstrations(n: int, first: int = 0) -> list[DemonstrationExample]:
    return [DemonstrationExample(prompt_ids=[i] * (i % 3 + 1), response_ids=list(range(i))) for i in range(first, n)]


def test_examples_come_back_as_they_were(tmp_path: Path) -> None:
    pairs = [ComparisonExample(prompt_ids=[i], chosen_ids=[1, 2], rejected_ids=[], margin=i / 3) for i in range(4)]
    write_shard(tmp_path / "a", pairs, {"train": 3, "drops": {"tie": 2}})
    assert read_note(tmp_path / "a") == {"train": 3, "drops": {"tie": 2}}
    stored = Stored(ComparisonExample, [Shard(tmp_path / "a", ComparisonExample)], [(0, 4)], 3)
    assert list(stored) == pairs and type(stored[0].prompt_ids) is list and type(stored[0].prompt_ids[0]) is int


@pytest.mark.parametrize("targets", [[None, None, None], [None, [True, False], None], [[], [False], [True] * 9]])
def test_targets_of_conversations_come_back_and_none_stays_none(tmp_path: Path, targets: list) -> None:
    rows = [DemonstrationExample(prompt_ids=[1], response_ids=[2], targets=row) for row in targets]
    write_shard(tmp_path / "a", rows, {})
    stored = Stored(DemonstrationExample, [Shard(tmp_path / "a", DemonstrationExample)], [(0, 3)], 2)
    assert repr(list(stored)) == repr(rows)


def test_judged_responses_come_back_as_they_were(tmp_path: Path) -> None:
    rows = [UnpairedExample(prompt_ids=[i], response_ids=[], label=i == 1, source="s") for i in range(3)]
    write_shard(tmp_path / "a", rows, {})
    stored = Stored(UnpairedExample, [Shard(tmp_path / "a", UnpairedExample)], [(0, 3)], 2)
    assert list(stored) == rows and [type(example.label) for example in stored] == [bool] * 3


@pytest.mark.parametrize(
    "values",
    [
        [1, 2, None],
        [1, 1.0],  # stays a whole number in one row and none in the other
        [{"a": 1}, {"b": "x"}, None],
        [float("nan"), 1.0],
        ["text", 5, None, [1]],
        [{}, {"deep": [{"x": [1, None]}, {}]}],
        [True, None],
        [None, None],
        [2**70, -1],
        ["lone \ud800", "é"],
        [datetime.date(2020, 1, 2), None],
    ],
    ids=str,
)
def test_columns_of_prompts_keep_every_value(tmp_path: Path, values: list) -> None:
    rows = [PromptExample(prompt_ids=[1], prompt="p", source="s", columns={"c": value}) for value in values]
    write_shard(tmp_path / "a", rows, {})
    stored = Stored(PromptExample, [Shard(tmp_path / "a", PromptExample)], [(0, len(rows))], 1)
    assert repr(list(stored)) == repr(rows)


def test_a_value_that_no_file_can_hold_is_named(tmp_path: Path) -> None:
    rows = [PromptExample(prompt_ids=[1], prompt="p", source="s", columns={"c": v}) for v in (object(), 1)]
    with pytest.raises(ValueError, match="columns: cannot be kept in a file"):
        write_shard(tmp_path / "a", rows, {})


def test_spans_of_several_shards(tmp_path: Path) -> None:
    rows = demonstrations(10)
    for name, part in (("a", rows[:4]), ("b", rows[4:5]), ("c", rows[5:])):
        write_shard(tmp_path / name, part, {})
    shards = [Shard(tmp_path / name, DemonstrationExample) for name in "abc"]
    front = Stored(DemonstrationExample, shards, [(0, 2), (0, 0), (0, 3)], 7)
    back = Stored(DemonstrationExample, shards, [(2, 4), (0, 1), (3, 5)], 9)
    assert list(front) == [*rows[:2], *rows[5:8]] and list(back) == [*rows[2:5], *rows[8:]]
    assert back[-1] == rows[9] and back[1:3] == rows[3:5] and len(back) == 5
    for wrong in (5, -6):
        with pytest.raises(IndexError):
            back[wrong]
    assert list(Stored(DemonstrationExample, [], [], 0)) == []


def test_an_open_shard_outlives_its_file(tmp_path: Path) -> None:
    rows = demonstrations(300)
    write_shard(tmp_path / "a", rows, {})
    stored = Stored(DemonstrationExample, [Shard(tmp_path / "a", DemonstrationExample)], [(0, 300)], 1)
    (tmp_path / "a").unlink()
    assert list(stored) == rows


def test_a_shard_without_examples_has_its_note(tmp_path: Path) -> None:
    write_shard(tmp_path / "a", [], {"drops": {"long_prompt": 3}})
    assert read_note(tmp_path / "a") == {"drops": {"long_prompt": 3}}
    assert Shard(tmp_path / "a", DemonstrationExample).columns == {}


def test_what_is_no_shard_has_no_note(tmp_path: Path) -> None:
    assert read_note(tmp_path / "nowhere") is None
    (tmp_path / "broken").write_bytes(b"ARROW1 and then nothing")
    assert read_note(tmp_path / "broken") is None

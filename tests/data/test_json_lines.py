import json
from pathlib import Path

import pytest

from rlhf.data import json_lines
from rlhf.data.json_lines import read_json
from rlhf.errors import UserError


@pytest.fixture(params=[40, 1 << 20], ids=["blocks", "one block"])
def read(request, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(json_lines, "BLOCK_BYTES", request.param)

    def rows(content: str | bytes) -> list[dict]:
        path = tmp_path / "rows.jsonl"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return read_json(path).to_list()

    return rows


def test_lines_come_back(read) -> None:
    rows = [
        {"prompt": f"w{i} \u2028 é\u0000", "n": i, "half": i + 0.5, "list": ["a", None], "deep": {"x": [{"y": True}]}}
        for i in range(20)
    ]
    lines = [json.dumps(row) for row in rows]
    for content in ("\n".join(lines), "\r\n".join(lines) + "\r\n\r\n", "\ufeff" + "\n \n".join(lines) + "\n"):
        assert read(content) == rows
    assert read(json.dumps(rows, indent=2)) == rows and read("\ufeff \n" + json.dumps(rows)) == rows


def test_text_stays_text_whatever_it_looks_like(read) -> None:
    rows = [{"prompt": "2020-01-02", "deep": [{"at": "2020-01-02 03:04:05"}], "n": "5"}] * 3
    assert read("\n".join(map(json.dumps, rows))) == rows


def test_keys_may_be_missing_null_or_late_and_numbers_whole_or_not(read) -> None:
    content = '{"a": null}\n{"a": "x", "m": 1, "d": {"x": 1}}\n{"d": {"y": "s"}}\n{"m": 0.5}\n{}\n{"d": {}}\n'
    assert read(content)[:4] == [
        {"a": None, "m": None, "d": None},
        {"a": "x", "m": 1.0, "d": {"x": 1, "y": None}},
        {"a": None, "m": None, "d": {"x": None, "y": "s"}},
        {"a": None, "m": 0.5, "d": None},
    ]


def test_rows_that_crash_or_break_the_fast_reader(read) -> None:
    many = {"prompt": "[" * 200 + "{" * 200}
    assert read(json.dumps(many)) == [many]  # brackets in a text nest nothing
    content = '{}\n{"a": {"": ""}, "b": [null, " "]}\n'
    assert read(content)[1] == {"a": {"": ""}, "b": [None, " "]}
    with pytest.raises(UserError, match="line 1: 'null' is null, not an object"):
        read("null\n{}\n")


GOOD = '{"prompt": "w1", "m": [1]}\n' * 5


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"prompt": ', r"line 6: '..prompt.: ' is not JSON \(Expecting value at column 12\); correct or remove the"),
        ('{"prompt": "w1', r"line 6: .* is not JSON \(Unterminated string"),
        ("{'prompt': 1}", "line 6: .* is not JSON"),
        ("[1]", r"line 6: '\[1\]' is a list, not an object; correct"),
        ('"text"', "line 6: .* is text, not an object"),
        ("true", "line 6: 'true' is true or false, not an object"),
        ('{"prompt": "a"} {"prompt": "b"}', r"line 6: .* is not JSON \(Extra data"),
        ('{"prompt": "\\ud83d"}', r"line 6: 'prompt' holds \\ud83d, half of a character; correct or remove"),
        ('{"m\\udc00": 1}', r"line 6: .* holds \\udc00, half of a character"),
        ('{"prompt": 5}', r"line 6: 'prompt' is a number \(5\), but text in line 1; give it one type"),
        ('{"m": ["x"]}', r"line 6: 'm\[\]' is text \('x'\), but a number in line 1"),
        ('{"m": {"x": 1}}', r"line 6: 'm' is an object .* but a list in line 1"),
        ('{"p": [1, "x"]}', r"line 6: 'p\[\]' is text .* but a number in line 6"),
        ('{"prompt": "a", "prompt": "b"}', "line 6: .* cannot be a row .*specified twice"),
        ('{"p": 1e999}', "line 6: .* cannot be a row"),
        ('{"p": ' + "[" * 100 + "]" * 100 + "}", "line 6: 'p' is nested more than 64 deep; flatten it"),
        ('{"p": ' + "[" * 5000 + "]" * 5000 + "}", "line 6: .*nested .*; flatten it"),
    ],
)
def test_a_bad_line_is_named(read, line: str, message: str) -> None:
    for content in (f"{GOOD}{line}\n{GOOD}", GOOD + line):
        with pytest.raises(UserError, match=message):
            read(content)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('[{"a": 1},\n{"a": ]', r"line 2: the list is broken there \(Expecting value\)"),
        ('[{"a": 1}, 5]', "entry 2 of the list is a number"),
        ('[{"a": 1}, {"a": "x"}]', "entry 2: 'a' is text .* but a number in entry 1"),
        ('[{"a": "\\ud800"}]', "entry 1: 'a' holds .*half of a character"),
        ("[" * 100_000, "nested too deeply|broken there"),
        ('{"a":\n 1}\n', "line 1: .* is not JSON"),
    ],
)
def test_a_bad_list_is_named(read, content: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read(content)

import json
from pathlib import Path

import pytest
from datasets import Dataset

from rlhf.data.sources import Files, Generator, Hub, World
from rlhf.errors import UserError

ROWS = [{"instruction": f"q{i}", "input": "", "output": f"a{i}", "rating": i} for i in range(10)]


def write(path: Path, rows: list[dict]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_jsonl_with_columns_and_what_travels_along(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", ROWS)
    loaded = Files(path=path, columns={"prompt": "instruction", "response": "output"}, rows=3).load()
    assert loaded["response"][:] == ["a0", "a1", "a2"]
    assert loaded["rating"][:] == [0, 1, 2]


def test_text_with_rating(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"text": "good", "rating": 5}, {"text": "bad", "rating": 1}])
    assert Files(path=path).load().to_list() == [{"text": "good", "rating": 5}, {"text": "bad", "rating": 1}]


def test_json_list_parquet_and_lines_of_text(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(ROWS))
    Dataset.from_list(ROWS).to_parquet(tmp_path / "a.parquet")
    (tmp_path / "a.txt").write_text("one\n\ntwo\n")
    assert Files(path=str(tmp_path / "a.json")).load().to_list() == ROWS
    assert Files(path=str(tmp_path / "a.parquet")).load().to_list() == ROWS
    assert Files(path=str(tmp_path / "a.txt")).load()["text"][:] == ["one", "", "two"]


def test_csv_is_text_as_written(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('prompt,response\n"NA, or ""none""",007\n12,\n')
    loaded = Files(path=str(tmp_path / "a.csv")).load()
    assert loaded.to_list() == [{"prompt": 'NA, or "none"', "response": "007"}, {"prompt": "12", "response": ""}]


def test_a_changed_file_is_never_served_stale(tmp_path: Path) -> None:  # case G1
    source = Files(path=write(tmp_path / "a.jsonl", ROWS))
    assert len(source.load()) == 10
    write(tmp_path / "a.jsonl", ROWS[:7])
    assert len(source.load()) == 7
    write(tmp_path / "a.jsonl", [{**row, "output": "new"} for row in ROWS[:7]])
    assert set(source.load()["output"]) == {"new"}


def test_folder_and_list_of_files(tmp_path: Path) -> None:
    write(tmp_path / "b.jsonl", ROWS[5:])
    write(tmp_path / "a.jsonl", ROWS[:5])
    (tmp_path / "README.md").write_text("no data")
    assert Files(path=str(tmp_path)).load()["rating"][:] == list(range(10))
    listed = Files(path=[str(tmp_path / "b.jsonl"), str(tmp_path / "a.jsonl")])
    assert listed.load()["rating"][:] == [5, 6, 7, 8, 9, 0, 1, 2, 3, 4]
    (tmp_path / "c.txt").write_text("line")
    with pytest.raises(ValueError, match="several formats"):
        Files(path=str(tmp_path)).load()
    assert len(Files(path=str(tmp_path), format="jsonl").load()) == 10


def test_format_overrides_the_suffix(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.data", ROWS)
    assert len(Files(path=path, format="jsonl").load()) == 10
    with pytest.raises(ValueError, match=r"unknown suffix '.data'; set format"):
        Files(path=path).load()


def test_missing_empty_and_broken_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere.jsonl: no such file"):
        Files(path=str(tmp_path / "nowhere.jsonl")).load()
    (tmp_path / "sub").mkdir()
    with pytest.raises(UserError, match="a folder without"):
        Files(path=str(tmp_path / "sub")).load()
    (tmp_path / "e.jsonl").touch()
    with pytest.raises(ValueError, match=r"e.jsonl: the file is empty"):
        Files(path=str(tmp_path / "e.jsonl")).load()
    (tmp_path / "head.csv").write_text("prompt,response\n")
    with pytest.raises(ValueError, match=r"head.csv: .*no data"):
        Files(path=str(tmp_path / "head.csv")).load()
    (tmp_path / "broken.jsonl").write_text('{"a": 1}\n{"a": \n')
    with pytest.raises(ValueError, match=r"broken.jsonl: cannot be read as jsonl"):
        Files(path=str(tmp_path / "broken.jsonl")).load()


def test_missing_column_names_path_columns_and_nearest(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", ROWS)
    with pytest.raises(ValueError, match=r"a.jsonl: no column 'outptu'; did you mean 'output'\? .*instruction, input"):
        Files(path=path, columns={"response": "outptu"}).load()


def test_generator_by_dotted_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_rows.py").write_text(
        "def rows(n):\n  for i in range(n):\n    yield {'q': f'p{i}', **({'extra': i} if i else {})}\n\nnumber = 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    loaded = Generator(function="my_rows.rows", arguments={"n": 2}, columns={"prompt": "q"}).load()
    assert loaded.to_list() == [{"prompt": "p0", "extra": None}, {"prompt": "p1", "extra": 1}]
    for wrong in ("rows", "my_rows.row", "nowhere.rows", "my_rows.number"):
        with pytest.raises(ValueError, match=f"function: '{wrong}'"):
            Generator(function=wrong).load()
    with pytest.raises(ValueError, match="no rows"):
        Generator(function="my_rows.rows", arguments={"n": 0}).load()


@pytest.mark.parametrize(
    ("form", "columns"),
    [
        ("prompts", {"prompt"}),
        ("demonstrations", {"prompt", "response"}),
        ("comparisons", {"prompt", "chosen", "rejected"}),
        ("fit_pairs", {"prompt", "chosen", "rejected"}),
        ("scored", {"prompt", "responses", "scores"}),
        ("texts", {"text"}),
    ],
)
def test_world(form, columns: set[str]) -> None:
    loaded = World(form=form, rows=5, seed=3).load()
    assert len(loaded) == 5 and set(loaded.column_names) == columns
    assert loaded.to_list() == World(form=form, rows=5, seed=3).load().to_list()
    assert loaded.to_list() != World(form=form, rows=5, seed=4).load().to_list()


def test_the_world_tells_the_noise_ceiling_of_its_comparisons() -> None:
    noisy, clear = (World(form="comparisons", rows=500, options={"temperature": t}).remark() for t in (100.0, 0.01))
    shares = [float(text.split("%")[0].split()[-1]) for text in (noisy, clear)]
    assert "noise ceiling" in noisy and shares[0] < 62 < 95 < shares[1]
    assert World(form="prompts").remark() == ""


def test_world_options_are_checked_early() -> None:
    with pytest.raises(ValueError, match=r"options.kk: unknown for scored; known: .*k"):
        World(form="scored", options={"kk": 2})
    assert len(World(form="scored", rows=1, options={"k": 6}).load()[0]["scores"]) == 6


def test_hub_error_names_what_was_asked_for() -> None:
    with pytest.raises(ValueError, match=r"nobody/nothing: cannot be loaded .*split 'train'.*or use Files"):
        Hub(name="nobody/nothing").load()


@pytest.mark.parametrize(
    "make", [lambda: Files(path="x", rows=0), lambda: Files(path=[]), lambda: World(form="texts", rows=0)]
)
def test_impossible_settings_are_refused(make) -> None:
    with pytest.raises(ValueError, match=r"rows|path"):
        make()


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.csv", "rows.txt"])
def test_another_encoding_is_named_with_its_line(tmp_path, name):
    (tmp_path / name).write_bytes('{"prompt": "a"}\n{"prompt": "café"}\n'.encode("latin-1"))
    with pytest.raises(ValueError, match=rf"{name}: cannot be read .*line 2 is not UTF-8"):
        Files(path=str(tmp_path / name)).load()


def test_an_endless_generator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "endless.py").write_text(
        "import itertools\n\ndef rows():\n    for n in itertools.count():\n        yield {'prompt': f'p{n}'}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    loaded = Generator(function="endless.rows", rows=2500).load()
    assert len(loaded) == 2500 and loaded[2499] == {"prompt": "p2499"}


def test_a_stream_is_read_no_further_than_needed(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    write(tmp_path / "a" / "train.jsonl", ROWS)
    folder = str(tmp_path / "a")  # what load_dataset reads like a data set of the hub
    loaded = Hub(name=folder, streaming=True, rows=3, columns={"prompt": "instruction"}).load()
    assert loaded["prompt"][:] == ["q0", "q1", "q2"] and loaded["rating"][:] == [0, 1, 2]
    assert len(Hub(name=folder, streaming=True).load()) == 10


def test_worlds_are_known_by_their_settings() -> None:
    one = World(form="prompts", rows=5)
    assert one.fingerprint() == World(form="prompts", rows=5).fingerprint() != World(form="prompts").fingerprint()


def test_a_bad_line_is_told_with_its_file(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n{"a": \n')
    with pytest.raises(
        UserError, match=r"a.jsonl: cannot be read as jsonl: line 2: '{\"a\": ' is not JSON .*; correct"
    ):
        Files(path=str(tmp_path / "a.jsonl")).load()
    (tmp_path / "b.jsonl").write_bytes(b'{"a": 1}\n' * 200_000 + b'{"a": "\xff"}\n')
    with pytest.raises(UserError, match="line 200001 is not UTF-8: invalid start byte; save the file as UTF-8"):
        Files(path=str(tmp_path / "b.jsonl")).load()

"""Data that are not there, are no data, or of which nothing is left: told with file, row and remedy."""

import pytest
from yaml_stages import SCRATCH, data, lines, ppo, refused, sft, text


@pytest.mark.parametrize(
    ("prepare", "path", "parts"),
    [
        (None, "rowz.jsonl", ["stages.s0.data.sources.rows: rowz.jsonl: no such file or folder", "correct the path"]),
        (lambda p: (p / "empty.jsonl").touch(), "empty.jsonl", ["empty.jsonl: the file is empty"]),
        (lambda p: (p / "d").mkdir(), "d", ["d: a folder without", "it holds nothing"]),
        (
            lambda p: (p / "rows.xls").write_text("x"),
            "rows.xls",
            ["rows.xls: unknown suffix '.xls'; set format to one of"],
        ),
        (
            lambda p: (p / "cut.jsonl").write_text('{"prompt": "a"}\n{"prompt'),
            "cut.jsonl",
            ["cut.jsonl: cannot be read"],
        ),
        (lambda p: (p / "latin.jsonl").write_bytes(b'{"prompt": "\xe9"}'), "latin.jsonl", ["line 1 is not UTF-8"]),
        (lambda p: (p / "list.json").write_text("[]"), "list.json", ["list.json"]),
    ],
)
def test_data_files(run, here, prepare, path, parts):
    if prepare:
        prepare(here)
    known = not (path.endswith((".jsonl", ".json")) and (here / path).is_file() and (here / path).stat().st_size)
    refused(run(sft(path)), 2 if known else 1, *parts)  # before the first stage, or where it is read
    assert not (here / "runs/toy/s0").exists()


@pytest.mark.parametrize(
    ("row", "parts"),
    [
        (
            lambda n: {"question": f"{n}", "answer": "b"},
            ["sources.rows: no column prompt, messages or text among question, answer; rename with columns"],
        ),
        (
            lambda n: {"prompt": f"{n}"},
            ["sources.rows", "which needs (prompt, response)", "its columns are prompt, good"],
        ),
        (
            lambda n: {"prompt": f"{n}", "response": "b", "label": "good" if n == 6 else "true"},
            ["sources.rows, row 7: label is 'good'; give true or 1 for a good response, false, 0 or -1 for a bad one"],
        ),
        (
            lambda n: {"prompt": f"{n}", "response": "b", "label": n % 3 - 1},
            ["sources.rows: label is 0 in row 2 and -1 in row 1, so that nobody can say which of them is bad"],
        ),
        (lambda n: {"prompt": n, "response": "b"}, ["sources.rows", "prompt is a int, not text; quote it"]),
        (
            lambda n: {"prompt": [f"{n}"], "response": "b"},
            ["sources.rows", "prompt: a message is a str; give {role"],
        ),
        (lambda n: {"prompt": f"{n}", "response": None}, ["sources.rows: of its 8 training rows none is left", "8"]),
    ],
)
def test_columns_and_types_of_rows(run, here, row, parts):
    lines(here / "rows.jsonl", [row(n) for n in range(10)])
    refused(run(sft()), 1, "stage s0: ", *parts)
    assert not (here / "runs/toy/s0").exists()


def test_prompts_that_are_all_over_the_limit(run, here):  # case G4
    lines(here / "rows.jsonl", [{"prompt": f"{n}" * 20} for n in range(5)])
    answer = run(ppo(limits={"max_prompt_tokens": 4}))
    refused(
        answer, 1, "stage s0: sources.rows: of its", "included: long_prompt", "max_tokens, max_prompt_tokens and long_p"
    )
    assert not (here / "runs/toy/s0").exists()


def test_prompts_over_the_limit_are_dropped_and_counted(log):  # case G4
    stage = ppo(limits={"max_prompt_tokens": 16, "eval_rows": 0}, batch_size=2, mini_batch_size=2)
    said, figures = log(stage, [{"prompt": text("a", n)} for n in (5, 16, 17, 40)])
    assert "s0: rows: 2 for training, 0 held out; 2 dropped (long_prompt 2)" in said
    assert figures[-1]["data/rows_dropped"] == 2


@pytest.mark.parametrize("batch_size", [1, 5])
def test_truncation_and_empty_responses(log, batch_size):  # case G3
    lengths = [(4, 5), (30, 5), (18, 5), (6, 0), (10, 5)]
    stage = sft(limits={"max_tokens": 20, "eval_rows": 0}, batch_size=batch_size, steps=None, epochs=1.0)
    said, figures = log(stage, [{"prompt": text("a", p), "response": text("b", r)} for p, r in lengths])
    assert "1 dropped (long_prompt 1); 2 kept but cut or empty (truncated_response 1, empty_response 1)" in said
    assert len(figures) == -(-4 // batch_size) and all(line["loss"] > 0 for line in figures)


def test_the_rows_of_a_mixture_are_told_as_the_stages_own(log):
    texts = data("rows.jsonl", eval_rows=1, max_tokens=8)
    mixture = {"class_path": "Mixture", "init_args": {"data": texts}}
    stage = ppo(limits={"eval_rows": 0}, mixture=mixture)
    said, _ = log(stage, [{"prompt": f"{n}", "response": text("b", 8 if n else 2)} for n in range(5)])
    assert "s0: rows: 5 for training" in said and "s0.mixture: rows: " in said and "(long_text 4)" in said


def test_a_file_of_which_nothing_is_left(run, here):  # case G3
    lines(here / "rows.jsonl", [{"prompt": text("a", 30), "response": f"{n}"} for n in range(3)])
    answer = run(sft(limits={"max_tokens": 20, "eval_rows": 0}))
    refused(
        answer, 1, "of its 3 training rows none is left (dropped, held out ones included: long_prompt 3); see max_t"
    )


def test_pairs_that_are_identical_or_are_after_truncation(log):  # case D1
    same = {"prompt": "a", "chosen": "bb", "rejected": "bb"}
    after = {"prompt": "a", "chosen": text("b", 8) + "x", "rejected": text("b", 8) + "y"}
    last = {"prompt": "a", "chosen": text("b", 6) + "x", "rejected": text("b", 6) + "y"}
    normal = {"prompt": "a", "chosen": "x", "rejected": "y"}
    stage = sft(limits={"max_tokens": 8, "eval_rows": 0}, policy=None)
    settings = {name: value for name, value in stage["init_args"].items() if value is not None}
    stage = {"class_path": "RewardModelling", "init_args": {**settings, "model": SCRATCH, "steps": 1}}
    said, figures = log(stage, [normal, same, after, last])
    assert "2 dropped (identical_pair 1, identical_after_truncation 1)" in said
    assert figures[0]["data/rows_dropped"] == 2

import dataclasses
import json
import multiprocessing
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlhf.data import preparation
from rlhf.data.dataset import Data
from rlhf.data.preparation import HELDOUT, TRAIN, Prepared, deal
from rlhf.data.sources import Files, Generator
from rlhf.data.templates import Chat, Plain
from rlhf.interfaces import Source

ROWS = [{"prompt": f"w{i}", "response": "w1 w2 w3 w4"} for i in range(10)]


@pytest.fixture
def source(tmp_path: Path):
    def make(rows: list[dict], name: str = "rows") -> Files:
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return Files(path=str(path))

    return make


def ids(prepared: Prepared) -> list[Any]:
    return [dataclasses.astuple(example) for part in (prepared.train, prepared.heldout) for example in part]


def test_every_change_is_seen_and_none_is_a_hit(source, words, tmp_path: Path) -> None:  # case G1
    cache = str(tmp_path / "cache")
    results: list[list[Any]] = []

    def run(rows: list[dict] = ROWS, *, tokenizer=None, form="demonstration", phase="sft", **settings) -> Prepared:
        data = Data(sources={"x": source(rows)}, **{"eval_rows": 0, **settings})
        prepared = data.prepare(tokenizer or words(), form=form, phase=phase, cache_dir=cache)
        results.append(ids(prepared))
        return prepared

    def is_hit(prepared: Prepared) -> bool:
        return prepared.origin.startswith("tokenised before, read from ")

    first = run()
    assert first.origin.startswith("10 rows tokenised in ") and f"kept in {cache}" in first.origin
    again = run()
    assert is_hit(again) and results[0] == results[1] and again.describe() == first.describe()

    assert len(run(ROWS[:7]).train) == 7
    edited = [{**row, "response": row["response"].replace("w2", "w9")} for row in ROWS]  # of the same size
    assert run(edited).train["x", 0].response_ids == [11, 19, 13, 14, 1]
    assert run(tokenizer=words(bos=True)).train["x", 0].prompt_ids == [2, 10]
    assert run(max_tokens=3).train["x", 0].response_ids == [11, 12]
    assert len(run(split=[1, 0, 1]).train) == 5
    assert len(run(split=[1, 4, 0]).train) == 2
    assert len(run(split=[1, 4, 0], phase="reward").train) == 8
    assert len(run(eval_rows=3).heldout) == 3
    assert run(template=Plain(end=".")).train["x", 0].response_ids[-1] == 112
    assert run(form="prompt").train["x", 0].prompt == "w0"
    assert len(run(duplicates="drop", max_tokens=4).train) == 10
    assert not any(map(is_hit, [run(long_prompts="keep_end"), run(max_prompt_tokens=7)]))  # never looked at too closely

    assert is_hit(run()) and results[-1] == results[0]  # the first is still there


def test_the_name_of_a_source_counts_and_its_path_does_not(source, words, tmp_path: Path) -> None:
    def run(name: str, file: str) -> Prepared:
        data = Data(sources={name: source(ROWS, file)}, eval_rows=0)
        return data.prepare(words(), form="prompt", phase="sft", cache_dir=str(tmp_path / "cache"))

    run("x", "one")
    assert "before" in run("x", "moved").origin
    other = run("y", "one")
    assert "before" not in other.origin and other.train["y", 0].source == "y"


def test_rows_of_ones_own_are_compared_by_content(words, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = tmp_path / "my_cached_rows.py"
    module.write_text("def rows(word):\n    yield from ({'prompt': f'w{i} {word}', 'n': i} for i in range(5))\n")
    monkeypatch.syspath_prepend(tmp_path)

    def run(word: str) -> Prepared:
        data = Data(sources={"x": Generator(function="my_cached_rows.rows", arguments={"word": word})}, eval_rows=0)
        return data.prepare(words(), form="prompt", phase="ppo", cache_dir=str(tmp_path / "cache"))

    assert "before" not in run("w7").origin
    assert "before" in run("w7").origin and "before" not in run("w8").origin


def test_shards_change_nothing(source, words, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        {"prompt": f"w{i % 40}", "response": "w1 " * (i % 9), "chosen": f"w{i % 3}", "rejected": f"w{i % 5}"}
        for i in range(120)
    ]
    sources = {"a": source(rows, "a"), "b": source(rows[:31], "b")}
    data = Data(sources=sources, split=[1, 2, 1], max_tokens=6, eval_fraction=0.2)
    for form, phase in (("demonstration", "sft"), ("comparison", "reward"), ("prompt", "ppo"), ("text", "sft")):
        whole = data.prepare(words(), form=form, phase=phase)
        monkeypatch.setattr(preparation, "SHARD_BYTES", 300)
        monkeypatch.setattr(preparation, "BLOCK_ROWS", 7)
        parts = data.prepare(words(), form=form, phase=phase)
        monkeypatch.undo()
        assert ids(parts) == ids(whole) and parts.describe() == whole.describe()
        assert parts.train.sizes == whole.train.sizes and parts.train.longest == whole.train.longest > 0


def test_rows_are_dealt_out_as_a_simple_deal_would(source) -> None:
    rows = [{"prompt": f"w{i % 40}"} for i in range(60)]
    data = Data(sources={"x": source(rows)}, split=[1, 1, 2], eval_fraction=0.25)
    from hashlib import blake2b

    def order(prompts: set[str], salt: bytes) -> list[str]:
        return sorted(prompts, key=lambda text: blake2b(text.encode(), digest_size=16, key=salt).digest())

    mine = order({row["prompt"] for row in rows}, b"phase")[20:]
    held = order(set(mine), b"holdout")[:5]
    places = deal(data, {"x": data.sources["x"].load()}, "ppo")["x"]
    expected = [HELDOUT if r["prompt"] in held else TRAIN if r["prompt"] in mine else 0 for r in rows]
    assert places.tolist() == expected and places.dtype == np.uint8


# ------------------------------------------------------------------------------------- conversations and single sources

CHAT = (
    "{% for m in messages %}{{ 'Bot:' if m.role == 'assistant' else 'User:' }} {{ m.content }} "
    "{% if m.role == 'assistant' %}<eos> {% endif %}{% endfor %}{% if add_generation_prompt %}Bot: {% endif %}"
)


def talk(i: int, turns: int) -> list[dict[str, str]]:
    says = [{"from": ("human", "gpt")[at % 2], "value": f"w{(i + at) % 100}"} for at in range(2 * turns)]
    return [{"from": "system", "value": f"w{i}"}, *says] if i % 3 == 0 else says


def chatting(words) -> Any:
    tokenizer = words(bos=True)
    tokenizer.chat_template = CHAT
    return tokenizer


TALKS = [
    {"messages": talk(i, 1 + i % 3), "label": i % 4 > 0, "chosen": {"role": "assistant", "content": "w1"}, "n": i}
    for i in range(40)
]


@pytest.mark.parametrize("template", [Chat(), Chat(targets="last"), Plain(), Plain(targets="last")], ids=repr)
def test_conversations_are_the_same_kept_or_not_whole_or_in_shards(
    source, words, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, template
) -> None:  # case G1
    rows = [{key: value for key, value in row.items() if key != "chosen"} for row in TALKS]
    data = Data(sources={"x": source(rows)}, template=template, split=[2, 1, 1], eval_fraction=0.2, max_tokens=20)
    for form in ("demonstration", "prompt", "unpaired", "text"):
        fresh = data.prepare(chatting(words), form=form, phase="sft", cache_dir=None)
        monkeypatch.setattr(preparation, "SHARD_BYTES", 300)
        monkeypatch.setattr(preparation, "BLOCK_ROWS", 7)
        for origin in ("rows tokenised", "tokenised before"):
            kept = data.prepare(chatting(words), form=form, phase="sft", cache_dir=str(tmp_path))
            assert origin in kept.origin and ids(kept) == ids(fresh) and kept.describe() == fresh.describe()
        monkeypatch.undo()
        assert len(fresh.train) > 5 and len(fresh.heldout) > 0


def test_judged_responses_come_back_with_their_labels(source, words, tmp_path: Path) -> None:
    rows = [{"prompt": f"w{i}", "response": f"w{i} w1", "label": i % 3 > 0} for i in range(12)]
    data = Data(sources={"x": source(rows)}, eval_rows=3)
    for _ in range(2):
        prepared = data.prepare(words(), form="unpaired", phase="reward", cache_dir=str(tmp_path))
        both = sorted([*prepared.train, *prepared.heldout], key=lambda example: example.prompt_ids)
        assert [example.label for example in both] == [row["label"] for row in rows]
        assert all(type(example.label) is bool and example.response_ids[-1] == 1 for example in both)
    assert "before" in prepared.origin


def test_what_decides_the_ids_of_a_conversation_is_never_a_hit(source, words, tmp_path: Path) -> None:  # case G1
    tokenizer, other = chatting(words), chatting(words)
    other.chat_template = CHAT.replace("User:", "User: .")

    def run(template, tokenizer=tokenizer, **settings) -> Prepared:
        sources = {"x": source(TALKS, "x"), "y": source(ROWS, "y")}
        data = Data(sources=sources, template=template, eval_rows=0, **settings)
        return data.prepare(tokenizer, form="prompt", phase="ppo", cache_dir=str(tmp_path / "cache"))

    runs = [
        run(Chat()),
        run(Chat(system="w9")),
        run(Chat(targets="last")),
        run(Chat(), other),
        run(Chat(), templates={"y": Plain()}),
        run(Chat(), templates={"y": Plain(prompt_format="User: {prompt}")}),
        run(Chat(), templates={"x": Plain()}),
    ]
    assert not any("before" in prepared.origin for prepared in runs)
    again = run(Chat(), templates={"y": Plain(prompt_format="User: {prompt}")})
    assert "before" in again.origin and ids(again) == ids(runs[5])
    assert [prepared.train["y", 0].prompt_ids for prepared in (runs[0], runs[4], runs[5])] == [
        [2, 110, 10, 111],
        [2, 10],
        [2, 110, 10],
    ]
    assert [prepared.train["x", 1].prompt_ids for prepared in (runs[4], runs[5])] == [
        [2, 110, 11, 111, 12, 1, 110, 13, 111]
    ] * 2
    assert again.train["x", 1].columns["messages"][0] == {"role": "user", "content": "w1"}


def test_a_row_is_named_by_its_number_in_the_source(source, words, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "BLOCK_ROWS", 2)
    rows = [{"messages": talk(i, 1)} for i in range(5)]
    rows[3]["messages"][0]["from"] = "nobody"
    with pytest.raises(ValueError, match=r"sources.x, row 4: messages: a message's role is 'nobody'"):
        Data(sources={"x": source(rows)}).prepare(words(), form="prompt", phase="ppo")


# ------------------------------------------------------------------------------------------------------- interruption


class _Killed(BaseException):
    pass


def test_a_killed_preparation_goes_on_behind_its_last_shard(
    source, words, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparation, "SHARD_BYTES", 1)  # a shard per row
    data = Data(sources={"x": source([*ROWS, {"prompt": None, "response": "w1"}])}, eval_rows=2)
    whole = data.prepare(words(), form="demonstration", phase="sft", cache_dir=None)
    encoded: list[Any] = []
    make = Data.encoder

    def dies_after(rows: int) -> None:
        def encoder(*arguments: Any) -> Any:
            if len(encoded) == rows:
                raise _Killed
            encoded.append(arguments)
            return make(*arguments)

        monkeypatch.setattr(Data, "encoder", encoder)

    cache = str(tmp_path / "cache")
    for rows in (4, 7):
        dies_after(rows)
        with pytest.raises(_Killed):
            data.prepare(words(), form="demonstration", phase="sft", cache_dir=cache)
    dies_after(99)
    resumed = data.prepare(words(), form="demonstration", phase="sft", cache_dir=cache)
    assert len(encoded) == 11  # every row once
    assert (
        "4 rows tokenised" in resumed.origin and "7 shards were there from a run that was cut short" in resumed.origin
    )
    assert ids(resumed) == ids(whole) and resumed.drops == whole.drops == {"x/missing_value": 1}


def test_a_file_that_changed_in_between_starts_anew(
    source, words, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparation, "SHARD_BYTES", 1)
    cache = str(tmp_path / "cache")
    write = preparation.write_shard

    def dies(path: Path, *arguments: Any) -> None:
        if "00003" in path.name:
            raise _Killed
        write(path, *arguments)

    monkeypatch.setattr(preparation, "write_shard", dies)
    with pytest.raises(_Killed):
        Data(sources={"x": source(ROWS)}, eval_rows=0).prepare(words(), form="prompt", phase="sft", cache_dir=cache)
    monkeypatch.setattr(preparation, "write_shard", write)
    edited = [{**row, "prompt": f"w9 {row['prompt']}"} for row in ROWS]
    prepared = Data(sources={"x": source(edited)}, eval_rows=0).prepare(
        words(), form="prompt", phase="sft", cache_dir=cache
    )
    assert [e.prompt_ids[0] for e in prepared.train] == [19] * 10 and "cut short" not in prepared.origin


# ---------------------------------------------------------------------------------------------------------- processes


def _prepare(data: Data, tokenizer: Any, cache: Path, delay: float, answers: Any) -> None:
    time.sleep(delay)
    prepared = data.prepare(tokenizer, form="demonstration", phase="sft", cache_dir=str(cache))
    answers.put(("before" in prepared.origin, ids(prepared)))


@pytest.mark.parametrize("nodes", [1, 2])
def test_processes_of_a_node_share_one_build(source, words, tmp_path: Path, nodes: int) -> None:  # case G2
    data = Data(sources={"x": source(ROWS * 20)}, eval_fraction=0.2)
    expected = ids(data.prepare(words(), form="demonstration", phase="sft", cache_dir=None))
    processes = multiprocessing.get_context("fork")
    for repeat in range(2):
        rng, answers = random.Random(repeat), processes.Queue()
        caches = [tmp_path / f"cache-{repeat}-{rank % nodes}" for rank in range(4)]
        started = [
            processes.Process(target=_prepare, args=(data, words(), cache, rng.uniform(0, 0.1), answers), daemon=True)
            for cache in caches
        ]
        for process in started:
            process.start()
        got = [answers.get(timeout=120) for _ in started]
        for process in started:
            process.join(60)
            assert process.exitcode == 0
        assert sum(not hit for hit, _ in got) == nodes
        assert all(found == expected for _, found in got)


def test_a_truncated_shard_is_made_again(source, words, tmp_path: Path) -> None:  # case G2
    data = Data(sources={"x": source(ROWS)}, eval_rows=0)

    def run() -> Prepared:
        return data.prepare(words(), form="demonstration", phase="sft", cache_dir=str(tmp_path / "cache"))

    first = ids(run())
    (shard,) = (tmp_path / "cache").glob("*/*.arrow")
    shard.write_bytes(shard.read_bytes()[:-40])
    again = run()
    assert "before" not in again.origin and ids(again) == first
    assert "before" in run().origin


# -------------------------------------------------------------------------------------------------------------- scale


def test_a_source_without_rows_is_an_error(words) -> None:
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Nothing(Source):
        def load(self):
            import datasets

            return datasets.Dataset.from_dict({"prompt": []})

    with pytest.raises(ValueError, match=r"sources.x: of its 0 training rows none is left"):
        Data(sources={"x": Nothing()}).prepare(words(), form="prompt", phase="sft")


def test_examples_in_use_are_all_that_is_in_memory(source, words) -> None:
    import tracemalloc

    rows = [{"prompt": f"w{i % 90} " * 60, "response": "w1 " * 60} for i in range(800)]
    data = Data(sources={"x": source(rows)}, eval_rows=0, max_tokens=128)
    prepared = data.prepare(words(), form="demonstration", phase="sft")
    tracemalloc.start()
    total = sum(example.length for example in prepared.train)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert total == 800 * 121 and peak < 200_000  # as lists of ids they would be some megabytes

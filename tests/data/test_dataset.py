import json
from pathlib import Path

import pytest

from rlhf.data import dataset
from rlhf.data.blenders import Weighted
from rlhf.data.dataset import Data
from rlhf.data.sources import Files, World
from rlhf.data.templates import Chat, Plain


@pytest.fixture
def source(tmp_path: Path):
    def make(rows: list[dict], name: str = "rows", **settings) -> Files:
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return Files(path=str(path), **settings)

    return make


DEMOS = [{"prompt": f"w{i}", "response": f"w{i}"} for i in range(100)]


def prompts(examples) -> set[int]:
    return {e.prompt_ids[0] for e in examples}


def test_instruction_rows_become_demonstrations(source, words) -> None:
    rows = [{"instruction": f"w{i}", "input": "", "output": "w9"} for i in range(40)]
    data = Data(sources={"alpaca": source(rows, columns={"prompt": "{instruction} {input}", "response": "output"})})
    prepared = data.prepare(words(), form="demonstration", phase="sft")
    assert prepared.train.sizes == {"alpaca": 38} and prepared.heldout.sizes == {"alpaca": 2}
    assert all(e.response_ids == [19, 1] for e in prepared.train)
    assert prepared.rows_dropped == 0
    assert prepared.describe() == ["alpaca: 38 for training, 2 held out"]


def test_texts_with_a_rating_serve_as_text_and_as_prompts(source, words) -> None:
    rows = [{"text": f"w{i} w1", "rating": i} for i in range(20)]
    texts = Data(sources={"reviews": source(rows)}).prepare(words(), form="text", phase="sft")
    assert len(texts.train) == 19 and len(texts.heldout) == 1
    as_prompts = Data(sources={"reviews": source(rows, columns={"prompt": "text"})}, eval_rows=0)
    example = as_prompts.prepare(words(), form="prompt", phase="ppo").train["reviews", 3]
    assert (example.prompt, example.columns, example.source) == ("w3 w1", {"rating": 3}, "reviews")


def test_three_phases_share_no_prompt(source, words) -> None:  # case G5
    data = Data(sources={"x": source(DEMOS)}, split=[2, 4, 4], eval_fraction=0.1)
    phases = [data.prepare(words(), form="demonstration", phase=phase) for phase in ("sft", "reward", "ppo")]
    assert [(len(p.train), len(p.heldout)) for p in phases] == [(18, 2), (36, 4), (36, 4)]
    seen = [prompts(part) for p in phases for part in (p.train, p.heldout)]
    assert len(set.union(*seen)) == 100 == sum(map(len, seen))
    fixed = Data(sources={"x": source(DEMOS)}, split=[2, 4, 4], eval_fraction=0.1, phase="reward")
    assert prompts(fixed.prepare(words(), form="demonstration", phase="sft").train) == prompts(phases[1].train)


def test_a_source_is_dealt_out_alike_whatever_stands_beside_it(source, words) -> None:
    other = [{"prompt": f"w{i} w{i}", "response": "w1"} for i in range(37)]
    alone = Data(sources={"x": source(DEMOS)}, split=[1, 1, 1], eval_rows=0)
    beside = Data(sources={"y": source(other, "y"), "x": source(DEMOS)}, split=[1, 1, 1], eval_rows=0)
    one, two = (d.prepare(words(), form="demonstration", phase="reward").train.rows["x"] for d in (alone, beside))
    assert prompts(one) == prompts(two)


def test_a_prompt_held_out_is_not_trained_on_by_another_source(source, words) -> None:
    data = Data(sources={"x": source(DEMOS), "y": source(DEMOS[:50], "y")}, eval_fraction=0.2)
    prepared = data.prepare(words(), form="demonstration", phase="sft")
    assert not prompts(prepared.train) & prompts(prepared.heldout)
    assert len(prompts(prepared.heldout)) == 20


def test_drops_do_not_move_the_split(source, words) -> None:
    data = Data(sources={"x": source(DEMOS)}, split=[1, 1, 1])
    longer = [{**row, "prompt": row["prompt"]} if i % 3 else {**row, "response": None} for i, row in enumerate(DEMOS)]
    before = data.prepare(words(), form="demonstration", phase="reward")
    after = Data(sources={"x": source(longer)}, split=[1, 1, 1]).prepare(words(), form="demonstration", phase="reward")
    assert prompts(after.train) < prompts(before.train) and prompts(after.heldout) <= prompts(before.heldout)
    assert after.drops == {
        "x/missing_value": len(before.train) + len(before.heldout) - len(after.train) - len(after.heldout)
    }


def test_evaluation_on_other_sources_holds_out_nothing(source, words) -> None:
    tests = [{"prompt": f"w{i} w{i}", "response": "w1"} for i in range(7)] + [{"prompt": None, "response": "w1"}]
    data = Data(sources={"x": source(DEMOS)}, eval_sources={"test": source(tests, "test")}, split=[1, 1, 2])
    prepared = data.prepare(words(), form="demonstration", phase="sft")
    assert prepared.train.sizes == {"x": 25} and prepared.heldout.sizes == {"test": 7}  # the split is not for tests
    assert [len(e.prompt_ids) for e in prepared.heldout] == [2] * 7
    assert prepared.drops == {"test/missing_value": 1}
    assert prepared.describe() == [
        "x: 25 for training, 0 held out",
        "test: 0 for training, 7 held out; 1 dropped (missing_value 1)",
    ]
    assert len(list(data.corpus("sft"))) == 50  # no tokenizer sees the tests


def test_both_kinds_of_sources_may_have_one_name(source, words) -> None:
    short = [{"prompt": None, "response": "w1"}, *DEMOS[:3]]
    data = Data(sources={"x": source(short)}, eval_sources={"x": source([*short, DEMOS[9]], "test")})
    prepared = data.prepare(words(), form="demonstration", phase="sft")
    assert prepared.describe() == ["x: 3 for training, 4 held out; 2 dropped (missing_value 2)"]


def test_an_evaluation_source_without_a_usable_row_is_an_error(source, words) -> None:
    data = Data(sources={"x": source(DEMOS)}, eval_sources={"test": source([{"prompt": None, "response": "w1"}], "t")})
    with pytest.raises(
        ValueError,
        match=r"eval_sources.test: of its 1 rows none is left \(dropped, .*: missing_value 1\); map the columns",
    ):
        data.prepare(words(), form="demonstration", phase="sft")
    with pytest.raises(ValueError, match="eval_rows: 5, but eval_sources are evaluated on whole"):
        Data(sources={"x": source(DEMOS)}, eval_sources={"test": source(DEMOS)}, eval_rows=5)


def test_settings_and_files_take_effect_at_once(source, words) -> None:  # case G1
    def run(rows: list[dict], **settings):
        return Data(sources={"x": source(rows)}, eval_rows=0, **settings).prepare(
            words(), form="demonstration", phase="sft"
        )

    rows = [{"prompt": f"w{i}", "response": "w1 w2 w3 w4"} for i in range(10)]
    assert len(run(rows).train) == 10
    assert len(run(rows[:7]).train) == 7
    assert run(rows, max_tokens=3).train["x", 0].response_ids == [11, 12]
    assert run([{**row, "response": "w9"} for row in rows]).train["x", 0].response_ids == [19, 1]
    assert run(rows, template=Plain(end=".")).train["x", 0].response_ids[-1] == 112
    assert len(run(rows, split=[1, 0, 1]).train) == 5


def test_counts_are_by_source_and_told(source, words, text) -> None:  # case G3
    rows = [{"prompt": text(p), "response": text(r)} for p, r in [(4, 5), (30, 5), (18, 5), (6, 0), (10, 5)]]
    data = Data(sources={"a": source(rows), "b": source(rows[:2], "b")}, eval_rows=0, max_tokens=20)
    prepared = data.prepare(words(), form="demonstration", phase="sft")
    assert prepared.drops == {"a/long_prompt": 1, "b/long_prompt": 1} and prepared.rows_dropped == 2
    assert prepared.notes == {"a/truncated_response": 1, "a/empty_response": 1}
    assert prepared.describe() == [
        "a: 4 for training, 0 held out; 1 dropped (long_prompt 1); "
        "2 kept but cut or empty (truncated_response 1, empty_response 1)",
        "b: 1 for training, 0 held out; 1 dropped (long_prompt 1)",
        "nothing is held out: there will be no evaluation on unseen rows",
    ]


def test_a_source_with_all_rows_dropped_is_an_error(source, words, text) -> None:  # cases G3, G6
    gone = source([{"prompt": text(30), "response": "w1"}], "gone")
    data = Data(sources={"x": source(DEMOS), "gone": gone}, eval_rows=0, max_tokens=20)
    with pytest.raises(
        ValueError,
        match=r"sources.gone: of its 1 training rows none is left \(dropped, .*: long_prompt 1\); see max_tokens",
    ):
        data.prepare(words(), form="demonstration", phase="sft")
    empty_phase = Data(sources={"x": source(DEMOS)}, split=[0, 1, 1])
    with pytest.raises(ValueError, match=r"of its 0 training rows none is left .*; see split, phase"):
        empty_phase.prepare(words(), form="demonstration", phase="sft")


def test_a_wrong_form_names_the_source(source, words) -> None:
    with pytest.raises(ValueError, match=r"sources.x: cannot give the form 'comparison'"):
        Data(sources={"x": source(DEMOS)}).prepare(words(), form="comparison", phase="reward")


def test_corpus_holds_training_texts_only_in_their_format(source) -> None:
    template = Plain(prompt_format="Q: {prompt}", response_format=" {response}!")
    data = Data(sources={"x": source(DEMOS)}, template=template, split=[2, 4, 4], eval_fraction=0.1)
    texts = list(data.corpus("sft"))
    assert len(texts) == 36
    assert {t for t in texts if t.startswith("Q: w")} == {t.replace(" w", "Q: w").strip("!") for t in texts if "!" in t}
    scored = source(
        [{"prompt": "p", "responses": ["a", "b"], "scores": [1, 2]}, {"prompt": "q", "responses": [], "scores": []}]
    )
    assert sorted(Data(sources={"s": scored}, eval_rows=0).corpus("reward")) == ["a", "b", "p", "q"]
    assert list(Data(sources={"t": source([{"text": "x"}], "t")}, eval_rows=0).corpus("sft")) == ["x"]


def test_the_built_in_world_end_to_end(words) -> None:
    data = Data(
        sources={"pairs": World(form="comparisons", rows=50), "lists": World(form="scored", rows=20, options={"k": 3})},
        blender=Weighted(weights={"pairs": 1, "lists": 1}),
    )
    prepared = data.prepare(words(), form="comparison", phase="reward")
    assert sum(len(part) for part in (prepared.train, prepared.heldout)) + prepared.rows_dropped == 50 + 20 * 3


def test_a_source_may_have_a_template_of_its_own(source, words) -> None:
    rows = [{"prompt": "w0", "response": "w1"}]
    data = Data(
        sources={"x": source(rows), "y": source(rows, "y")},
        eval_sources={"z": source(rows, "z")},
        template=Plain(prompt_format="User: {prompt}"),
        templates={"y": Plain(prompt_format="{prompt} Bot:", end="."), "z": Plain(end="Bot:")},
    )
    prepared = data.prepare(words(), form="demonstration", phase="sft")
    found = {name: (e.prompt_ids, e.response_ids) for name in "xy" for e in prepared.train.rows[name]}
    assert found == {"x": ([110, 10], [11, 1]), "y": ([10, 111], [11, 112])}
    assert prepared.heldout["z", 0].response_ids == [11, 111]
    assert data.end_ids(words()) == [1, 112]  # what a sampled response may end with: no test's
    assert sorted(data.corpus("sft")) == ["User: w0", "w0 Bot:", "w1", "w1"]
    with pytest.raises(ValueError, match=r"templates.w: no source has this name; known: x"):
        Data(sources={"x": source(rows)}, templates={"w": Plain()})


TALKS = [
    {"messages": [{"from": "human", "value": f"w{i}"}, {"from": "gpt", "value": "w1"}] * (1 + i % 2)} for i in range(40)
]


def test_conversations_in_every_stage(source, words) -> None:
    tokenizer = words()
    tokenizer.chat_template = (
        "{% for m in messages %}{{ ('User: ' if m.role == 'user' else 'Bot: ') + m.content }}"
        "{{ ' ' if m.role == 'user' else ' <eos> ' }}{% endfor %}{% if add_generation_prompt %}Bot: {% endif %}"
    )
    rows = [
        {**row, "chosen": {"from": "gpt", "value": "w7"}, "rejected": {"from": "gpt", "value": "w8"}} for row in TALKS
    ]
    for row in rows:
        row["prompt"] = row["messages"][:-1]
    data = Data(sources={"x": source(rows)}, template=Chat(), eval_fraction=0.1)
    pairs = data.prepare(tokenizer, form="comparison", phase="reward").train
    asked = data.prepare(tokenizer, form="prompt", phase="ppo").train
    assert [e.prompt_ids for e in pairs] == [e.prompt_ids for e in asked] and len(pairs) == 36
    lengths = {len(e.prompt_ids) for e in pairs}
    assert lengths == {3, 8}  # User: w0 Bot: [w1 <eos> User: w0 Bot:]
    learned = Data(sources={"x": source(TALKS, "talks")}, template=Chat(), eval_rows=0)
    for example in learned.prepare(tokenizer, form="demonstration", phase="sft").train:
        said = example.targets or [True] * len(example.response_ids)
        ids = [i for i, target in zip(example.response_ids, said, strict=True) if target]
        assert ids == [11, 1] * (1 if example.targets is None else 2)


def test_conversations_that_begin_alike_are_not_parted(source, words) -> None:  # case G5
    longer = [
        {"messages": [*row["messages"][:2], {"role": "user", "content": "w5"}, *row["messages"][1:2]]} for row in TALKS
    ]
    data = Data(sources={"x": source(TALKS), "y": source(longer, "y")}, split=[1, 1, 2], eval_fraction=0.2)
    phases = [data.prepare(words(), form="demonstration", phase=phase) for phase in ("sft", "reward", "ppo")]
    seen = [prompts(part) for p in phases for part in (p.train, p.heldout)]
    assert len(set.union(*seen)) == 40 == sum(map(len, seen))


def test_a_tokenizer_is_trained_on_what_is_said(source) -> None:
    template = Plain(prompt_format="Q: {prompt}", response_format=" {response}!")
    for used, expected in ((template, ["Q: w0", " w1!"]), (Chat(), ["w0", "w1"])):
        data = Data(sources={"x": source(TALKS[:1])}, template=used, eval_rows=0)
        assert list(data.corpus("sft")) == expected


def test_a_tokenizer_reads_block_by_block(source, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = {"x": source(TALKS), "y": source(DEMOS, "y")}
    templates = {"y": Plain(prompt_format="Q {prompt}")}
    data = Data(sources=sources, template=Chat(), templates=templates, split=[1, 1, 1], eval_fraction=0.2)
    whole = list(data.corpus("reward"))
    monkeypatch.setattr(dataset, "BLOCK_ROWS", 3)
    assert list(data.corpus("reward")) == whole and len(whole) > 50
    assert {text[:1] for text in whole} == {"w", "Q"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sources": {}}, "sources: none"),
        ({"split": [1, 2]}, "one share for each of sft, reward, ppo"),
        ({"split": [0, 0, 0]}, "split: "),
        ({"eval_fraction": 1.0}, "eval_fraction: 1.0"),
        ({"eval_rows": -1}, "eval_rows: -1"),
        ({"max_tokens": 2}, "max_tokens: 2"),
        ({"max_prompt_tokens": 0}, "max_prompt_tokens: 0"),
    ],
)
def test_impossible_settings_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Data(**{"sources": {"x": World(form="prompts")}, **settings})

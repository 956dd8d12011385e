import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from rlhf.data import duplicates
from rlhf.data.dataset import Data
from rlhf.data.duplicates import bands, candidates, normalise, shingles, similarity
from rlhf.data.sources import Files


@pytest.fixture
def source(tmp_path: Path):
    def make(rows: list[tuple[str, str]], name: str = "rows") -> Files:
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps({"prompt": prompt, "response": said}) + "\n" for prompt, said in rows))
        return Files(path=str(path))

    return make


DEMOS = [(f"w{i}", f"w{i} w1") for i in range(20)]


def prepare(data: Data, words, phase="sft"):
    return data.prepare(words(), form="demonstration", phase=phase)


def test_case_white_space_and_unicode_variants_are_evened_out() -> None:
    assert normalise("  Ｔhe\tﬁrst\n Straße ") == "the first strasse" == normalise("THE FIRST STRASSE")
    assert normalise("a b") != normalise("ab")


def test_exact_duplicates_are_dropped_and_counted_where_asked(source, words) -> None:
    rows = [*DEMOS, ("w3", "W3  w1"), ("w3", "w3 w2"), (" w4", "w4 w1 ")]
    kept = prepare(Data(sources={"x": source(rows)}, eval_rows=0), words)
    assert len(kept.train) == 23 and not kept.drops and not kept.findings
    reported = prepare(Data(sources={"x": source(rows)}, eval_rows=0, duplicates="report"), words)
    assert len(reported.train) == 23 and not reported.drops
    assert reported.findings == (
        "sources.x: 2 duplicates of earlier rows (2 of its own); kept (duplicates: drop would drop them)",
    )
    dropped = prepare(Data(sources={"x": source(rows)}, eval_rows=0, duplicates="drop"), words)
    assert [e.response_ids for e in dropped.train] == [*[e.response_ids for e in kept.train][:20], [13, 12, 1]]
    assert dropped.drops == {"x/duplicate": 2} and dropped.rows_dropped == 2
    assert dropped.describe()[0] == "x: 21 for training, 0 held out; 2 dropped (duplicate 2)"
    assert dropped.findings == ("sources.x: 2 duplicates of earlier rows (2 of its own); dropped",)


def test_the_first_source_keeps_the_row(source, words) -> None:
    sources = {"a": source(DEMOS[:12], "a"), "b": source([*DEMOS[10:], *DEMOS[10:11]], "b")}
    prepared = prepare(Data(sources=sources, eval_rows=0, duplicates="drop"), words)
    assert prepared.train.sizes == {"a": 12, "b": 8}
    assert prepared.findings == ("sources.b: 3 duplicates of earlier rows (3 of sources.a); dropped",)


def test_a_test_set_keeps_its_rows(source, words) -> None:
    data = Data(sources={"x": source(DEMOS)}, eval_sources={"test": source(DEMOS[:5], "test")}, duplicates="drop")
    prepared = prepare(data, words)
    assert prepared.train.sizes == {"x": 15} and prepared.heldout.sizes == {"test": 5}
    assert prepared.findings == (
        "sources.x: 5 duplicates of earlier rows (5 of eval_sources.test), "
        "5 of them across training and held-out rows; dropped",
    )


def test_duplicates_of_other_phases_are_found_and_every_row_stays_once(source, words) -> None:
    shouted = [(prompt.upper(), said.upper()) for prompt, said in DEMOS]  # other prompts to the split, the same rows
    data = Data(sources={"x": source([*DEMOS, *shouted])}, split=[1, 1, 1], eval_rows=0, duplicates="drop")
    phases = [prepare(data, words, phase) for phase in ("sft", "reward", "ppo")]
    assert sum(len(prepared.train) for prepared in phases) == 20
    assert sum(prepared.rows_dropped for prepared in phases) == 20
    assert any("of them of rows of another phase" in line for prepared in phases for line in prepared.findings)


def test_near_duplicates_are_reported_never_dropped(source, words) -> None:
    long = " ".join(f"w{i}" for i in range(60))
    rows = [(f"w{i}", " ".join(f"w{(i * 7 + k * k) % 100}" for k in range(60))) for i in range(10)]
    rows += [("w50", long), ("w50", f"{long} w99"), ("w50", " ".join(f"w{i}" for i in range(59, -1, -1)))]
    prepared = prepare(Data(sources={"x": source(rows)}, eval_rows=0, near_duplicates=0.8), words)
    assert len(prepared.train) == 13 and not prepared.drops
    told = "near duplicates: 1 of 13 rows are at least 0.8 alike an earlier one"
    assert prepared.findings[0] == f"{told} (0 across training and held-out rows); kept"
    assert prepared.findings[1].startswith("  0.98 alike: 'w50 → w0 w1 w2") and len(prepared.findings) == 2


def test_similarity_is_the_share_of_common_sequences() -> None:
    # a b c d e | b c d e f against b c d e f | c d e f g: one in common of three
    assert similarity("a b c d e f", "b c d e f g") == pytest.approx(1 / 3)
    assert similarity("a b", "a b") == 1 and similarity("", "") == 0 and similarity("a b", "b a") == 0
    assert len(shingles("a a a a a a a a")) == 1 and len(shingles("")) == 0


def test_bands_agree_as_often_as_the_texts_are_alike() -> None:
    # the minima of a hash function agree with probability J, a band of four with J^4
    rng = np.random.default_rng(0)
    agree, expected = [], []
    for _ in range(60):
        words = [str(n) for n in rng.integers(0, 10**6, 200)]
        one, other = " ".join(words), " ".join([*words[:170], *(f"x{w}" for w in words[170:])])
        first, second = bands([one, other])
        agree.append((first == second).mean())
        expected.append(similarity(one, other) ** duplicates.BAND_ROWS)
    assert np.mean(agree) == pytest.approx(np.mean(expected), abs=0.05)


def test_candidates_are_rows_that_share_a_band_and_never_empty_ones() -> None:
    signatures = np.array([[1, 9], [2, 8], [1, 7], [1, 8], [0, 0], [0, 0]], dtype=np.uint64)
    assert candidates(signatures).tolist() == [[0, 2], [0, 3], [1, 3], [2, 3]]
    assert candidates(np.zeros((0, 2), dtype=np.uint64)).tolist() == []


def test_pairs_are_found_that_are_alike(source, words) -> None:
    """Every pair at 0.8 or more of a file with many of them is found by looking at all pairs too."""
    rng = np.random.default_rng(1)
    bases = [[f"w{n}" for n in rng.integers(0, 100, 200)] for _ in range(15)]
    texts = [" ".join([*base[:at], "w1", *base[at + 1 :]]) for base in bases for at in (3, 20, 199)]
    rows = [(f"w{i}", text) for i, text in enumerate(texts)]
    prepared = prepare(Data(sources={"x": source(rows)}, eval_rows=0, near_duplicates=0.8), words)
    compared = [f"w{i} {text}" for i, text in enumerate(texts)]
    alike = {b for a, b in itertools.combinations(range(45), 2) if similarity(compared[a], compared[b]) >= 0.8}
    assert len(alike) > 20
    assert prepared.findings[0].startswith(f"near duplicates: {len(alike)} of 45 rows")


@pytest.mark.parametrize("least", [0, 1.5])
def test_impossible_settings_are_refused(source, least: float) -> None:
    with pytest.raises(ValueError, match="near_duplicates"):
        Data(sources={"x": source(DEMOS)}, near_duplicates=least)


def test_conversations_are_compared_by_what_is_said(tmp_path: Path, words) -> None:
    def messages(*texts: str, keys: tuple[str, str] = ("role", "content")) -> list[dict[str, str]]:
        return [dict(zip(keys, (("user", "assistant")[at % 2], text), strict=True)) for at, text in enumerate(texts)]

    def load(name: str, rows: list[dict]) -> Files:
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return Files(path=str(path))

    talks = [
        {
            "prompt": messages("w1", "w2", "w3"),
            "chosen": messages("w1", "w2", "w3", "w4"),
            "rejected": messages("", "w5"),
        },
        {"prompt": messages("w1", "w2", "W3 "), "chosen": messages("", "w4")[1:], "rejected": messages("", "É w5")[1:]},
        {
            "prompt": messages("w1", "w2", "w3"),
            "chosen": messages("", " W4")[1:],
            "rejected": messages("", "é  w5")[1:],
        },
        {"prompt": messages("w6"), "chosen": messages("", "w7")[1:], "rejected": messages("", "w8")[1:]},
    ]
    talks[0]["rejected"] = talks[0]["rejected"][1:]
    texts = [{"prompt": "w6", "chosen": "w7", "rejected": "W8"}, {"prompt": "w6", "chosen": "w7", "rejected": "w9"}]
    sources = {"talks": load("talks", talks), "texts": load("texts", texts)}
    prepared = Data(sources=sources, eval_rows=0, duplicates="drop").prepare(words(), form="comparison", phase="reward")
    assert prepared.train.sizes == {"talks": 3, "texts": 1}
    assert prepared.drops == {"talks/duplicate": 1, "texts/duplicate": 1}
    assert "sources.texts: 1 duplicates of earlier rows (1 of sources.talks); dropped" in prepared.findings
    shared = {"messages": messages("w1", "w2", keys=("from", "value"))}, {"messages": messages("w1", "w2")}
    one, two = (load(name, [row]) for name, row in zip("ab", shared, strict=True))
    found = Data(sources={"a": one}, eval_sources={"b": two}, eval_rows=0, duplicates="report").prepare(
        words(), form="demonstration", phase="sft"
    )
    assert found.findings[0].startswith("sources.a: 1 duplicates of earlier rows (1 of eval_sources.b)")


def test_scores_and_labels_count(tmp_path: Path, words) -> None:
    path = tmp_path / "rows.jsonl"
    rows = [{"prompt": "w1", "response": "w2", "label": label} for label in (True, False, True)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = Data(sources={"x": Files(path=str(path))}, eval_rows=0, duplicates="drop")
    assert [e.label for e in data.prepare(words(), form="unpaired", phase="reward").train] == [True, False]
    scored = [{"prompt": "w1", "responses": ["w2", "w3"], "scores": scores} for scores in ([1, 2], [2, 1], [1, 2])]
    path.write_text("".join(json.dumps(row) + "\n" for row in scored))
    assert len(data.prepare(words(), form="comparison", phase="reward").train) == 2

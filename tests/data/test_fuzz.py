"""Any file gives examples with every drop counted, or an error that says what to mend; never another exception."""

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, event, given, settings, strategies as st

from rlhf.data import json_lines, preparation
from rlhf.data.dataset import Data
from rlhf.data.sources import Files
from rlhf.errors import UserError

KEYS = ("prompt", "response", "chosen", "rejected", "responses", "scores", "text", "margin", "rating", "")
FORMS = ("prompt", "demonstration", "comparison", "text")
BAD_LINES = (
    b'{"prompt": ',
    b"null",
    b"[]",
    b"[1, 2]",
    b"5",
    b'"text"',
    b"{}",
    b"{'prompt': 'a'}",
    b'{"prompt": "a"} {"prompt": "b"}',
    b'{"prompt": "a", "prompt": "b"}',
    b'{"prompt": "\\ud800"}',
    b'{"prompt": "\xff"}',
    b'{"prompt": "\x00"}',
    b'{"prompt": NaN, "margin": Infinity}',
    b'{"prompt": "2020-01-01"}',
    b'{"scores": [1e999]}',
    b'{"prompt": 123456789012345678901234567890}',
    b"\xef\xbb\xbf{}",
    b'{"prompt": ' + b"[" * 500 + b"]" * 500 + b"}",
    b"\x0b",
    b"   ",
    b"",
)

odd_text = st.one_of(
    st.text(max_size=12),
    st.text(st.characters(categories=["Cs", "Cc", "Mn", "Zs", "Co"]), max_size=6),
    st.just("w7 ").map(lambda word: word * 3000),
    st.sampled_from(["", " ", "w1 w2 w3", "w5\x00", "\u2028", "<eos>", "2021-02-03 04:05:06", "[", "{" * 90]),
)
scalar = st.one_of(odd_text, st.none(), st.booleans(), st.integers(), st.floats())
value = st.recursive(
    scalar,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(odd_text, inner, max_size=3)),
    max_leaves=6,
)
good_row = st.fixed_dictionaries(
    {"prompt": st.sampled_from([f"w{i}" for i in range(9)])},
    optional={"response": odd_text, "chosen": odd_text, "rejected": odd_text, "margin": st.floats(-9, 9)},
)
scored_row = st.fixed_dictionaries(
    {"prompt": odd_text, "responses": st.lists(odd_text, max_size=3), "scores": st.lists(st.floats(), max_size=3)}
)
odd_row = st.dictionaries(st.sampled_from(KEYS), value, max_size=5)


def as_line(row: dict) -> st.SearchStrategy[bytes]:
    return st.booleans().map(lambda escaped: json.dumps(row, ensure_ascii=escaped).encode("utf-8", "surrogatepass"))


def file_of(row: st.SearchStrategy[dict], bad: int) -> st.SearchStrategy[bytes]:
    """Lines of one kind of row, with up to so many bad ones anywhere among them."""
    lines = st.lists(row.flatmap(as_line), max_size=12)
    broken = st.lists(st.one_of(st.sampled_from(BAD_LINES), st.binary(max_size=30)), max_size=bad)
    end = st.sampled_from([b"\n", b"\r\n", b""])
    mixed = st.tuples(lines, broken).flatmap(lambda both: st.permutations([*both[0], *both[1]]))
    return st.tuples(mixed, end).map(lambda file: b"\n".join(file[0]) + file[1])


any_file = st.one_of(
    *(file_of(row, bad) for row in (good_row, scored_row, odd_row) for bad in (0, 2)), st.binary(max_size=200)
)


def check(words, content: bytes, form: str, block: int, duplicates: str) -> None:
    lines = sum(1 for line in content.removeprefix(b"\xef\xbb\xbf").splitlines() if line.strip())
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(json_lines, "BLOCK_BYTES", block)
        patch.setattr(preparation, "SHARD_BYTES", block)
        path = Path(folder) / "rows.jsonl"
        path.write_bytes(content)
        data = Data(sources={"x": Files(path=str(path))}, eval_fraction=0.2, max_tokens=16, duplicates=duplicates)
        try:
            prepared = data.prepare(words(), form=form, phase="sft", cache_dir=None)
        except UserError as error:
            assert str(path) in str(error) or "sources.x" in str(error) or "eval_fraction" in str(error)
            assert any(mark in str(error) for mark in ("; ", ". Rename", "Columns present"))  # and what to do
            event(
                "explained: " + " ".join(w for w in str(error).replace(str(path), "FILE").split() if w.isalpha())[:70]
            )
            return
    event("read")
    examples = [*prepared.train, *prepared.heldout]
    assert prepared.describe()
    if form in ("prompt", "demonstration"):
        assert len(examples) + prepared.rows_dropped == lines
    assert all(1 <= example.length <= 16 for example in examples)


FILES = given(
    content=any_file,
    form=st.sampled_from(FORMS),
    block=st.sampled_from([64, 1 << 20]),
    duplicates=st.sampled_from(["keep", "drop"]),
)
CALM = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]


@settings(max_examples=100, deadline=None, suppress_health_check=CALM)
@FILES
def test_any_file_is_read_or_explained(words, content, form, block, duplicates) -> None:
    check(words, content, form, block, duplicates)


@pytest.mark.slow
@settings(max_examples=1000, deadline=None, suppress_health_check=CALM)
@FILES
def test_a_thousand_files_are_read_or_explained(words, content, form, block, duplicates) -> None:
    check(words, content, form, block, duplicates)

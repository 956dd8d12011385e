import dataclasses
import datetime
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from datasets import Dataset
from transformers import PreTrainedTokenizer

from rlhf.data import fingerprint
from rlhf.data.sources import Files
from rlhf.data.templates import Plain


def test_parts_are_told_apart() -> None:
    assert fingerprint.of("a", "bc") != fingerprint.of("ab", "c") != fingerprint.of("abc")
    assert fingerprint.of("é") == fingerprint.of("é".encode())
    assert fingerprint.of("\ud800") != fingerprint.of("\ud801")


def test_files_are_known_by_content(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    a.write_text("x" * 3_000_000)
    b.write_text("x" * 3_000_000)
    assert fingerprint.of_files([a]) == fingerprint.of_files([b])
    b.write_text("x" * 2_999_999 + "y")
    assert fingerprint.of_files([a]) != fingerprint.of_files([b])
    a.write_text("1")
    b.write_text("2")
    assert fingerprint.of_files([a, b]) != fingerprint.of_files([b, a])


def test_rows_are_known_by_names_types_and_values() -> None:
    rows = {"prompt": ["a", None, "c"] * 700, "rating": [1, 2, 3] * 700}
    same = fingerprint.of_rows(Dataset.from_dict(rows))
    assert same == fingerprint.of_rows(Dataset.from_dict(rows))
    others = [
        {**rows, "prompt": ["a", "", "c"] * 700},
        {**rows, "rating": [1.0, 2.0, 3.0] * 700},
        {"prompt": rows["prompt"], "score": rows["rating"]},
        {name: values[:-1] for name, values in rows.items()},
        {name: values[::-1] for name, values in rows.items()},
    ]
    assert len({same, *(fingerprint.of_rows(Dataset.from_dict(other)) for other in others)}) == 6
    selected = Dataset.from_dict(rows).select([2, 0])
    assert fingerprint.of_rows(selected) == fingerprint.of_rows(
        Dataset.from_dict({"prompt": ["c", "a"], "rating": [3, 1]})
    )


def test_tokenizers_are_known_by_what_they_do(words, merging, tmp_path: Path) -> None:
    same = fingerprint.of_tokenizer(words())
    assert same == fingerprint.of_tokenizer(words())
    used = words()
    used(["w1", "w2 w3"], padding=True, truncation=True, max_length=2)
    assert fingerprint.of_tokenizer(used) == same  # a call leaves settings behind that mean nothing
    others = [words(bos=True), words(eos=False), merging, words(), words()]
    others[3].chat_template = "{{ messages }}"
    others[4].add_tokens(["w100"])
    assert len({same, *map(fingerprint.of_tokenizer, others)}) == 6
    others[3].chat_template = "{{ strftime_now('%d') }}"
    today = fingerprint.of_tokenizer(others[3])
    assert fingerprint.of_tokenizer(others[3]) == today
    with pytest.MonkeyPatch.context() as patch:
        then = datetime.date(2000, 1, 1)
        patch.setattr(fingerprint, "datetime", SimpleNamespace(date=SimpleNamespace(today=lambda: then)))
        assert fingerprint.of_tokenizer(others[3]) != today and fingerprint.of_tokenizer(words()) == same
    words().save_pretrained(tmp_path)
    assert fingerprint.of_tokenizer(type(words()).from_pretrained(tmp_path)) == same


class Slow(PreTrainedTokenizer):
    """One token per letter, in Python."""

    def __init__(self, letters: str = "abc", **settings) -> None:
        self.letters = letters
        super().__init__(**settings)

    @property
    def vocab_size(self) -> int:
        return len(self.letters)

    def get_vocab(self) -> dict[str, int]:
        return {letter: at for at, letter in enumerate(self.letters)}

    def save_vocabulary(self, save_directory: str, filename_prefix: str | None = None) -> tuple[str]:
        path = Path(save_directory) / "letters.txt"
        path.write_text(self.letters)
        return (str(path),)


def test_tokenizers_in_python_are_known_by_what_they_save() -> None:
    assert fingerprint.of_tokenizer(Slow("ab")) == fingerprint.of_tokenizer(Slow("ab"))
    assert fingerprint.of_tokenizer(Slow("ab")) != fingerprint.of_tokenizer(Slow("ac"))


def test_settings_count_and_so_does_the_source_of_a_class_of_ones_own(tmp_path: Path, monkeypatch) -> None:
    assert fingerprint.of_settings(Plain()) == fingerprint.of_settings(Plain())
    assert fingerprint.of_settings(Plain()) != fingerprint.of_settings(Plain(prompt_format="{prompt} "))
    code = (
        "from dataclasses import dataclass\nfrom rlhf.data.templates import Plain\n\n"
        "@dataclass(frozen=True, kw_only=True)\nclass Mine(Plain):\n"
        "    def end_id(self, tokenizer):\n        return {}\n"
    )
    found = []
    for number in (1, 2):
        path = tmp_path / f"version{number}"
        path.mkdir()
        (path / "mine.py").write_text(code.format(number))
        monkeypatch.syspath_prepend(path)
        monkeypatch.delitem(__import__("sys").modules, "mine", raising=False)
        mine = __import__("mine").Mine()
        found.append(fingerprint.of_settings({"nested": [mine]}))
    assert found[0] != found[1]


def test_the_code_counts() -> None:
    assert fingerprint.of_code() == fingerprint.of_code() and len(fingerprint.of_code()) == 32


def test_texts_have_hashes_in_the_order_of_their_bytes() -> None:
    hashes = fingerprint.of_texts(["a", "b", "a"], "salt")
    assert hashes.dtype == np.uint64 and hashes.shape == (3, 2)
    assert (hashes[0] == hashes[2]).all() and (hashes[0] != hashes[1]).any()
    assert (fingerprint.of_texts(["a"], "other") != hashes[:1]).any()
    import hashlib

    digest = hashlib.blake2b(b"a", digest_size=16, key=b"salt").digest()
    assert hashes[0].tolist() == [int.from_bytes(digest[:8], "big"), int.from_bytes(digest[8:], "big")]
    assert fingerprint.of_texts([]).shape == (0, 2)


def test_sources_of_files_count_rows_and_columns_not_places(tmp_path: Path) -> None:
    a, b = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    for path in (a, b):
        path.write_text('{"q": "w1"}\n{"q": "w2"}\n')
    source = Files(path=str(a), columns={"prompt": "q"})
    assert source.fingerprint() == dataclasses.replace(source, path=str(b)).fingerprint()
    assert source.fingerprint() != dataclasses.replace(source, rows=1).fingerprint()
    assert source.fingerprint() != dataclasses.replace(source, columns={}).fingerprint()
    b.write_text('{"q": "w1"}\n{"q": "w3"}\n')
    assert source.fingerprint() != dataclasses.replace(source, path=str(b)).fingerprint()

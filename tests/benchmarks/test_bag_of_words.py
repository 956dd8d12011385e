"""The baseline script on texts that a bag of words tells apart, and on pairs by hand."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "bag_of_words.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("bag_of_words", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_accuracy_is_strict(script) -> None:
    # right, wrong, equal, right
    assert script.accuracy([3.0, 1.0, 1.0, 2.0], [(0, 1), (1, 3), (1, 2), (3, 2)]) == 0.5


def test_words_decide(script, tmp_path, monkeypatch, capsys) -> None:
    pytest.importorskip("sklearn")
    pytest.importorskip("vaderSentiment")

    def write(name: str, nouns: str) -> str:
        # "crisp" and "soggy" are in no lexicon: VADER can only answer with equal scores
        rows = [
            {"text": f"a {word} {noun}", "rating": r}
            for noun in nouns.split()
            for word, r in [("crisp", 2), ("soggy", -2)]
        ]
        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(path)

    arguments = ["--train", write("train.jsonl", "plot cast end"), "--test", write("test.jsonl", "score tale")]
    monkeypatch.setattr(sys, "argv", ["bag_of_words.py", *arguments, "--pairs", "6"])
    script.main()
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "6 training texts, 6 test pairs with a gap of at least 1.0",
        "bag of words  1.000",
        "VADER         0.000",
    ]

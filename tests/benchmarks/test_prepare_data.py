"""The benchmark of preparation, on a file that takes seconds."""

import importlib.util
import json
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "prepare_data.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("prepare_data", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_file_has_the_size_and_no_prompt_twice(script, tmp_path) -> None:
    rows = script.make_file(tmp_path / "rows.jsonl", 0.5)
    lines = (tmp_path / "rows.jsonl").read_text().splitlines()
    assert len(lines) == rows == len({json.loads(line)["prompt"] for line in lines})
    assert 0.5e6 <= (tmp_path / "rows.jsonl").stat().st_size < 0.8e6


def test_a_killed_preparation_goes_on(script, tmp_path) -> None:
    lines = script.measure(1.0, tmp_path, shard_megabytes=0.02)
    shards = int(lines[0].split()[-2])
    assert shards > 30 and [line.split("|")[1].strip() for line in lines[4:7]] == ["cold", "again", "after a kill"]
    numbers = [int(word) for word in lines[-1].replace(",", "").replace(":", "").split() if word.isdigit()]
    left, total, kept, made = numbers
    assert total == shards and kept >= left >= shards // 2 and kept + made == shards and made > 0

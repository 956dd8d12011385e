"""Finished stages kept for other runs: whole or not there, made by one at a time."""

import json
import os
import shutil
import threading
import time
from pathlib import Path

import pytest

from rlhf.errors import UserError
from rlhf.stages.cache import StageCache
from rlhf.stages.folder import RECORD

KEY = "0123abcd"


def finished(folder: Path, text: str = "weights") -> Path:
    """What a stage leaves, with a file large enough to be linked."""
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "config.json").write_text(text)
    (folder / "model" / "model.safetensors").write_bytes(text.encode() * (1 << 18))
    (folder / "checkpoints" / "step_2").mkdir(parents=True)
    (folder / "checkpoints" / "step_2" / "state.pt").write_text("large")
    (folder / "metrics.jsonl").write_text("{}\n")
    (folder / "wandb.json").write_text("{}")
    (folder / RECORD).write_text(json.dumps({"id": "one", "uses": {"sft": "theirs"}, "settings": {"lr": 1}}))
    return folder


def never():
    pytest.fail("waited")


@pytest.fixture
def cache(tmp_path):
    return StageCache.at(str(tmp_path / "cache"), tmp_path)


def taken(cache, directory: Path, key: str = KEY, waiting=never) -> bool:
    with cache.claimed("sft", key, waiting) as kept:
        return kept is not None and cache.take(kept, directory, {"sft": "mine"})


def test_where_it_is(tmp_path, monkeypatch):
    monkeypatch.delenv("RLHF_CACHE_DIR")
    assert StageCache.at("auto", tmp_path / "runs").root == tmp_path / "runs" / ".stages"
    monkeypatch.setenv("RLHF_CACHE_DIR", str(tmp_path / "c"))
    assert StageCache.at("auto", tmp_path).root == tmp_path / "c" / "stages"
    assert StageCache.at(str(tmp_path / "mine"), tmp_path).root == tmp_path / "mine"
    monkeypatch.setenv("RLHF_CACHE_DIR", "")
    assert StageCache.at("auto", tmp_path).root is None and StageCache.at(None, tmp_path).root is None
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"stage_cache: .*file: cannot be a folder for finished stages"):
        StageCache.at(str(tmp_path / "file"), tmp_path)


def test_what_is_kept_comes_into_another_run(cache, tmp_path):
    assert not taken(cache, tmp_path / "b")
    cache.keep("sft", KEY, finished(tmp_path / "a"))
    assert cache.kept and taken(cache, tmp_path / "b")
    files = sorted(str(path.relative_to(tmp_path / "b")) for path in (tmp_path / "b").rglob("*") if path.is_file())
    assert files == ["metrics.jsonl", "model/config.json", "model/model.safetensors", "stage.json"]
    record = json.loads((tmp_path / "b" / RECORD).read_text())
    assert record["id"] == "one" and record["uses"] == {"sft": "mine"}
    assert record["taken_from"] == str(cache.root / f"sft-{KEY}")
    large, small = (tmp_path / "b" / "model" / name for name in ("model.safetensors", "config.json"))
    assert large.stat().st_nlink == 3 and small.stat().st_nlink == 1  # takes no space; may be edited
    assert "(1, " in cache.remark() and str(cache.root) in cache.remark()
    for other in ({"key": "ffff"},):
        assert not taken(cache, tmp_path / "c", **other)
    with cache.claimed("reward", KEY, never) as kept:
        assert kept is None


def test_nothing_is_found_or_kept_without_a_key_or_a_place(cache, tmp_path):
    finished(tmp_path / "a")
    cache.keep("sft", None, tmp_path / "a")
    assert not cache.kept and list(cache.root.iterdir()) == []
    for empty, key in ((cache, None), (StageCache(None), KEY)):
        with empty.claimed("sft", key, never) as kept:
            assert kept is None
    StageCache(None).keep("sft", KEY, tmp_path / "a")


def test_what_was_changed_is_not_taken_and_is_replaced(cache, tmp_path):
    cache.keep("sft", KEY, finished(tmp_path / "a"))
    with (tmp_path / "a" / "model" / "model.safetensors").open("r+b") as file:  # in place: both are one file
        file.write(b"X")
    assert not taken(cache, tmp_path / "b")
    cache.keep("sft", KEY, finished(tmp_path / "c"))
    assert taken(cache, tmp_path / "b")
    assert (tmp_path / "b" / "model" / "model.safetensors").read_bytes().startswith(b"weights")


def test_the_first_stays_unless_it_is_to_be_replaced(cache, tmp_path):
    cache.keep("sft", KEY, finished(tmp_path / "a", "first"))
    cache.keep("sft", KEY, finished(tmp_path / "b", "second"))
    assert (cache.root / f"sft-{KEY}" / "model" / "config.json").read_text() == "first"
    cache.keep("sft", KEY, tmp_path / "b", replace=True)
    assert (cache.root / f"sft-{KEY}" / "model" / "config.json").read_text() == "second"
    assert [path.name for path in cache.root.iterdir()] == [f"sft-{KEY}"]


def test_a_write_that_fails_leaves_nothing_half(cache, tmp_path, monkeypatch):
    finished(tmp_path / "a")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("rlhf.stages.cache.write_index", full)
    with pytest.raises(OSError, match="No space left"):
        cache.keep("sft", KEY, tmp_path / "a")
    assert list(cache.root.iterdir()) == [] and not cache.kept


def test_one_that_goes_while_it_is_taken_is_made(cache, tmp_path, monkeypatch):
    cache.keep("sft", KEY, finished(tmp_path / "a"))
    with cache.claimed("sft", KEY, never) as kept:
        assert kept is not None
        (kept / "model" / "config.json").unlink()
        (kept / "index.json").unlink()
        assert not cache.take(kept, tmp_path / "b", {})
    assert not (tmp_path / "b").exists()


def test_a_second_one_waits_and_takes_what_the_first_has_made(cache, tmp_path):
    waited, inside = threading.Event(), threading.Event()
    found = []

    def second():
        inside.wait(20)
        found.append(taken(cache, tmp_path / "b", waiting=waited.set))

    thread = threading.Thread(target=second)
    thread.start()
    with cache.claimed("sft", KEY, never) as kept:
        assert kept is None
        inside.set()
        assert waited.wait(20) and not found
        cache.keep("sft", KEY, finished(tmp_path / "a"))
    thread.join()
    assert found == [True]


def test_one_that_dies_blocks_nobody(cache, tmp_path):
    child = os.fork()
    if child == 0:
        with cache.claimed("sft", KEY, lambda: None):
            (tmp_path / "claimed").touch()
            time.sleep(60)
    deadline = time.monotonic() + 20
    while not (tmp_path / "claimed").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    waited = threading.Event()
    threading.Timer(0.2, lambda: os.kill(child, 9)).start()
    assert not taken(cache, tmp_path / "b", waiting=waited.set) and waited.is_set()
    os.waitpid(child, 0)
    cache.keep("sft", KEY, finished(tmp_path / "a"))
    assert taken(cache, tmp_path / "b")


def test_the_nearest_of_the_same_stage(cache, tmp_path):
    usual = {"inputs": {}, "used_keys": {}, "versions": {}}
    for number, settings in enumerate(({"lr": 1, "steps": 1}, {"lr": 3, "steps": 2})):
        folder = finished(tmp_path / str(number))
        (folder / RECORD).write_text(json.dumps({**usual, "settings": settings}))
        cache.keep("sft", f"k{number}", folder)
        cache.keep("sft-long", f"k{number}", folder)
    assert cache.nearest("sft", {**usual, "settings": {"lr": 3, "steps": 1}}) in (["lr: 1 → 3"], ["steps: 2 → 1"])
    assert cache.nearest("sft", {**usual, "settings": {"lr": 2, "steps": 1}}) == ["lr: 1 → 2"]
    assert cache.nearest("reward", {**usual, "settings": {}}) == []
    (cache.root / "sft-k0" / RECORD).write_text("{")
    assert cache.nearest("sft", {**usual, "settings": {"lr": 2, "steps": 1}}) == ["lr: 3 → 2", "steps: 2 → 1"]


def test_what_is_kept_is_seen_without_being_read(tmp_path):
    cache = StageCache(tmp_path / "cache")
    (tmp_path / "cache").mkdir()
    assert not cache.has("ppo", KEY) and not cache.has("ppo", None) and not StageCache(None).has("ppo", KEY)
    cache.keep("ppo", KEY, finished(tmp_path / "run"))
    assert cache.has("ppo", KEY) and not cache.has("sft", KEY)


def test_its_size_is_told_while_others_write(cache, tmp_path):
    cache.keep("sft", KEY, finished(tmp_path / "a"))
    told, over = cache.remark(), threading.Event()
    source = finished(tmp_path / "b")

    def others():
        number = 0
        while not over.is_set():
            number += 1
            cache.keep("other", str(number), source)
            shutil.rmtree(cache.root / f"other-{number}")

    thread = threading.Thread(target=others)
    thread.start()
    try:
        assert "(1, 1.8 MB," in told and all("MB, hard links" in cache.remark() for _ in range(100))
    finally:
        over.set()
        thread.join()
    assert cache.remark() == told

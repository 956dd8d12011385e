import errno
import fcntl
import json
import logging
import multiprocessing
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlhf.data import cache
from rlhf.data.cache import AUTO, INDEX, VARIABLE, Cache, read_index, scratch_folder
from rlhf.errors import UserError


def writes(text: str = "rows") -> Callable[[Path], dict[str, Any]]:
    def build(folder: Path) -> dict[str, Any]:
        (folder / "a.bin").write_text(text)
        (folder / "b.bin").write_text(text * 100)
        return {"said": text}

    return build


def refuses(folder: Path) -> dict[str, Any]:
    raise AssertionError("built again")


def test_a_folder_is_built_once(tmp_path: Path) -> None:
    with Cache(tmp_path).folder("key", writes()) as first, Cache(tmp_path).folder("key", refuses) as second:
        assert (first.built, second.built) == (True, False) and first.kept and second.kept
        assert first.content == second.content == {"said": "rows"}
        assert (second.folder / "a.bin").read_text() == "rows"
    with Cache(tmp_path).folder("other", writes("new")) as other:
        assert other.built and other.content == {"said": "new"}


@pytest.mark.parametrize("damage", ["cut", "bit", "gone", "index", "index bit", "no index"])
def test_a_broken_folder_is_built_anew_not_read(tmp_path: Path, damage: str) -> None:  # case G2
    with Cache(tmp_path).folder("key", writes()) as entry:
        file, index = entry.folder / "b.bin", entry.folder / INDEX
    if damage == "cut":
        os.truncate(file, 7)
    elif damage == "bit":
        file.write_bytes(file.read_bytes().replace(b"r", b"s", 1))
    elif damage == "gone":
        file.unlink()
    elif damage == "index":
        os.truncate(index, 9)
    elif damage == "index bit":
        index.write_text(index.read_text().replace("said", "paid"))
    else:
        index.unlink()
    assert read_index(tmp_path / "key") is None
    with Cache(tmp_path).folder("key", writes()) as again:
        assert again.built and again.content == {"said": "rows"} and read_index(again.folder) == again.content


def test_what_a_killed_build_finished_is_there_for_the_next(tmp_path: Path) -> None:
    def killed(folder: Path) -> dict[str, Any]:
        (folder / "a.bin").write_text("half")
        raise KeyboardInterrupt

    def goes_on(folder: Path) -> dict[str, Any]:
        return {"found": (folder / "a.bin").read_text()}

    with pytest.raises(KeyboardInterrupt), Cache(tmp_path).folder("key", killed):
        pass
    assert read_index(tmp_path / "key") is None
    with Cache(tmp_path).folder("key", goes_on) as entry:
        assert entry.content == {"found": "half"}
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".partial"] == []


def test_rows_that_are_an_error_leave_nothing(tmp_path: Path) -> None:
    def wrong(folder: Path) -> dict[str, Any]:
        (folder / "a.bin").write_text("half")
        raise UserError("row 3 is wrong")

    with pytest.raises(UserError, match="row 3"), Cache(tmp_path).folder("key", wrong):
        pass
    assert [path.name for path in tmp_path.iterdir()] == [".key.lock"]


def test_a_full_disk_says_what_to_do_and_keeps_what_is_finished(tmp_path: Path) -> None:
    def full(folder: Path) -> dict[str, Any]:
        (folder / "a.bin").write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(UserError, match=r"no space left in .*; free some"), Cache(tmp_path).folder("key", full):
        pass
    assert (tmp_path / ".key.partial" / "a.bin").exists()


# ------------------------------------------------------------------------------------------------- several processes


def _counted(root: Path, log: Path, delay: float, answers: Any) -> None:
    def build(folder: Path) -> dict[str, Any]:
        with log.open("a") as file:
            file.write("built\n")
        time.sleep(0.05)
        return writes()(folder)

    time.sleep(delay)
    with Cache(root).folder("key", build) as entry:
        answers.put((entry.content["said"], (entry.folder / "b.bin").read_text()))


def in_processes(roots: list[Path], log: Path, seed: int) -> list[Any]:
    """What each process got, started at random moments."""
    processes = multiprocessing.get_context("fork")
    answers, rng = processes.Queue(), random.Random(seed)
    started = [
        processes.Process(target=_counted, args=(root, log, rng.uniform(0, 0.08), answers), daemon=True)
        for root in roots
    ]
    for process in started:
        process.start()
    got = [answers.get(timeout=60) for _ in started]
    for process in started:
        process.join(timeout=60)
        assert process.exitcode == 0
    return got


@pytest.mark.parametrize("nodes", [1, 2])
def test_one_process_of_a_folder_builds_and_the_others_wait(tmp_path: Path, nodes: int) -> None:  # case G2
    for repeat in range(4):
        log = tmp_path / f"{repeat}.log"
        roots = [tmp_path / f"{repeat}-{number % nodes}" for number in range(4)]
        for root in roots:
            root.mkdir(exist_ok=True)
        assert in_processes(roots, log, repeat) == [("rows", "rows" * 100)] * 4
        assert log.read_text() == "built\n" * nodes


def test_a_dead_builder_blocks_nobody(tmp_path: Path) -> None:  # case G2
    processes = multiprocessing.get_context("fork")
    holds = processes.Event()

    def dies() -> None:
        def build(folder: Path) -> dict[str, Any]:
            (folder / "a.bin").write_text("half")
            holds.set()
            time.sleep(600)
            return {}

        with Cache(tmp_path).folder("key", build):
            pass

    builder = processes.Process(target=dies, daemon=True)
    builder.start()
    assert holds.wait(60)
    builder.kill()
    builder.join(60)
    start = time.monotonic()
    with Cache(tmp_path).folder("key", writes()) as entry:
        assert entry.built and time.monotonic() - start < 30


def test_who_waits_is_told_why(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = tmp_path / "log"
    processes = multiprocessing.get_context("fork")
    answers = processes.Queue()
    with (tmp_path / ".key.lock").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)

        def waits() -> None:
            held.close()  # a lock is held as long as anyone has the open file that it was taken with
            with caplog.at_level(logging.WARNING):
                _counted(tmp_path, log, 0.0, answers)
                answers.put(caplog.messages)

        waiter = processes.Process(target=waits, daemon=True)
        waiter.start()
        time.sleep(0.2)
        assert not log.exists()  # it does wait
    assert answers.get(timeout=60) == ("rows", "rows" * 100)
    assert "another process prepares these data" in answers.get(timeout=60)[0]
    waiter.join(60)


def test_a_disk_without_locks_still_gets_whole_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(file: Any, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    log = tmp_path / "log"
    (tmp_path / "shared").mkdir()
    assert in_processes([tmp_path / "shared"] * 4, log, 0) == [("rows", "rows" * 100)] * 4
    assert read_index(tmp_path / "shared" / "key") == {"said": "rows"}
    assert [path.name for path in (tmp_path / "shared").glob("*.partial")] == []


# ---------------------------------------------------------------------------------------------------------- settings


def test_where_the_cache_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "by variable"))
    assert Cache.at(AUTO).root == tmp_path / "by variable"
    assert Cache.at(str(tmp_path / "given")).root == tmp_path / "given" and (tmp_path / "given").is_dir()
    assert Cache.at(None).root is None
    monkeypatch.setenv(VARIABLE, "")
    assert Cache.at(AUTO).root is None
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert Cache.at(AUTO).root == tmp_path / "xdg" / "rlhf"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert Cache.at(AUTO).root == tmp_path / "home" / ".cache" / "rlhf"


def test_a_folder_that_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(UserError, match=r"cache_dir: .*file/cache: cannot be a folder .*; give another, or null"):
        Cache.at(str(tmp_path / "file" / "cache"))
    monkeypatch.setenv(VARIABLE, str(tmp_path / "file"))
    with pytest.raises(UserError, match=r"\$RLHF_CACHE_DIR: "):
        Cache.at(AUTO)
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert Cache.at(AUTO).root is None  # nobody asked for that folder: told, and gone on
    assert "nothing is kept" in caplog.text


def test_without_a_cache_nothing_stays() -> None:
    with Cache(None).folder("", writes()) as entry:
        assert entry.built and not entry.kept and (entry.folder / "a.bin").exists()
    assert not entry.folder.exists()


def test_scratch_is_beside_the_cache_and_goes(tmp_path: Path) -> None:
    with Cache(tmp_path).scratch(), scratch_folder() as folder:
        assert folder.parent == tmp_path and folder.is_dir()
    assert not folder.exists()
    with Cache(None).scratch(), scratch_folder() as elsewhere:
        assert elsewhere.parent != tmp_path


def test_what_was_left_unfinished_long_ago_is_removed(tmp_path: Path) -> None:
    long_ago = time.time() - cache.STALE_AFTER - 60
    for name in (".old.partial", ".scratch-old", "old"):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (long_ago, long_ago))
    (tmp_path / ".new.partial").mkdir()
    with Cache(tmp_path).folder("key", writes()):
        pass
    assert {path.name for path in tmp_path.iterdir()} == {".new.partial", "old", "key", ".key.lock"}


def test_the_index_holds_a_hash_of_every_file(tmp_path: Path) -> None:
    with Cache(tmp_path).folder("key", writes()) as entry:
        body = json.loads(json.loads((entry.folder / INDEX).read_text())["body"])
    assert set(body["files"]) == {"a.bin", "b.bin"} and body["files"]["b.bin"][0] == 400

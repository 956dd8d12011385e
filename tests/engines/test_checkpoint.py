"""Checkpoints: whole or not there, written by several processes, and in the background."""

import errno
import itertools
import json
import os
import random
import re
import shutil
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from rlhf.engines import checkpoint
from rlhf.engines.checkpoint import Checkpoints, fitting, restore_rng, rng_state
from rlhf.errors import UserError


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def save(store: Checkpoints, step: int, **more):
    store.save(step, {"step": step, **more}, {"tensor": torch.full((3,), float(step))})


def loaded(directory: Path) -> tuple[int, float]:
    """Step of the shared part and of the process's own: they must be of one checkpoint."""
    found = Checkpoints(directory).load()
    assert found is not None
    return found.shared["step"], float(found.own["tensor"][0])


def test_the_newest_is_loaded_and_two_are_kept(tmp_path):
    store = Checkpoints(tmp_path / "checkpoints")
    assert store.load() is None
    for step in (2, 4, 10):
        save(store, step)
    assert names(tmp_path / "checkpoints") == ["latest", "step_10", "step_4"]
    assert names(tmp_path / "checkpoints" / "step_10") == ["manifest.json", "rank_0.pt", "state.pt"]
    assert loaded(tmp_path / "checkpoints") == (10, 10.0)
    one = Checkpoints(tmp_path / "one", keep=1)
    for step in (1, 2):
        save(one, step)
    assert names(tmp_path / "one") == ["latest", "step_2"]


# ------------------------------------------------------------------------------------------------------ kill and damage

CHANGES = ("os.rename", "os.mkdir", "os.remove", "os.rmdir", "shutil.rmtree")


def killed_at(number: int, action) -> bool:
    """Runs the action in a process that ends, as by kill −9, before its n-th change of the disk; whether it did."""
    child = os.fork()
    if child == 0:
        changes = itertools.count(1)

        def hook(event, arguments):
            writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
            if (writes or event in CHANGES) and next(changes) == number:
                os._exit(9)

        sys.addaudithook(hook)
        try:
            action()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


@pytest.mark.parametrize("again", [False, True], ids=["a new step", "the same step again"])
def test_killed_before_any_change_of_the_disk(tmp_path, again):  # case F6
    good = tmp_path / "good"
    for step in (1, 2, 4) if again else (1, 2):
        save(Checkpoints(good), step)
    older = 4 if again else 2
    for number in itertools.count(1):
        there = tmp_path / str(number)
        shutil.copytree(good, there)
        killed = killed_at(number, lambda at=there: save(Checkpoints(at), 4, second=True))
        step, own = loaded(there)
        assert step == own and step in (older, 4)
        if not again:  # complete, and only its name in `latest` was cut: the older one, or this one, but never none
            assert step == 4 or (there / "latest").read_text() != "step_4"
        save(Checkpoints(there), 6)
        assert loaded(there) == (6, 6.0) and not list(there.glob(".*"))
        if not killed:
            assert step == 4
            break
    assert number > 8  # both files, the note, the manifest, two names, the pointer, the rotation


def test_a_write_that_stops_in_the_middle_of_a_file(tmp_path, monkeypatch):  # case F6
    save(Checkpoints(tmp_path), 2)

    def half():
        monkeypatch.setattr(checkpoint.SummedFile, "write", lambda self, content: (self.file.write(b"ha"), os._exit(9)))
        save(Checkpoints(tmp_path), 4)

    killed_at(10**6, half)
    assert (tmp_path / ".step_4.new").is_dir() and loaded(tmp_path) == (2, 2.0)


def test_a_leftover_newer_than_the_run_does_not_push_out_the_good_one(tmp_path):
    store = Checkpoints(tmp_path, keep=1)
    (tmp_path / "step_9").mkdir()
    save(store, 2)
    assert loaded(tmp_path) == (2, 2.0)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda newest: (newest / "state.pt").write_bytes(b"half"), r"state\.pt has 4 bytes, and \d+ were written"),
        (lambda newest: flip(newest / "rank_0.pt"), r"rank_0\.pt does not hold what was written"),
        (lambda newest: (newest / "rank_0.pt").unlink(), r"rank_0\.pt: No such file"),
        (lambda newest: (newest / "manifest.json").write_text("{"), r"manifest\.json cannot be read \(JSON"),
        (lambda newest: (newest / "manifest.json").unlink(), r"there is no step_4/manifest\.json"),
        (lambda newest: (newest / "manifest.json").write_text('{"files": {}, "world_size": 1}'), "name all files"),
        (lambda newest: shutil.rmtree(newest), r"latest names 'step_4', which is not there"),
        (lambda newest: (newest.parent / "latest").write_text("x"), r"latest names 'x', which is not there"),
    ],
)
def test_a_damaged_newest_falls_back_and_says_so(tmp_path, damage, said):  # case F6
    for step in (2, 4):
        save(Checkpoints(tmp_path), step)
    damage(tmp_path / "step_4")
    found = Checkpoints(tmp_path).load()
    whole = 4 if "'x'" in said else 2
    assert found is not None and found.shared["step"] == whole == found.own["tensor"][0]
    (note,) = found.notes
    assert re.search(said, note) and note.endswith(f"; going on from step_{whole}")


def test_where_none_is_whole_nothing_is_begun_in_silence(tmp_path):
    save(Checkpoints(tmp_path), 2)
    flip(tmp_path / "step_2" / "state.pt")
    with pytest.raises(UserError, match=r"step_2 is damaged: state\.pt does not .* is no other .* --resume never"):
        Checkpoints(tmp_path).load()


def test_without_a_pointer_the_newest_whole_one_counts(tmp_path):
    for step in (2, 4):
        save(Checkpoints(tmp_path), step)
    (tmp_path / "latest").write_text("step_2")  # as it was before the pointer moved
    assert loaded(tmp_path) == (2, 2.0)
    (tmp_path / "latest").unlink()
    assert loaded(tmp_path) == (4, 4.0)


def test_a_given_checkpoint_and_no_other(tmp_path):
    for step in (2, 4):
        save(Checkpoints(tmp_path / "a"), step)
    found = Checkpoints(tmp_path / "b").load(tmp_path / "a" / "step_2")
    assert found is not None and found.shared["step"] == 2 and found.notes == ()


def full(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_keeps_the_older_one(tmp_path, monkeypatch):  # case F6
    for step in (1, 2):
        save(Checkpoints(tmp_path), step)
    with monkeypatch.context() as patch, pytest.raises(OSError, match=r"No space left on device: '.*step_4'"):
        patch.setattr("rlhf.engines.checkpoint.os.fsync", full)
        save(Checkpoints(tmp_path), 4)
    assert names(tmp_path) == ["latest", "step_1", "step_2"] and loaded(tmp_path) == (2, 2.0)


# ---------------------------------------------------------------------------------------------------------- processes


class Together:
    """Runs a function in threads that stand for processes, and adds up numbers over them."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.values = [0.0] * count
        self.barrier = threading.Barrier(count, timeout=20)
        self.errors: list[Exception | None] = [None] * count
        self.here = threading.local()

    def total(self, value: float) -> float:
        self.values[self.here.rank] = value
        self.barrier.wait()
        result = sum(self.values)
        self.barrier.wait()
        return result

    def run(self, function) -> list[Exception | None]:
        def one(rank):
            self.here.rank = rank
            try:
                function(rank)
            except Exception as error:
                self.errors[rank] = error

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(self.count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return self.errors

    def store(self, directory: Path, rank: int, **settings) -> Checkpoints:
        return Checkpoints(directory, rank=rank, world_size=self.count, total=self.total, **settings)


@pytest.mark.parametrize("background", [False, True])
def test_each_process_writes_and_reads_its_own(tmp_path, background):
    def write(rank):
        with together.store(tmp_path, rank, background=background) as store:
            for step in (2, 4, 6):
                store.save(step, {"step": step, "by": rank}, {"tensor": torch.tensor([10 * step + rank])})
                store.poll()

    together = Together(3)
    assert together.run(write) == [None] * 3
    assert names(tmp_path) == ["latest", "step_4", "step_6"]
    assert names(tmp_path / "step_6") == ["manifest.json", "rank_0.pt", "rank_1.pt", "rank_2.pt", "state.pt"]
    manifest = json.loads((tmp_path / "step_6" / "manifest.json").read_text())
    assert manifest["world_size"] == 3
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "step_6").glob("*.pt")}
    assert {name: size for name, (size, _) in manifest["files"].items()} == sizes

    found = {}
    flip(tmp_path / "step_6" / "rank_1.pt")  # seen by one, and given up by all
    together.run(lambda rank: found.update({rank: together.store(tmp_path, rank).load()}))
    assert [found[rank].own["tensor"].item() for rank in range(3)] == [40, 41, 42]
    assert [found[rank].shared for rank in range(3)] == [{"step": 4, "by": 0}] * 3
    assert "another process cannot read its part" in found[0].notes[0] and "rank_1.pt does not" in found[1].notes[0]
    alone = Checkpoints(
        tmp_path
    ).load()  # another number of processes: what they have in common, and a word on the rest
    assert alone is not None and alone.own == {} and alone.shared == {"step": 6, "by": 0}
    assert "step_6 is of another number of processes" in alone.notes[-1]


@pytest.mark.parametrize("background", [False, True])
def test_one_process_fails_and_all_are_told(tmp_path, monkeypatch, background):
    together = Together(2)
    together.run(lambda rank: save(together.store(tmp_path, rank), 2))
    honest = checkpoint.os.fsync

    def write(rank):
        store = together.store(tmp_path, rank, background=background)
        save(store, 4)
        store.finish()

    def refuse(descriptor):
        if "rank_1" in os.readlink(f"/proc/self/fd/{descriptor}"):
            full()
        return honest(descriptor)

    monkeypatch.setattr("rlhf.engines.checkpoint.os.fsync", refuse)
    first, second = together.run(write)
    assert isinstance(first, UserError) and "another process could not do its part" in str(first)
    assert isinstance(second, OSError) and second.errno == errno.ENOSPC
    assert names(tmp_path) == ["latest", "step_2"]


def test_a_disk_that_the_processes_do_not_share_is_told(tmp_path):
    together = Together(2)
    for rank in (0, 1):
        (tmp_path / str(rank) / ".step_2.new").mkdir(parents=True)
    first, _ = together.run(lambda rank: save(together.store(tmp_path / str(rank), rank), 2))
    assert isinstance(first, UserError) and "put output_dir on a disk that all processes share" in str(first)


# --------------------------------------------------------------------------------------------------------- background


def test_the_background_writes_what_was_there_when_asked(tmp_path, monkeypatch):
    gate, write = threading.Event(), Checkpoints._write
    monkeypatch.setattr(Checkpoints, "_write", lambda *arguments: gate.wait(20) and write(*arguments))
    own = {"tensor": torch.zeros(3)}
    with Checkpoints(tmp_path, background=True) as store:
        store.save(2, {"step": 2}, own)
        own["tensor"] += 1
        store.poll()
        assert store.load() is None  # not yet written
        gate.set()
        store.save(4, {"step": 4}, own)  # waits for the one before
        assert Checkpoints(tmp_path).load().shared["step"] >= 2  # pyright: ignore
        assert torch.load(tmp_path / "step_2" / "rank_0.pt")["tensor"].tolist() == [0, 0, 0]
    assert torch.load(tmp_path / "step_4" / "rank_0.pt")["tensor"].tolist() == [1, 1, 1]  # the end waits


def test_polling_completes_it(tmp_path):
    store = Checkpoints(tmp_path, background=True)
    store.poll()
    save(store, 2)
    store._writing.thread.join()  # pyright: ignore
    assert not (tmp_path / "step_2").exists()
    store.poll()
    assert loaded(tmp_path) == (2, 2.0)


@pytest.mark.parametrize("how", ["poll", "finish", "save", "end"])
def test_what_went_wrong_in_the_background_comes_up(tmp_path, monkeypatch, how):
    save(Checkpoints(tmp_path), 1)
    monkeypatch.setattr("rlhf.engines.checkpoint.os.fsync", full)

    def go_on():
        with Checkpoints(tmp_path, background=True) as store:
            save(store, 2)
            store._writing.thread.join()  # pyright: ignore
            if how != "end":
                {"poll": store.poll, "finish": store.finish, "save": lambda: save(store, 3)}[how]()
                pytest.fail("went on")

    with pytest.raises(OSError, match=r"No space left on device: '.*step_2'"):
        go_on()
    assert names(tmp_path) == ["latest", "step_1"]


def test_an_error_of_the_training_is_the_one_that_is_told(tmp_path, monkeypatch):
    def go_on(step):
        with Checkpoints(tmp_path, background=True) as store:
            save(store, step)
            raise UserError("the loss is nan")

    with pytest.raises(UserError, match=r"^the loss is nan$"):
        go_on(2)
    assert loaded(tmp_path) == (2, 2.0)
    monkeypatch.setattr("rlhf.engines.checkpoint.os.fsync", full)
    with pytest.raises(UserError, match=r"^the loss is nan \(besides, a checkpoint could not be written: .*No space"):
        go_on(4)


# ------------------------------------------------------------------------------------------------------------- content


def test_random_numbers_go_on():
    state = rng_state()
    drawn = [torch.rand(2).tolist(), np.random.rand(), random.random()]
    restore_rng(state)
    assert [torch.rand(2).tolist(), np.random.rand(), random.random()] == drawn


def test_what_does_not_fit_is_named():
    said = r"step_2 does not fit this stage \(RuntimeError: .*size mismatch.*\); a checkpoint continues"
    with pytest.raises(UserError, match=said), fitting(Path("step_2")):
        nn.Linear(2, 2).load_state_dict(nn.Linear(3, 2).state_dict())
    with pytest.raises(UserError, match=r"^step_2: data seed: 1"), fitting(Path("step_2")):
        raise UserError("data seed: 1")


def test_a_stage_whose_folder_has_gone_ends(tmp_path):
    store = Checkpoints(tmp_path / "sft" / "checkpoints")
    with pytest.raises(UserError, match="sft: the stage's folder was removed while the stage ran"):
        save(store, 2)
    assert not (tmp_path / "sft").exists()  # half a folder would be in the way of the next run
    (tmp_path / "sft").mkdir()
    save(store, 2)
    assert (tmp_path / "sft" / "checkpoints" / "step_2").is_dir()

"""Checkpoints: whole or not there."""

import random

import numpy as np
import pytest
import torch

from rlhf import files
from rlhf.engines import checkpoint
from rlhf.engines.checkpoint import Checkpoints, restore_rng, rng_state
from rlhf.errors import UserError


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def test_the_newest_is_loaded_and_two_are_kept(tmp_path):
    store = Checkpoints(tmp_path / "checkpoints")
    assert store.load() is None
    for step in (2, 4, 10):
        store.save(step, {"step": step, "tensor": torch.tensor([step])})
    assert names(tmp_path / "checkpoints") == ["latest", "step_10", "step_4"]
    state = Checkpoints(tmp_path / "checkpoints").load()
    assert state is not None and state["step"] == 10 and state["tensor"].tolist() == [10]


def test_a_killed_save_is_never_taken_for_whole(tmp_path, monkeypatch):  # case F6
    store = Checkpoints(tmp_path)
    store.save(2, {"step": 2})

    class Killed(BaseException):
        pass

    def kill(*_args, **_kwargs):
        raise Killed

    def at_every_point():
        yield "the state", torch, "save"
        yield "the folder's sync", files, "sync"
        yield "the folder's name", files.os, "rename"
        yield "the pointer", checkpoint, "atomic_text"

    for _, module, name in at_every_point():
        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(module, name, kill)
            store.save(4, {"step": 4})
        loaded = Checkpoints(tmp_path).load()
        assert loaded == {"step": 2}
    (tmp_path / ".step_4.new").mkdir(exist_ok=True)
    (tmp_path / ".step_4.new" / "state.pt").write_bytes(b"half")
    store.save(4, {"step": 4})
    assert Checkpoints(tmp_path).load() == {"step": 4}
    assert names(tmp_path) == ["latest", "step_2", "step_4"]


def test_killed_between_folder_and_pointer(tmp_path):  # case F6
    store = Checkpoints(tmp_path)
    store.save(2, {"step": 2})
    store.save(4, {"step": 4, "first": True})
    (tmp_path / "latest").write_text("step_2")  # as it was before the pointer moved
    assert Checkpoints(tmp_path).load() == {"step": 2}
    (tmp_path / ".step_4.old").mkdir()  # and a leftover of another kill
    store.save(4, {"step": 4, "first": False})
    store.save(6, {"step": 6})
    assert Checkpoints(tmp_path).load() == {"step": 6}
    assert names(tmp_path) == ["latest", "step_4", "step_6"]


def test_a_leftover_newer_than_the_run_does_not_push_out_the_good_one(tmp_path):
    store = Checkpoints(tmp_path, keep=1)
    (tmp_path / "step_9").mkdir()
    store.save(2, {"step": 2})
    assert store.load() == {"step": 2}


def test_random_numbers_go_on():
    state = rng_state()
    drawn = [torch.rand(2).tolist(), np.random.rand(), random.random()]
    restore_rng(state)
    assert [torch.rand(2).tolist(), np.random.rand(), random.random()] == drawn


def test_a_damaged_checkpoint_is_named_with_the_others(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    for step in (1, 2):
        checkpoints.save(step, {"step": step})
    (tmp_path / "step_2" / "state.pt").write_bytes(b"half")
    with pytest.raises(
        UserError, match=r"step_2/state\.pt, which .*latest names, cannot be read .* \(step_1\), or remove"
    ):
        checkpoints.load()
    (tmp_path / "latest").write_text("step_1")
    assert checkpoints.load() == {"step": 1}
    (tmp_path / "latest").write_text("step_9")
    with pytest.raises(UserError, match=r"step_9/state\.pt, which .*No such file.* \(step_1, step_2\), or remove"):
        checkpoints.load()

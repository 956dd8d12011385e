"""Folders and files are there whole, or not at all."""

import errno

import pytest

from rlhf import files
from rlhf.errors import UserError
from rlhf.files import (
    SummedFile,
    atomic_file,
    atomic_folder,
    atomic_text,
    begin_folder,
    checksum,
    link_or_copy,
    only_one,
    put_in_place,
    read_json,
    read_json_lines,
    recover_folder,
    refusals_named,
)


def test_a_failed_write_leaves_the_old_folder(tmp_path):  # case F6
    with atomic_folder(tmp_path / "m") as folder:
        (folder / "a").write_text("1")

    def half():
        with atomic_folder(tmp_path / "m") as folder:
            (folder / "b").write_text("2")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        half()
    assert [path.name for path in tmp_path.iterdir()] == ["m"]
    assert [path.name for path in (tmp_path / "m").iterdir()] == ["a"]


def test_a_new_write_replaces_the_folder_and_clears_remains(tmp_path):
    for name in (".m.new", ".m.old", "m"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "old").write_text("1")
    with atomic_folder(tmp_path / "m") as folder:
        (folder / "a").write_text("1")
    assert [path.name for path in tmp_path.iterdir()] == ["m"]
    assert [path.name for path in (tmp_path / "m").iterdir()] == ["a"]


def test_a_write_killed_between_the_renames_loses_nothing(tmp_path):
    (tmp_path / ".m.old").mkdir()
    (tmp_path / ".m.old" / "good").write_text("1")

    def fail():
        with atomic_folder(tmp_path / "m"):
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        fail()
    assert (tmp_path / "m" / "good").exists()


def test_a_text_replaces_the_old_one_whole(tmp_path, monkeypatch):
    atomic_text(tmp_path / "latest", "step_2")
    atomic_text(tmp_path / "latest", "step_4")
    assert (tmp_path / "latest").read_text() == "step_4"

    def full(descriptor):
        raise OSError("disk full")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="disk full"):
        atomic_text(tmp_path / "latest", "step_6")
    assert (tmp_path / "latest").read_text() == "step_4"


def test_a_folder_is_held_by_one(tmp_path):
    with (
        only_one(tmp_path / "run"),
        pytest.raises(UserError, match="in use by another run"),
        only_one(tmp_path / "run"),
    ):
        pass
    with only_one(tmp_path / "run"):  # and is free again
        pass


def test_a_failed_write_leaves_the_old_file(tmp_path):  # case F6
    atomic_text(tmp_path / "a", "old")

    def half():
        with atomic_file(tmp_path / "a") as partial:
            partial.write_text("ne")
            raise RuntimeError("stopped")

    with pytest.raises(RuntimeError):
        half()
    assert [path.name for path in tmp_path.iterdir()] == ["a"] and (tmp_path / "a").read_text() == "old"


def test_what_the_system_refuses_has_a_path(tmp_path):
    def write(*details):
        with refusals_named(tmp_path / "a"):
            raise OSError(*details)

    with pytest.raises(OSError, match=r"No space left on device: '.*/a'") as error:
        write(errno.ENOSPC, "No space left on device")
    assert error.value.errno == errno.ENOSPC
    with pytest.raises(FileNotFoundError, match=r"no such thing: '/other'"):  # it has one
        write(errno.ENOENT, "no such thing", "/other")


def test_a_full_disk_is_called_so_whatever_the_library_says(tmp_path, monkeypatch):  # case F6
    """torch and safetensors have words of their own for it."""

    def write():
        with atomic_folder(tmp_path / "m"):
            raise RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 768 vs 662")

    with pytest.raises(RuntimeError, match="unexpected pos"):  # there is room: it was something else
        write()
    monkeypatch.setattr(files, "_refused", lambda folder: OSError(errno.ENOSPC, "No space left on device", str(folder)))
    with pytest.raises(OSError, match=r"No space left on device: '.*/m'") as error:
        write()
    assert isinstance(error.value.__cause__, RuntimeError) and list(tmp_path.iterdir()) == []


def test_a_folder_filled_by_hand(tmp_path):
    (begin_folder(tmp_path / "m") / "a").write_text("1")
    assert not (tmp_path / "m").exists()
    put_in_place(tmp_path / "m")
    assert [path.name for path in tmp_path.iterdir()] == ["m"] and (tmp_path / "m" / "a").read_text() == "1"
    (tmp_path / "m").rename(tmp_path / ".m.old")  # as if cut between the two renames
    recover_folder(tmp_path / "m")
    assert (tmp_path / "m" / "a").exists() and not (tmp_path / ".m.old").exists()


def test_sums_are_of_what_was_given(tmp_path):
    with (tmp_path / "a").open("wb") as file:
        summed = SummedFile(file)
        summed.write(b"abc")
        summed.write(memoryview(b"defg"))
        summed.flush()
    assert summed.sums() == checksum(tmp_path / "a") and summed.sums()[0] == 7
    (tmp_path / "a").write_bytes(b"abcdefh")
    size, digest = checksum(tmp_path / "a")
    assert size == 7 and digest != summed.sums()[1]


def test_a_disk_without_links_gets_copies(tmp_path, monkeypatch):
    (tmp_path / "a").write_bytes(bytes(1 << 20))

    def no_links(*_):
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(files.os, "link", no_links)
    link_or_copy(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == bytes(1 << 20) and (tmp_path / "b").stat().st_nlink == 1


def test_what_a_stage_has_left_is_read_as_it_is(tmp_path):
    path = tmp_path / "sft" / "metrics.jsonl"
    path.parent.mkdir()
    path.write_text('{"a": 1}\n[2]\n{"a"')
    assert read_json_lines(path) == [{"a": 1}, [2]]  # the process was killed in the third
    path.write_text('{"a": 1}')
    assert read_json(path) == {"a": 1} and read_json_lines(path) == [{"a": 1}]


REMEDY = r"\); put it back, or remove the folder .*sft to run its stage anew$"


@pytest.mark.parametrize(
    ("content", "why", "why_lines"),
    [
        (b'{"a": 1}\n{"a": 1\n{"b": 2}\n', "Extra data", r"line 2: Expecting"),
        (b'{"a": "\xff"}\n', "'utf-8' codec", "'utf-8' codec"),
        (b"[1]", "it is no JSON object", None),
        (b"", "Expecting value", None),
    ],
)
def test_what_is_damaged_is_told_with_file_and_remedy(tmp_path, content, why, why_lines):
    path = tmp_path / "sft" / "file"
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(UserError, match=rf"sft/file is damaged \({why}.*{REMEDY}"):
        read_json(path)
    if why_lines is not None:
        with pytest.raises(UserError, match=rf"sft/file is damaged \({why_lines}.*{REMEDY}"):
            read_json_lines(path)

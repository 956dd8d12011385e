import pytest

from rlhf.data import spool
from rlhf.data.spool import spooled
from rlhf.errors import UserError


@pytest.fixture(params=["memory", "disk"])
def place(request, monkeypatch) -> str:
    monkeypatch.setattr(spool, "CHUNK", 10)
    if request.param == "disk":
        monkeypatch.setattr(spool, "HELD_BYTES", 200)
    return request.param


def test_rows_come_back(place) -> None:
    rows = [{"prompt": f"w{i}", "n": i, "list": [i] * (i % 3), "deep": {"x": str(i)}} for i in range(95)]
    assert spooled(iter(rows), "x").to_list() == rows


def test_a_key_that_comes_late_or_changes_from_whole_to_half(place) -> None:
    rows = [{"a": None, "b": 1} for _ in range(15)] + [{"a": "x", "b": 1.5, "c": True} for _ in range(15)]
    loaded = spooled(rows, "x").to_list()
    assert loaded[0] == {"a": None, "b": 1.0, "c": None} and loaded[29] == {"a": "x", "b": 1.5, "c": True}


def test_many_rows_are_not_in_memory(monkeypatch) -> None:
    import pyarrow as pa

    monkeypatch.setattr(spool, "HELD_BYTES", 1 << 20)
    before = pa.total_allocated_bytes()
    loaded = spooled(({"text": "x" * 1000, "n": i} for i in range(20_000)), "x")
    assert loaded.data.nbytes > 20e6 and pa.total_allocated_bytes() - before < 4e6
    assert loaded[19_999] == {"text": "x" * 1000, "n": 19_999}


def test_rows_are_read_once_and_a_block_at_a_time(monkeypatch) -> None:
    monkeypatch.setattr(spool, "CHUNK", 10)
    alive, most = set(), 0

    class Row(dict):
        def __init__(self, n: int) -> None:
            super().__init__(n=n)
            alive.add(id(self))

        def __del__(self) -> None:
            alive.discard(id(self))

    def rows():
        nonlocal most
        for n in range(200):
            most = max(most, len(alive))
            yield Row(n)

    assert len(spooled(rows(), "x")) == 200 and most <= 25


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"a": 1}, 5], "x: row 2 is a int; yield one dict per row"),
        ([{"a": 1}, {"a": "s"}], r"x: rows 1 to 2: 'a' holds int and str .*give every key values of one type"),
        ([{"a": 1}] * 10 + [{"a": "s"}], r"x: 'a' holds int64 in some rows and string in others; give every key"),
        ([{1: 2}], r"a key is no text: 1"),
        ([{"a": object()}], r"'a' holds object"),
        ([{"a": "\ud800"}], r"'a' holds str"),
    ],
)
def test_rows_that_are_no_table_are_errors(place, rows, message: str) -> None:
    with pytest.raises(UserError, match=message):
        spooled(rows, "x")


def test_no_rows() -> None:
    assert len(spooled([], "x")) == 0

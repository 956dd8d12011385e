"""Errors of code that is the user's own: one message with what was called and the user's own lines."""

import importlib
import sys

import pytest

from rlhf.errors import UserCodeError, UserError
from rlhf.user_code import import_module, own_errors, users_code

MINE = """
import json


def outer(text):
    return inner(text)


def inner(text):
    return json.loads(text)


def leave():
    import sys
    sys.exit(0)


def again():
    return again()
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MINE)
    sys.modules.pop("mine", None)  # another test's, perhaps
    importlib.invalidate_caches()
    yield import_module("mine")
    for name in ("mine", "torn", "leaving", "lacking"):
        sys.modules.pop(name, None)


def test_an_error_is_told_by_the_users_own_lines(mine):
    with pytest.raises(UserCodeError) as error, users_code("function: mine.outer"):
        mine.outer("{")
    first, *lines, last = str(error.value).split("\n  ")
    assert first.startswith("function: mine.outer raised JSONDecodeError: Expecting property name")
    assert lines[-2:] == [
        "mine.py, line 6, in outer: return inner(text)",
        "mine.py, line 10, in inner: return json.loads(text)",
    ]
    assert not any("json/" in line for line in lines)
    assert last == "RLHF_TRACEBACK=1 shows the whole traceback"
    assert type(error.value.__cause__).__name__ == "JSONDecodeError"


def test_of_a_recursion_the_innermost_lines_are_told(mine):
    with pytest.raises(UserCodeError, match="raised RecursionError") as error, users_code("x"):
        mine.again()
    assert str(error.value).count("in again") == 5


def test_no_function_ends_the_run_by_itself(mine):
    with (
        pytest.raises(UserCodeError, match=r"x raised SystemExit: 0 \(it asked the program to end; .*\n.*\n.*in leave"),
        users_code("x"),
    ):
        mine.leave()
    with pytest.raises(UserCodeError, match="code of your own raised SystemExit"), own_errors():
        mine.leave()


def test_a_mistake_that_has_its_message_keeps_it():
    for context in (users_code("x"), own_errors()):
        with pytest.raises(UserError, match=r"^told$"), context:
            raise UserError("told")


def test_bugs_of_this_package_and_of_libraries_pass(mine):
    import json

    with pytest.raises(UserCodeError, match="code of your own raised JSONDecodeError"), own_errors():
        mine.outer("{")

    frames = compile("import json\nwith context:\n    json.loads('{')", "<string>", "exec")
    with pytest.raises(json.JSONDecodeError):
        exec(frames, {"context": own_errors()})


@pytest.mark.parametrize(
    ("name", "source", "message"),
    [
        ("torn", "def f(:\n", r"importing torn raised SyntaxError: .*\n  torn.py, line 1: def f\(:"),
        ("leaving", "import sys\nsys.exit(3)\n", r"importing leaving raised SystemExit: 3 .*\n  leaving.py, line 2"),
        ("lacking", "import not_installed\n", "importing lacking raised ModuleNotFoundError: .*'not_installed'"),
        ("absent", None, "^there is no module 'absent'. Run from the folder it is in"),
    ],
)
def test_modules_that_cannot_be_imported(mine, tmp_path, name, source, message):
    if source is not None:
        (tmp_path / f"{name}.py").write_text(source)
    with pytest.raises(UserError, match=message) as error:
        import_module(name)
    assert isinstance(error.value, UserCodeError) == (source is not None)

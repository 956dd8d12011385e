"""What every command does alike: where imports break or are interrupted, and who may end the program."""

import os
import signal
import subprocess
import sys

import pytest

from rlhf.command import guarded, import_heavy
from rlhf.errors import UserError


@pytest.fixture
def heavy(tmp_path, monkeypatch):
    """Makes a module that is slow, or breaks, when it is imported."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(source: str) -> str:
        (tmp_path / "heavy_module.py").write_text(source)
        return "heavy_module"

    yield make
    sys.modules.pop("heavy_module", None)


def test_ctrl_c_in_the_middle_of_an_import_acts_when_it_is_over(heavy, capsys):
    module = heavy("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nWHOLE = True\n")
    assert guarded(lambda: pytest.fail("ran"), module) == 130
    assert capsys.readouterr().err == "\nInterrupted.\n"
    assert sys.modules[module].WHOLE and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_package_that_is_not_installed_is_one_line(heavy, capsys):
    assert guarded(lambda: pytest.fail("ran"), heavy("import not_installed.part\n")) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"Error: the package not_installed is not installed for {sys.executable}; ")
    assert error.count("\n") == 1
    with pytest.raises(ModuleNotFoundError):  # a bug of ours
        import_heavy("rlhf.no_such_part")


def test_without_any_package_commands_say_what_is_missing():
    for command in ("run", "components"):
        words = [sys.executable, "-S", "-m", f"rlhf.{command}", "--config", "x"]
        root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        environment = {**os.environ, "PYTHONPATH": root}
        done = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
        assert done.returncode == 1 and done.stderr.startswith("Error: the package "), done.stderr
        assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_deepspeed_says_nothing_at_its_import():
    code = "from rlhf.command import prepare_environment as p; p(); import deepspeed; print(deepspeed.__name__)"
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout == "deepspeed\n"


def test_only_the_parser_of_arguments_ends_the_program(capsys):
    import argparse

    def leave() -> int:
        sys.exit(0)

    assert guarded(leave) == 1
    assert capsys.readouterr().err.startswith("Error: code of your own raised SystemExit: 0 (it asked the program to")
    assert guarded(lambda: argparse.ArgumentParser().parse_args(["--help"])) == 0  # pyright: ignore[reportReturnType]
    assert guarded(lambda: argparse.ArgumentParser().parse_args(["what"])) == 2  # pyright: ignore[reportReturnType]

    def refuse() -> int:
        raise UserError("told")

    assert guarded(refuse) == 1

"""The command: piped lines, its options, and what it refuses."""

import io
import subprocess
import sys

import pytest

from rlhf.chat.__main__ import main
from rlhf.engines.inference import Sampling


class Bytes(io.TextIOWrapper):
    """Standard input of these bytes, read as strictly as most locales have it."""

    def __init__(self, content):
        super().__init__(io.BytesIO(content), encoding="utf-8")


@pytest.fixture
def talk(monkeypatch, capsys):
    """Runs the command on piped lines; exit code, answers, and what stands beside them."""

    def run(text, *arguments):
        stdin = Bytes(text) if isinstance(text, bytes) else io.StringIO(text)
        monkeypatch.setattr(sys, "stdin", stdin)
        code = main([str(argument) for argument in arguments])
        return code, *capsys.readouterr()

    return run


def test_each_line_is_a_turn_and_only_answers_are_printed(talk, stage):
    code, out, err = talk("ab\ncd\n", "--model", stage, "--max_new_tokens", 3)
    assert (code, err) == (0, "") and out.count("\n") >= 2
    again = talk("ab\ncd\n", "--model", stage, "--max_new_tokens", 3)
    assert again[1] == out  # same lines, same seed
    assert talk("ab\ncd\n", "--model", stage, "--max_new_tokens", 3, "--seed", 7)[1] != out


def test_once_takes_everything_as_one_turn(talk, stage):
    whole = talk("ab\n/undo\n", "--model", stage, "--once", "--greedy")
    assert whole[0] == 0 and whole[2] == ""
    assert whole[1] != talk("ab\n", "--model", stage, "--greedy")[1] or whole[1].strip() == ""


def test_the_average_and_the_model_beside_it(talk, stage):
    model, ema = (talk("ab\n", "--model", stage, *more)[1] for more in ((), ("--ema",)))
    assert model != ema
    both = talk("ab\n", "--model", stage, "--compare", stage / "ema")
    assert both[1] == f"[ppo/model] {model}[ppo/ema] {ema}"


def test_commands_work_in_a_pipe_and_a_wrong_one_ends_it(talk, stage):
    code, out, err = talk("/set greedy on\nab\n/retry\n/quit\nmore\n", "--model", stage)
    first, second = out[: len(out) // 2], out[len(out) // 2 :]
    assert code == 0 and first == second and err.startswith("greedy: true\n")
    code, out, err = talk("/what\nab\n", "--model", stage)
    assert (code, out) == (1, "") and err.startswith("Error: line 1: there is no command /what.")


def test_a_line_that_cannot_be_said_is_answered_by_an_empty_one_and_told(talk, stage):
    """Bytes that are no text, and what is too long for the model; the lines after them are answered."""
    content = b"ab\n\xff\xfe bad\n" + b"12345678 " * 90 + b"\ncd\n"
    whole = talk("ab\ncd\n", "--model", stage, "--greedy")
    code, out, err = talk(content, "--model", stage, "--greedy")
    assert code == 1 and out.count("\n") == whole[1].count("\n") + 2
    assert "line 2: what you say: is no text in UTF-8 at character 1; convert it, with iconv say; it is passed" in err
    assert "line 3: what you say has" in err and "line 4" not in err
    assert talk(b"\xff", "--model", stage, "--once")[2].startswith("Error: what you say: is no text in UTF-8")


def test_a_command_that_fails_in_a_pipe_names_its_line(talk, stage):
    code, out, err = talk("ab\n/load gone.json\ncd\n", "--model", stage)
    assert code == 1 and out.count("\n") >= 1 and "Error: line 2: /load gone.json: cannot be read" in err


def test_models_that_are_drawn_from_differently_are_told_apart_at_once(talk, stage, saved, tmp_path):
    other = saved(tmp_path / "toy" / "other", sampling=Sampling(max_new_tokens=9, temperature=1.5, stop_tokens=["a"]))
    err = talk("", "--model", stage, "--compare", other)[2]
    assert err == (
        "the models are drawn from differently, as in their training: max_new_tokens: 6 (ppo/model), 9 (toy/other)\n"
    )
    assert talk("", "--model", stage, "--compare", other, "--max_new_tokens", "3")[2] == ""


def test_a_system_text_by_flag(talk, stage):
    code, out, err = talk("/show\n", "--model", stage, "--system", "be")
    assert code == 0 and out == "" and "knows no system text" in err


# case H3
def test_bad_folders_and_settings_are_messages(talk, stage, tmp_path):
    code, out, err = talk("", "--model", tmp_path / "gone")
    assert (code, out) == (1, "") and err == (
        f"Error: model path: {tmp_path / 'gone'} does not exist; give the folder of a saved model\n"
    )
    assert talk("", "--model", stage, "--compare", tmp_path)[0] == 1
    assert talk("", "--model", stage, "--reward", stage / "model")[2].count("is no reward model or critic") == 1
    assert talk("", "--model", stage, "--temperature", "0")[2].startswith("Error: temperature: 0.0; give a positive")
    assert talk("", "--model", stage, "--temperatur", "1")[0] == 2
    assert talk("")[0] == 2


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from rlhf.chat.__main__ import main; code = main(['--help']); "
        "print([m for m in ('torch', 'transformers', 'rich') if m in sys.modules]); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "--compare" in done.stdout and done.stdout.endswith("[]\n")


def test_a_person_is_greeted_and_mistakes_do_not_end_the_talk(stage, monkeypatch, capsys):
    lines = iter(["/what", "ab", "/quit"])

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr("builtins.input", lambda _: next(lines))
    assert main(["--model", str(stage)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "You talk to" in out and "/help lists the commands" in out and "there is no command /what." in out


def test_the_end_of_the_input_leaves(stage, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    def end(_):
        raise EOFError

    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr("builtins.input", end)
    assert main(["--model", str(stage)]) == 0

"""The command: piped lines, its options, and what it refuses."""

import io
import subprocess
import sys

import pytest

from rlhf.chat.__main__ import main


@pytest.fixture
def talk(monkeypatch, capsys):
    """Runs the command on piped lines; exit code, answers, and what stands beside them."""

    def run(text, *arguments):
        monkeypatch.setattr(sys, "stdin", io.StringIO(text))
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
    assert code == 0 and first == second and err == ""
    code, out, err = talk("/what\nab\n", "--model", stage)
    assert (code, out) == (1, "") and err.startswith("Error: there is no command /what.")


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

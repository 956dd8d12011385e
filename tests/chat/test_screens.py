"""What a person, or a pipe, is shown."""

import io

from rich.console import Console

from rlhf.chat.screens import Pipe, Terminal, remark, visible
from rlhf.chat.speaker import Answer


class Named:
    def __init__(self, name):
        self.name = name


def ask(speaker, on_text):
    """Answers in two pieces; the second speaker has a score and is cut."""
    for piece in ("he\x1b[31m", "llo"):
        on_text(piece)
    return Answer("he\x1b[31mllo", [1], speaker.name == "a", None if speaker.name == "a" else 1.25)


def test_a_pipe_takes_answers_and_nothing_else(capsys):
    Pipe().answers([Named("b")], ask)
    out, err = capsys.readouterr()
    assert out == "he\x1b[31mllo\n" and err == "b: score 1.25\n"
    Pipe().say("note")
    assert capsys.readouterr() == ("", "note\n")


def test_of_two_a_pipe_says_who_speaks(capsys):
    Pipe().answers([Named("a"), Named("b")], ask)
    assert capsys.readouterr().out == "[a] he\x1b[31mllo\n[b] he\x1b[31mllo\n"


def terminal():
    out = io.StringIO()
    return out, Terminal(Console(file=out, width=60, highlight=False))


def test_a_terminal_is_not_steered_by_what_a_model_writes():
    out, screen = terminal()
    screen.answers([Named("b")], ask)
    assert out.getvalue() == "he␛[31mllo\nscore 1.25 · not ended by the model\n"
    assert visible("a\n\tb\x07\x7f\x9b") == "a\n\tb␇␡␛"


def test_markup_in_an_answer_is_text():
    out, screen = terminal()
    screen.answers([Named("a")], lambda _, on_text: (on_text("[bold]x[/]"), Answer("[bold]x[/]", [1], True))[1])
    assert out.getvalue() == "[bold]x[/]\n"


def test_two_answers_stand_beside_each_other():
    out, screen = terminal()
    screen.answers([Named("a"), Named("b")], ask)
    names, texts, first_note, _ = out.getvalue().splitlines()
    assert (names.split(), texts.split()) == (["a", "b"], ["he␛[31mllo", "he␛[31mllo"])
    assert first_note.startswith(" " * 30) and first_note.split()[:2] == ["score", "1.25"]


def test_remarks():
    assert remark(Answer("x", [1], True)) == ""
    assert remark(Answer("x", [1], True, 2.0)) == "score 2"

"""What a person, or a pipe, is shown."""

import io

import pytest
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


def test_an_answer_without_text_is_told_beside_the_pipe(capsys):
    def silent(_, on_text):
        return Answer("", [1], True, None)

    Pipe().answers([Named("a"), Named("b")], silent)
    assert capsys.readouterr() == ("[a] \n[b] \n", "a: an answer without text\nb: an answer without text\n")


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


def shown(*pieces, width=10):
    out = io.StringIO()
    screen = Terminal(Console(file=out, width=width, highlight=False))
    screen.answers([Named("a")], lambda _, on_text: ([on_text(p) for p in pieces], Answer("x", [1], True))[1])
    return out.getvalue()


@pytest.mark.parametrize(("pieces", "lines"), [
    (["one two", " three"], ["one two ", "three"]),  # "three" would end in column 13
    (["0123456789", " next"], ["0123456789", "next"]),  # no line begins with the space between words
    (["a\n", "\nb"], ["a", "", "b"]),
    (["0123456789abc d"], ["0123456789abc", "d"]),  # the terminal itself breaks what is longer than a line
    (["一二三四五六"], ["一二三四五", "六"]),
    (["a\tb"], ["a       b"]),
    ([""], [""]),
])  # fmt: skip
def test_lines_are_broken_between_words(pieces, lines):
    assert shown(*pieces).split("\n") == [*lines, ""]


def test_a_word_is_shown_when_it_is_whole():
    out, screen = terminal()
    seen = []

    def answer(_, on_text):
        for piece in ("wo", "rd ", "end"):
            on_text(piece)
            seen.append(out.getvalue())
        return Answer("word end", [1], True)

    screen.answers([Named("a")], answer)
    assert seen == ["", "word ", "word "] and out.getvalue() == "word end\n"


def test_two_answers_stand_beside_each_other():
    out, screen = terminal()
    screen.answers([Named("a"), Named("b")], ask)
    names, texts, first_note, _ = out.getvalue().splitlines()
    assert (names.split(), texts.split()) == (["a", "b"], ["he␛[31mllo", "he␛[31mllo"])
    assert first_note.startswith(" " * 30) and first_note.split()[:2] == ["score", "1.25"]


def test_remarks():
    assert remark(Answer("x", [1], True)) == ""
    assert remark(Answer("x", [1], True, 2.0)) == "score 2"
    assert remark(Answer(" ", [1], True, 2.0)) == "no text · score 2"

"""Where a conversation is shown: a pipe takes the answers and nothing else, a terminal sees them come."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Callable

from rich.cells import cell_len
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rlhf.chat.speaker import Answer, Speaker

Ask = Callable[[Speaker, Callable[[str], None]], Answer]


def visible(text: str) -> str:
    """The text with signs in the place of control characters: a model is not to steer the terminal."""
    return "".join(
        _sign(character) if unicodedata.category(character) == "Cc" and character not in "\n\t" else character
        for character in text
    )


def _sign(control: str) -> str:
    """The picture that Unicode has of a control character; those from 128 on share the pictures of the first."""
    return "\N{SYMBOL FOR DELETE}" if control == "\x7f" else chr(0x2400 + ord(control) % 128)


def remark(answer: Answer) -> str:
    """What is to be said of an answer besides its text; "" for nothing."""
    parts = [] if answer.text.strip() else ["no text"]
    parts += [] if answer.score is None else [f"score {answer.score:.3g}"]
    if not answer.ended:
        parts.append("not ended by the model")
    return " · ".join(parts)


class Pipe:
    """Answers on standard output, one after the other, and all else on standard error."""

    def answers(self, speakers: list[Speaker], ask: Ask) -> None:
        """Prints each answer; with several speakers, its name before it."""
        for speaker in speakers:
            if len(speakers) > 1:
                sys.stdout.write(f"[{speaker.name}] ")
            answer = ask(speaker, self._write)
            sys.stdout.write("\n")
            sys.stdout.flush()
            notes = [] if answer.text.strip() else ["an answer without text"]
            notes += [] if answer.score is None else [f"score {answer.score:.4g}"]
            if notes:
                self.say(f"{speaker.name}: {', '.join(notes)}")

    def _write(self, piece: str) -> None:
        sys.stdout.write(piece)
        sys.stdout.flush()

    def say(self, text: str) -> None:
        """To standard error: who reads the answers is not to be disturbed."""
        print(text, file=sys.stderr, flush=True)


class _Lines:
    """A text that comes in pieces, shown word by word and broken between words at the edge of the window."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.column = 0
        self.word = ""

    def push(self, piece: str) -> None:
        """Takes some characters; a word is shown when it is whole."""
        for character in piece:
            if not character.isspace():
                if cell_len(character) > 1:  # scripts of wide characters put no spaces between words
                    self._show()
                self.word += character
                continue
            self._show()
            if character == "\n" or self.column >= self.console.width:
                self._break()
            else:
                space = " " * (8 - self.column % 8 if character == "\t" else 1)
                self._write(space)

    def end(self) -> None:
        """Shows what is left, and ends the line."""
        self._show()
        self._break()

    def _show(self) -> None:
        if self.column and self.column + cell_len(self.word) > self.console.width:
            self._break()
        self._write(self.word)
        self.word = ""

    def _break(self) -> None:
        self.console.print()
        self.column = 0

    def _write(self, text: str) -> None:
        self.console.print(Text(text), end="", soft_wrap=True)
        self.column += cell_len(text)


class Terminal:
    """A person at a terminal: one model's answer streams, two stand side by side."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)

    def answers(self, speakers: list[Speaker], ask: Ask) -> None:
        """Shows the answers as they come."""
        if len(speakers) > 1:
            self._beside(speakers, ask)
            return
        lines = _Lines(self.console)
        answer = ask(speakers[0], lambda piece: lines.push(visible(piece)))
        lines.end()
        if note := remark(answer):
            self.console.print(Text(note, style="dim"))

    def _beside(self, speakers: list[Speaker], ask: Ask) -> None:
        texts = ["" for _ in speakers]
        notes = ["" for _ in speakers]

        def table() -> Table:
            grid = Table(show_edge=False, expand=True, box=None, padding=(0, 2, 0, 0))
            for speaker in speakers:
                grid.add_column(Text(speaker.name, style="bold"), ratio=1, overflow="fold")
            grid.add_row(*(Text(visible(text)) for text in texts))
            if any(notes):
                grid.add_row(*(Text(note, style="dim") for note in notes))
            return grid

        # Live keeps within the window while answers grow; what stays is printed whole.
        with Live(table(), console=self.console, transient=True, refresh_per_second=12) as live:
            for index, speaker in enumerate(speakers):

                def take(piece: str, index: int = index) -> None:
                    texts[index] += piece
                    live.update(table())

                notes[index] = remark(ask(speaker, take))
        self.console.print(table())

    def say(self, text: str) -> None:
        """Shows something that is no answer, dimmed."""
        self.console.print(Text(visible(text), style="dim"))

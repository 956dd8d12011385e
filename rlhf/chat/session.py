"""A conversation with one model or two: what is said to them, and the commands about it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from rlhf.chat.speaker import Answer, Speaker, check_text
from rlhf.data.templates import Chat
from rlhf.engines.inference import Sampling
from rlhf.errors import UserError
from rlhf.files import atomic_text
from rlhf.registry import did_you_mean
from rlhf.schema import settings, spell, typed

COMMANDS = {
    "/clear": "forget the conversation",
    "/undo": "take the last turn back",
    "/retry": "another answer to what was said last",
    "/system TEXT": "tell the model something before the conversation; without TEXT, nothing",
    "/set NAME VALUE": "change how answers are drawn: temperature 0.7, top_k null, greedy true, seed 3",
    "/show": "the settings, and the conversation exactly as the model is given it",
    "/save FILE": "write the conversation as JSON; /save --overwrite FILE takes the place of a file that is there",
    "/load FILE": "take up a conversation that was saved",
    "/help": "these commands; a line that begins with // is said with one slash",
    "/quit": "leave; Ctrl-D does the same, and Ctrl-C stops an answer",
}


OVERWRITE = "--overwrite"


def is_command(line: str) -> bool:
    """Whether a line is a command, and nothing to say."""
    return line.startswith("/") and not line.startswith("//")


class Screen(Protocol):
    """Where a conversation is shown."""

    def answers(self, speakers: list[Speaker], ask: Callable[[Speaker, Callable[[str], None]], Answer]) -> None:
        """Lets each of the speakers answer by ``ask(speaker, on_text)`` and shows what comes."""
        ...

    def say(self, text: str) -> None:
        """Shows something that is no answer."""
        ...


class Session:
    """The state of a conversation.

    Args:
        speakers: The models, each with its own history.
        screen: Where to show.
        seed: Of the random numbers: with the same lines, the same conversation.
    """

    def __init__(self, speakers: list[Speaker], screen: Screen, *, seed: int = 0) -> None:
        self.speakers, self.screen, self.seed = speakers, screen, seed
        self.counter = 0
        """Answers drawn with this seed: the next one's sequence of random numbers, the same for all speakers."""
        self.sampling = {speaker.name: speaker.sampling for speaker in speakers}

    def differences(self) -> str:
        """In what the models are drawn from otherwise; "" where in nothing."""
        own = [self._settings(speaker) for speaker in self.speakers]
        return "; ".join(
            f"{name}: "
            + ", ".join(f"{spelt(one[name])} ({who.name})" for who, one in zip(self.speakers, own, strict=True))
            for name in own[0]
            if any(one[name] != own[0][name] for one in own)
        )

    def _settings(self, speaker: Speaker) -> dict[str, Any]:
        """How a model's answers are drawn: all that can change them."""
        return {k: v for k, v in dataclasses.asdict(self.sampling[speaker.name]).items() if k != "max_rows"}

    def line(self, text: str) -> bool:
        """Takes a line: a command, or something to say. False when it was the last."""
        text = text.strip("\n")
        if is_command(text):
            return self.command(text)
        if text.strip():
            self.say(text.removeprefix("/") if text.startswith("//") else text)
        return True

    def say(self, text: str) -> None:
        """Says something to the models, and shows their answers.

        Raises:
            UserError: it is no text, or does not fit into a model's positions; then none has heard it.
        """
        check_text(text, "what you say")
        counter = self.counter
        self.counter += 1
        before = {speaker.name: speaker.forgotten for speaker in self.speakers}

        def ask(speaker: Speaker, on_text: Callable[[str], None]) -> Answer:
            sampling = self.sampling[speaker.name]
            return speaker.reply(text, sampling, seed=self.seed, counter=counter, on_text=on_text)

        said = [len(speaker.turns) for speaker in self.speakers]
        try:
            self.screen.answers(self.speakers, ask)
        except UserError:  # one of two could not answer: neither has heard it
            for speaker, count in zip(self.speakers, said, strict=True):
                if len(speaker.turns) > count:
                    speaker.undo()
            raise
        for speaker in self.speakers:
            if speaker.forgotten > before[speaker.name]:
                self.screen.say(
                    f"{speaker.name} has no room for the whole conversation: its first {speaker.forgotten} of "
                    f"{len(speaker.turns)} turns are forgotten"
                )

    def command(self, text: str) -> bool:
        """Carries a command out. False for the one that ends the conversation.

        Raises:
            UserError: there is no such command, or it cannot be carried out.
        """
        word, _, rest = text.partition(" ")
        known = {spelling.split(" ")[0] for spelling in COMMANDS}
        if word == "/quit":
            return False
        if word not in known:
            raise UserError(f"there is no command {word}.{did_you_mean(word, known)} /help lists them")
        getattr(self, f"_{word[1:]}")(rest.strip())
        return True

    def _clear(self, _: str) -> None:
        for speaker in self.speakers:
            speaker.clear()
        self.screen.say("the conversation is forgotten")

    def _undo(self, _: str) -> None:
        turns = [turn for turn in [speaker.undo() for speaker in self.speakers] if turn is not None]
        if not turns:
            raise UserError("/undo: nothing has been said")
        self.screen.say(f"taken back: {turns[0].user}")

    def _retry(self, _: str) -> None:
        turns = [speaker.undo() for speaker in self.speakers]
        if turns[0] is None:
            raise UserError("/retry: nothing has been said")
        self.say(turns[0].user)

    def _system(self, text: str) -> None:
        check_text(text, "/system")
        self.screen.say("the models are told this before the conversation" if text else "nothing is told before it")
        for speaker in self.speakers:
            speaker.system = text or None
            if text and not isinstance(speaker.template, Chat):
                kind = type(speaker.template).__name__
                self.screen.say(
                    f"{speaker.name}: its template {kind} knows no system text; it goes before your first turn"
                )

    def _set(self, text: str) -> None:
        name, _, value = text.partition(" ")
        known = {key: setting.annotation for key, setting in settings(Sampling).items() if key != "max_rows"}
        known["seed"] = int
        if not name or (name in known and not value):
            shown = known if not name else [name]
            raise UserError(
                "/set: write /set NAME VALUE. Now: " + "; ".join(f"{one} {self._now(one)}" for one in shown)
            )
        if name not in known:
            raise UserError(f"/set: there is no {name}.{did_you_mean(name, known)} Names: {', '.join(known)}")
        try:
            made = typed(known[name], "null" if value.lower() == "none" else value, written=False)
        except ValueError:
            raise UserError(f"/set {name}: {value!r} is not {_kind(known[name])}") from None
        if name == "seed":
            self.seed, self.counter = made, 0
        else:
            self.sampling = {who: dataclasses.replace(one, **{name: made}) for who, one in self.sampling.items()}
        self.screen.say(f"{name}: {self._now(name)}")

    def _now(self, name: str) -> str:
        """A setting's value, or each model's."""
        if name == "seed":
            return str(self.seed)
        return " and ".join(dict.fromkeys(spelt(getattr(one, name)) for one in self.sampling.values()))

    def _show(self, _: str) -> None:
        self.screen.say(f"seed: {self.seed}")
        for speaker in self.speakers:
            lines = [f"{speaker.name}: {type(speaker.template).__name__} template, {_turns(speaker)}"]
            lines += [f"  {name}: {spelt(value)}" for name, value in self._settings(speaker).items()]
            ids = speaker.seen()
            seen = speaker.model.tokenizer.decode(ids, skip_special_tokens=False) if ids else ""
            self.screen.say("\n".join([*lines, f"  {len(ids)} tokens: {seen!r}" if ids else "  nothing said yet"]))

    def _save(self, text: str) -> None:
        name = text.removeprefix(OVERWRITE).strip() if f"{text} ".startswith(f"{OVERWRITE} ") else text
        if not name:
            raise UserError("/save: name a file")
        path = Path(name).expanduser()
        if path.is_dir():
            raise UserError(f"/save: {path} is a folder; name a file")
        if path.exists() and name == text:
            raise UserError(f"/save: {path} is there already; /save {OVERWRITE} {name} takes its place")
        sampling = {name: dataclasses.asdict(one) for name, one in self.sampling.items()}
        conversations = [{"model": one.name, "messages": one.messages()} for one in self.speakers]
        content = {"seed": self.seed, "sampling": sampling, "conversations": conversations}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            atomic_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
        except OSError as error:
            raise UserError(f"/save: {path} cannot be written ({error.strerror}); name another file") from None
        self.screen.say(f"saved in {path}")

    def _load(self, text: str) -> None:
        if not text:
            raise UserError("/load: name a file that /save has written")
        path = Path(text).expanduser()
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UserError(f"/load {text}: cannot be read ({error}); name a file that /save has written") from None
        messages = _conversations(content, text)
        if len(messages) not in (1, len(self.speakers)):
            raise UserError(f"/load {text}: holds {len(messages)} conversations, but {len(self.speakers)} model talks")
        for index, speaker in enumerate(self.speakers):
            speaker.restore(messages[index % len(messages)])
        self.screen.say(f"{_turns(self.speakers[0])} from {path}")

    def _help(self, _: str) -> None:
        width = max(map(len, COMMANDS)) + 2
        self.screen.say("\n".join(f"{command:{width}}{meaning}" for command, meaning in COMMANDS.items()))


def spelt(value: Any) -> str:
    """A setting's value as a config, and ``/set``, would have it."""
    return json.dumps(value, ensure_ascii=False)


def _turns(speaker: Speaker) -> str:
    return f"{len(speaker.turns)} turn{'' if len(speaker.turns) == 1 else 's'}"


def _kind(annotation: Any) -> str:
    """What a value must be, for people."""
    kinds = {
        "int": "a whole number",
        "float": "a number",
        "bool": "true or false",
        "None": "null",
        "list[str]": "a list",
    }
    return " or ".join(kinds.get(part, part) for part in spell(annotation).split(" | "))


def _conversations(content: Any, text: str) -> list[list[dict[str, Any]]]:
    """The messages of each conversation in a file; a bare list of messages is one."""
    found = content
    if isinstance(content, dict) and isinstance(content.get("conversations"), list):
        found = [one.get("messages") if isinstance(one, dict) else None for one in content["conversations"]]
    elif isinstance(content, list):
        found = [content]
    else:
        found = []
    good = [one for one in found if isinstance(one, list) and all(isinstance(message, dict) for message in one)]
    if not good or len(good) != len(found):
        raise UserError(
            f"/load {text}: holds no conversation; name a file that /save has written, or a list of messages"
        )
    return good

"""How texts become token ids.

Prompt and response are encoded apart, so that no token straddles the seam and a prompt has the same ids in every stage.
The end of a response is an id, never text: the id that training appends is the id at which sampling stops. Every
assistant turn of a conversation is such a response: its text as the data has it, and the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, cast

from rlhf.errors import UserError
from rlhf.interfaces import Template
from rlhf.types import Conversation, Message, Turn

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def encode(text: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Ids of the text itself: the tokenizer adds nothing."""
    return cast("list[int]", tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


def with_bos(ids: list[int], tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The ids behind exactly one beginning-of-sequence token, if the tokenizer is one that adds it."""
    bos = cast("int | None", tokenizer.bos_token_id)
    if bos is None or ids[:1] == [bos] or tokenizer("a")["input_ids"][:1] != [bos]:
        return ids
    return [bos, *ids]


def _marker(end: str | None, tokenizer: PreTrainedTokenizerBase) -> str | None:
    """The text of the end marker that a template's ``end`` means."""
    return cast("str | None", tokenizer.eos_token) if end is None else end


def marker_id(end: str | None, tokenizer: PreTrainedTokenizerBase) -> int:
    """The one id of an end marker.

    Args:
        end: A token of the tokenizer; None means its ``eos_token``.
        tokenizer: The tokenizer.

    Raises:
        UserError: there is no such token, or the marker would take several.
    """
    marker = _marker(end, tokenizer)
    if marker is None:
        raise UserError("end marker: none, the tokenizer has no eos_token; name one of its tokens as template.end")
    found = tokenizer.convert_tokens_to_ids(marker)
    if isinstance(found, int) and (found != tokenizer.unk_token_id or marker == tokenizer.unk_token):
        return found
    pieces = encode(marker, tokenizer)  # "\n" is written otherwise in a byte-level vocabulary, and still one token
    if len(pieces) != 1 or pieces[0] == tokenizer.unk_token_id:
        raise UserError(
            f"end marker: {marker!r} is not a token of the tokenizer ({len(pieces)} pieces); "
            "name one of its tokens as template.end, or add the marker to the tokenizer"
        )
    return pieces[0]


def _without_end(text: str, marker: str | None) -> str:
    """The text without end markers that the data brought along: the id is appended exactly once."""
    while marker and text.endswith(marker):
        text = text.removesuffix(marker)
    return text


def _check_end(end: str | None) -> None:
    if end == "":
        raise UserError("end: ''; name a token, or leave it out for the tokenizer's eos_token")


def _joined(turns: Sequence[Turn]) -> list[Turn]:
    """One turn that nobody has to tell apart."""
    return [Turn([i for turn in turns for i in turn.context + turn.response], [])]


@dataclass(frozen=True, kw_only=True)
class Plain(Template):
    r"""Text around the prompt and the response, as given here.

    Of a conversation, each assistant turn is a response and all messages between two of them are a prompt, joined by
    empty lines.

    Args:
        prompt_format: The prompt with what stands around it, e.g. ``"Human: {prompt}\nAssistant:"``.
        response_format: The response with what stands around it, e.g. ``" {response}"``.
        end: Token that ends a response; None takes the tokenizer's ``eos_token``.
        targets: Which assistant turns of a conversation are learned.
    """

    prompt_format: str = "{prompt}"
    response_format: str = "{response}"
    end: str | None = None
    targets: Literal["all", "last"] = "all"

    def __post_init__(self) -> None:
        if "{prompt}" not in self.prompt_format:
            raise UserError(f"prompt_format: {self.prompt_format!r}; it must contain {{prompt}}")
        if "{response}" not in self.response_format:
            raise UserError(f"response_format: {self.response_format!r}; it must contain {{response}}")
        _check_end(self.end)

    def prompt_text(self, text: str) -> str:
        """The prompt with what stands around it."""
        return self.prompt_format.replace("{prompt}", text)  # not str.format: other braces are left alone

    def response_text(self, text: str) -> str:
        """The response with what stands around it."""
        return self.response_format.replace("{response}", text)

    def prompt(self, text: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
        return with_bos(encode(self.prompt_text(text), tokenizer), tokenizer)

    def response(self, text: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
        marker = _marker(self.end, tokenizer)
        text = _without_end(self.response_text(_without_end(text, marker)), marker)
        return [*encode(text, tokenizer), self.end_id(tokenizer)]

    def turns(self, conversation: Conversation, tokenizer: PreTrainedTokenizerBase) -> list[Turn]:
        turns: list[Turn] = []
        said: list[str] = []
        for message in (*conversation, None):
            if message is not None and message.role != "assistant":
                said.append(message.content)
                continue
            ids = encode(self.prompt_text("\n\n".join(said)), tokenizer) if said else []
            context = ids if turns else with_bos(ids, tokenizer)
            turns.append(Turn(context, self.response(message.content, tokenizer) if message is not None else []))
            said = []
        return turns if self.targets == "all" else _joined(turns)

    def end_id(self, tokenizer: PreTrainedTokenizerBase) -> int:
        return marker_id(self.end, tokenizer)


@dataclass(frozen=True, kw_only=True)
class Chat(Template):
    """The tokenizer's own chat template: the prompt is the user's turn, the response the assistant's.

    A conversation is rendered up to each assistant turn, as it is when the assistant is to speak there. Each rendering
    must begin with the one before, then hold what the assistant said and ``end``: so it is known which tokens are whose
    without ``{% generation %}`` marks. A template that changes earlier turns, as those that take thoughts out, needs
    ``targets: last``.

    Args:
        system: A system message before every prompt that has none of its own; None sends none.
        end: Token that ends the assistant's turn; None takes the tokenizer's ``eos_token``.
        targets: Which assistant turns of a conversation are learned. With ``last``, all before it is encoded as one
            text.
    """

    system: str | None = None
    end: str | None = None
    targets: Literal["all", "last"] = "all"

    def __post_init__(self) -> None:
        _check_end(self.end)

    def prompt(self, text: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
        return self.turns((Message("user", text),), tokenizer)[0].context

    def response(self, text: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
        text = _without_end(text, _marker(self.end, tokenizer))
        return [*encode(text, tokenizer), self.end_id(tokenizer)]

    def turns(self, conversation: Conversation, tokenizer: PreTrainedTokenizerBase) -> list[Turn]:
        answers = [at for at, message in enumerate(conversation) if message.role == "assistant"]
        stops = [*(answers if self.targets == "all" else []), len(conversation)]
        texts = [self._rendered(conversation[:stop], tokenizer) for stop in stops]
        said = [conversation[stop].content for stop in stops[:-1]]
        responses = [*(self.response(text, tokenizer) for text in said), []]
        later = [
            encode(self._behind(text, before, after, tokenizer), tokenizer)
            for text, (before, after) in zip(said, pairwise(texts), strict=True)
        ]
        contexts = [with_bos(encode(texts[0], tokenizer), tokenizer), *later]
        return [Turn(context, response) for context, response in zip(contexts, responses, strict=True)]

    def end_id(self, tokenizer: PreTrainedTokenizerBase) -> int:
        return marker_id(self.end, tokenizer)

    def _rendered(self, conversation: Conversation, tokenizer: PreTrainedTokenizerBase) -> str:
        """The conversation up to where the assistant is to speak."""
        from jinja2 import TemplateError

        if tokenizer.chat_template is None:
            raise UserError(
                "template: Chat, but the tokenizer has no chat template; use Plain, or set the policy's chat_template"
            )
        marker = _marker(self.end, tokenizer)
        messages = [
            {"role": role, "content": _without_end(content, marker) if role == "assistant" else content}
            for role, content in conversation
        ]
        if self.system is not None and not any(message.role == "system" for message in conversation):
            messages.insert(0, {"role": "system", "content": self.system})
        try:
            return str(tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))
        except (TemplateError, ValueError) as error:
            roles = ", ".join(message["role"] for message in messages) or "no message"
            raise UserError(f"the chat template refuses {roles} ({error}); mend the rows, or change it") from error

    def _behind(self, said: str, before: str, after: str, tokenizer: PreTrainedTokenizerBase) -> str:
        """What the template writes behind the end of an assistant turn.

        Args:
            said: The turn's text.
            before: The conversation rendered up to it.
            after: The conversation rendered up to the next one.
            tokenizer: The tokenizer.

        Raises:
            UserError: the template does not just go on with the turn and its end.
        """
        marker = _marker(self.end, tokenizer)
        assert marker is not None  # else the turn's own ids have been refused
        said = _without_end(said, marker).strip()  # templates strip texts, or set them apart by white space
        if not after.startswith(before):
            changed = next(at for at, (a, b) in enumerate(zip(before, after + "\0", strict=False)) if a != b)
            raise UserError(
                "the chat template writes earlier turns otherwise once others follow "
                f"({before[changed:][:40]!r} becomes {after[changed:][:40]!r}), so what the assistant said cannot be "
                "told; set template.targets to last"
            )
        rest = after[len(before) :].lstrip()
        tail = rest[len(said) :] if rest.startswith(said) else None
        tail = tail.lstrip() if tail is not None and not tail.startswith(marker) else tail
        if tail is None or not tail.startswith(marker):
            raise UserError(
                f"the chat template does not write an assistant turn as its text and {marker!r} but as {rest[:60]!r}; "
                "name its end token as template.end, or set template.targets to last"
            )
        return tail[len(marker) :]

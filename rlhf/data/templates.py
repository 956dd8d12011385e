"""How texts become token ids.

Prompt and response are encoded apart, so that no token straddles the seam and a prompt has the same ids in every stage.
The end of a response is an id, never text: the id that training appends is the id at which sampling stops. Every
assistant turn of a conversation is such a response: its text as the data has it, and the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from rlhf.data.tokens import all_with_bos, encode_all, known_marker_text, marker_id, marker_text, without_end
from rlhf.errors import UserError
from rlhf.interfaces import Template
from rlhf.types import Conversation, Message, Turn, joined

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class RefusedConversation(UserError):
    """The chat template raises an error for a conversation, such as one that the assistant begins."""


def _ended(rows: list[list[int]], end: int) -> list[list[int]]:
    return [[*ids, end] for ids in rows]


def _check_end(end: str | None) -> None:
    if end == "":
        raise UserError("end: ''; name a token, or leave it out for the tokenizer's eos_token")


_Written = list[tuple[str, str | None]]
"""A conversation's turns as texts: what stands before the assistant speaks, and what it says, None at the end."""


def _turns(talks: Sequence[_Written], template: Template, tokenizer: PreTrainedTokenizerBase) -> list[list[Turn]]:
    """The turns of many conversations as ids, all their texts encoded at once."""
    contexts = iter(encode_all([context for talk in talks for context, _ in talk], tokenizer))
    said = [said for talk in talks for _, said in talk if said is not None]
    responses = iter(template.responses(said, tokenizer) if said else ())
    made = [[Turn(next(contexts), [] if said is None else next(responses)) for _, said in talk] for talk in talks]
    starts = all_with_bos([first.context for first, *_ in made], tokenizer)
    return [[first._replace(context=ids), *later] for ids, (first, *later) in zip(starts, made, strict=True)]


def _joined(turns: Sequence[Turn]) -> list[Turn]:
    """One turn that nobody has to tell apart."""
    return [Turn(joined(turns), [])]


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
        return self.prompts([text], tokenizer)[0]

    def prompts(self, texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
        return all_with_bos(encode_all([self.prompt_text(text) for text in texts], tokenizer), tokenizer)

    def response(self, text: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
        return self.responses([text], tokenizer)[0]

    def responses(self, texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
        marker = marker_text(self.end, tokenizer)
        whole = [without_end(self.response_text(without_end(text, marker)), marker) for text in texts]
        return _ended(encode_all(whole, tokenizer), self.end_id(tokenizer))

    def turns(self, conversation: Conversation, tokenizer: PreTrainedTokenizerBase) -> list[Turn]:
        return self.all_turns([conversation], tokenizer)[0]

    def all_turns(self, conversations: Sequence[Conversation], tokenizer: PreTrainedTokenizerBase) -> list[list[Turn]]:
        found = _turns([self._written(conversation) for conversation in conversations], self, tokenizer)
        return found if self.targets == "all" else [_joined(turns) for turns in found]

    def _written(self, conversation: Conversation) -> _Written:
        written: _Written = []
        asked: list[str] = []
        for message in (*conversation, None):
            if message is not None and message.role != "assistant":
                asked.append(message.content)
                continue
            context = self.prompt_text("\n\n".join(asked)) if asked else ""
            written.append((context, None if message is None else message.content))
            asked = []
        return written

    def end_id(self, tokenizer: PreTrainedTokenizerBase) -> int:
        return marker_id(self.end, tokenizer)

    def bare(self, text: str) -> str:
        before, after = self.response_format.split("{response}", 1)
        return text.removeprefix(before).removesuffix(after)


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
        return self.prompts([text], tokenizer)[0]

    def prompts(self, texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
        rendered = [self._rendered((Message("user", text),), tokenizer) for text in texts]
        return all_with_bos(encode_all(rendered, tokenizer), tokenizer)

    def response(self, text: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
        return self.responses([text], tokenizer)[0]

    def responses(self, texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
        marker = marker_text(self.end, tokenizer)
        return _ended(encode_all([without_end(text, marker) for text in texts], tokenizer), self.end_id(tokenizer))

    def turns(self, conversation: Conversation, tokenizer: PreTrainedTokenizerBase) -> list[Turn]:
        return self.all_turns([conversation], tokenizer)[0]

    def all_turns(self, conversations: Sequence[Conversation], tokenizer: PreTrainedTokenizerBase) -> list[list[Turn]]:
        return _turns([self._written(conversation, tokenizer) for conversation in conversations], self, tokenizer)

    def _written(self, conversation: Conversation, tokenizer: PreTrainedTokenizerBase) -> _Written:
        answers = [at for at, message in enumerate(conversation) if message.role == "assistant"]
        stops = [*(answers if self.targets == "all" else []), len(conversation)]
        texts = [self._rendered(conversation[:stop], tokenizer) for stop in stops]
        said = [conversation[stop].content for stop in stops[:-1]]
        later = [
            self._behind(text, before, after, tokenizer)
            for text, (before, after) in zip(said, pairwise(texts), strict=True)
        ]
        return list(zip([texts[0], *later], [*said, None], strict=True))

    def end_id(self, tokenizer: PreTrainedTokenizerBase) -> int:
        return marker_id(self.end, tokenizer)

    def _rendered(self, conversation: Conversation, tokenizer: PreTrainedTokenizerBase) -> str:
        """The conversation up to where the assistant is to speak."""
        from jinja2 import TemplateError

        if tokenizer.chat_template is None:
            raise UserError(
                "template: Chat, but the tokenizer has no chat template; use Plain, or set the policy's chat_template"
            )
        marker = marker_text(self.end, tokenizer)
        messages = [
            {"role": role, "content": without_end(content, marker) if role == "assistant" else content}
            for role, content in conversation
        ]
        if self.system is not None and not any(message.role == "system" for message in conversation):
            messages.insert(0, {"role": "system", "content": self.system})
        try:
            return str(tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))
        except (TemplateError, ValueError) as error:
            roles = ", ".join(message["role"] for message in messages) or "no message"
            raise RefusedConversation(
                f"the chat template refuses {roles} ({error}); change it, or the messages"
            ) from error

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
        marker = known_marker_text(self.end, tokenizer)
        said = without_end(said, marker).strip()  # templates strip texts, or set them apart by white space
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

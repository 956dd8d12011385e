"""How texts become token ids.

Prompt and response are encoded apart, so that no token straddles the seam and a prompt has the same ids in every stage.
The end of a response is an id, never text: the id that training appends is the id at which sampling stops.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from rlhf.errors import UserError
from rlhf.interfaces import Template

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
        raise UserError(
            "end marker: none, the tokenizer has no eos_token; name one of its tokens as template.end, or give the "
            "policy an eos_token"
        )
    found = tokenizer.convert_tokens_to_ids(marker)
    if isinstance(found, int) and (found != tokenizer.unk_token_id or marker == tokenizer.unk_token):
        return found
    pieces = encode(marker, tokenizer)  # "\n" is written otherwise in a byte-level vocabulary, and still one token
    if len(pieces) != 1 or pieces[0] == tokenizer.unk_token_id:
        raise UserError(
            f"end marker: {marker!r} is not a token of the tokenizer ({len(pieces)} pieces); "
            "name one of its tokens as template.end, or add the marker with the policy's add_tokens"
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


@dataclass(frozen=True, kw_only=True)
class Plain(Template):
    r"""Text around the prompt and the response, as given here.

    Args:
        prompt_format: The prompt with what stands around it, e.g. ``"Human: {prompt}\nAssistant:"``.
        response_format: The response with what stands around it, e.g. ``" {response}"``.
        end: Token that ends a response; None takes the tokenizer's ``eos_token``.
    """

    prompt_format: str = "{prompt}"
    response_format: str = "{response}"
    end: str | None = None

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

    def end_id(self, tokenizer: PreTrainedTokenizerBase) -> int:
        return marker_id(self.end, tokenizer)

    def bare(self, text: str) -> str:
        before, after = self.response_format.split("{response}", 1)
        return text.removeprefix(before).removesuffix(after)


@dataclass(frozen=True, kw_only=True)
class Chat(Template):
    """The tokenizer's own chat template: the prompt is the user's turn, the response the assistant's.

    Args:
        system: A system message before every prompt; None sends none.
        end: Token that ends the assistant's turn; None takes the tokenizer's ``eos_token``.
    """

    system: str | None = None
    end: str | None = None

    def __post_init__(self) -> None:
        _check_end(self.end)

    def prompt(self, text: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
        if tokenizer.chat_template is None:
            raise UserError("template: Chat, but the tokenizer has no chat template; use Plain, or give it one")
        messages = [{"role": "system", "content": self.system}] if self.system is not None else []
        messages.append({"role": "user", "content": text})
        rendered = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        return with_bos(encode(str(rendered), tokenizer), tokenizer)

    def response(self, text: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
        text = _without_end(text, _marker(self.end, tokenizer))
        return [*encode(text, tokenizer), self.end_id(tokenizer)]

    def end_id(self, tokenizer: PreTrainedTokenizerBase) -> int:
        return marker_id(self.end, tokenizer)

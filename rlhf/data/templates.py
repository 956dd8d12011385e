"""How texts become token ids.

Prompt and response are encoded apart, so that no token straddles the seam and a prompt has the same ids in every stage.
The end of a response is an id, never text: the id that training appends is the id at which sampling stops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from rlhf.errors import UserError
from rlhf.interfaces import Template

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


_AT_ONCE = 1000  # a tokenizer's own notes on a token take some hundred bytes while it works


def encode_all(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    """Ids of each text itself: the tokenizer adds nothing. Many at once are faster than one by one."""
    ids: list[list[int]] = []
    for start in range(0, len(texts), _AT_ONCE):
        some = list(texts[start : start + _AT_ONCE])
        encoded = tokenizer(
            some, add_special_tokens=False, return_attention_mask=False, return_token_type_ids=False, verbose=False
        )
        ids += cast("list[list[int]]", encoded["input_ids"])
    return ids


def encode(text: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Ids of the text itself: the tokenizer adds nothing."""
    return encode_all([text], tokenizer)[0]


def _added_bos(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """The beginning-of-sequence token, if the tokenizer is one that adds it."""
    bos = cast("int | None", tokenizer.bos_token_id)
    return None if bos is None or tokenizer("a")["input_ids"][:1] != [bos] else bos


def all_with_bos(rows: Sequence[list[int]], tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    """Each row behind exactly one beginning-of-sequence token, if the tokenizer is one that adds it."""
    bos = _added_bos(tokenizer)
    return [ids if bos is None or ids[:1] == [bos] else [bos, *ids] for ids in rows]


def with_bos(ids: list[int], tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The ids behind exactly one beginning-of-sequence token, if the tokenizer is one that adds it."""
    return all_with_bos([ids], tokenizer)[0]


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


def _ended(rows: list[list[int]], end: int) -> list[list[int]]:
    return [[*ids, end] for ids in rows]


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
        return self.prompts([text], tokenizer)[0]

    def prompts(self, texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
        return all_with_bos(encode_all([self.prompt_text(text) for text in texts], tokenizer), tokenizer)

    def response(self, text: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
        return self.responses([text], tokenizer)[0]

    def responses(self, texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
        marker = _marker(self.end, tokenizer)
        whole = [_without_end(self.response_text(_without_end(text, marker)), marker) for text in texts]
        return _ended(encode_all(whole, tokenizer), self.end_id(tokenizer))

    def end_id(self, tokenizer: PreTrainedTokenizerBase) -> int:
        return marker_id(self.end, tokenizer)


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
        return self.prompts([text], tokenizer)[0]

    def prompts(self, texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
        return all_with_bos(encode_all([self._rendered(text, tokenizer) for text in texts], tokenizer), tokenizer)

    def _rendered(self, text: str, tokenizer: PreTrainedTokenizerBase) -> str:
        if tokenizer.chat_template is None:
            raise UserError("template: Chat, but the tokenizer has no chat template; use Plain, or give it one")
        messages = [{"role": "system", "content": self.system}] if self.system is not None else []
        messages.append({"role": "user", "content": text})
        return str(tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))

    def response(self, text: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
        return self.responses([text], tokenizer)[0]

    def responses(self, texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
        marker = _marker(self.end, tokenizer)
        return _ended(encode_all([_without_end(text, marker) for text in texts], tokenizer), self.end_id(tokenizer))

    def end_id(self, tokenizer: PreTrainedTokenizerBase) -> int:
        return marker_id(self.end, tokenizer)

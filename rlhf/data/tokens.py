"""Texts as token ids, and the ids that stand around them: the beginning of a sequence and the end of a response."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from rlhf.errors import UserError

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


def marker_text(end: str | None, tokenizer: PreTrainedTokenizerBase) -> str | None:
    """The text of the end marker that a template's ``end`` means."""
    return cast("str | None", tokenizer.eos_token) if end is None else end


def known_marker_text(end: str | None, tokenizer: PreTrainedTokenizerBase) -> str:
    """The text of the end marker.

    Raises:
        UserError: the tokenizer has none, and no other is named.
    """
    marker = marker_text(end, tokenizer)
    if marker is None:
        raise UserError(
            "end marker: none, the tokenizer has no eos_token; name one of its tokens as template.end, or give the "
            "policy an eos_token"
        )
    return marker


def marker_id(end: str | None, tokenizer: PreTrainedTokenizerBase) -> int:
    """The one id of an end marker.

    Args:
        end: A token of the tokenizer; None means its ``eos_token``.
        tokenizer: The tokenizer.

    Raises:
        UserError: there is no such token, or the marker would take several.
    """
    marker = known_marker_text(end, tokenizer)
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


def without_end(text: str, marker: str | None) -> str:
    """The text without end markers that the data brought along: the id is appended exactly once."""
    while marker and text.endswith(marker):
        text = text.removesuffix(marker)
    return text

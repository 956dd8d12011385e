"""Byte-level BPE for policies trained from nothing, and what every tokenizer must be able to answer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

from torch import Tensor

from rlhf.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

PAD = "<|pad|>"
END = "<|end|>"
UNDECODABLE = "\N{REPLACEMENT CHARACTER}"
"""What decoders write for bytes that are no character, or not yet a whole one."""
CHAT_TEMPLATES = {
    "turns": (
        "{% for message in messages %}{{ message.role | capitalize }}:\n{{ message.content }}"
        "{% if message.role == 'assistant' %}{{ eos_token }}{% endif %}{{ '\\n\\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'Assistant:\\n' }}{% endif %}"
    )
}
"""Chat templates that need no special tokens, by name."""
SMALLEST_VOCABULARY = 256 + 2
"""All bytes, the pad and the end token: with fewer, some text could not be written."""


def train_bpe(texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Trains a byte-level BPE: ``decode(encode(text)) == text`` for any text, seen or not.

    Pad and end token are distinct, there is no beginning-of-sequence token, and nothing is added by ``encode``.

    Args:
        texts: What to count pairs in; read once.
        vocab_size: Largest vocabulary, special tokens included. A small corpus runs out of pairs before and gives less.

    Raises:
        UserError: the size has no room for all bytes, or there is no text.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    if vocab_size < SMALLEST_VOCABULARY:
        raise UserError(f"vocab_size: {vocab_size}; 256 bytes and 2 special tokens need {SMALLEST_VOCABULARY} or more")
    seen = 0

    def counted() -> Iterable[str]:
        nonlocal seen
        for text in texts:
            seen += 1
            yield text

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[PAD, END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(counted(), trainer)
    if not seen:
        raise UserError(
            "corpus: no text to train a tokenizer on; see which rows data.split and "
            "data.phase leave to this stage, and their columns; or take a policy with a tokenizer"
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, eos_token=END, clean_up_tokenization_spaces=False
    )


class TextStream:
    """The text of token ids that come one by one.

    A character may need several tokens; it is told with the last of them, and the others give "". So no piece ends in
    half a character, and the pieces of ids joined are the text of all ids, but for bytes at their end that are none.

    Args:
        tokenizer: Whose ids they are.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self.ids: list[int] = []
        # Ids before `told` have been told. Those from `start` on are decoded with the new ones all the same: many
        # tokenizers write a word's first token with or without a space, depending on what stands before it.
        self.start = self.told = 0

    def push(self, token: int) -> str:
        """The text that this token completes."""
        self.ids.append(token)
        before = self._decode(self.ids[self.start : self.told])
        after = self._decode(self.ids[self.start :])
        if after.endswith(UNDECODABLE) or len(after) <= len(before):
            return ""
        self.start, self.told = self.told, len(self.ids)
        return after[len(before) :]

    def _decode(self, ids: list[int]) -> str:
        return cast(str, self.tokenizer.decode(ids, skip_special_tokens=False))


def find_chat_template(template: str) -> str:
    """A chat template, by a name of ``CHAT_TEMPLATES`` or as Jinja text.

    Raises:
        UserError: it is neither.
    """
    if "{" not in template and template not in CHAT_TEMPLATES:
        raise UserError(f"chat_template: {template!r}; give a Jinja template, or one of {', '.join(CHAT_TEMPLATES)}")
    return CHAT_TEMPLATES.get(template, template)


def pad_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """The id that fills unused columns: the pad token's, else the end token's.

    Masks are never read off this id, so that it may equal the end token's.
    """
    for value in (tokenizer.pad_token_id, tokenizer.eos_token_id):
        if isinstance(value, int):
            return value
    raise UserError(
        f"tokenizer: {tokenizer.name_or_path or type(tokenizer).__name__} has neither a pad nor an end token; "
        "set the policy's pad_token or eos_token"
    )


def check_tokenizer(tokenizer: PreTrainedTokenizerBase, module: PreTrainedModel) -> None:
    """Refuses a tokenizer whose ids the model has no embedding for."""
    rows = cast(Tensor, module.get_input_embeddings().weight).shape[0]
    beyond = sorted((id, token) for token, id in tokenizer.get_vocab().items() if id >= rows)
    if beyond:
        id, token = beyond[-1]
        raise UserError(
            f"tokenizer: id {id} ({token!r}) but the model has {rows} embedding rows; {len(beyond)} tokens have none: "
            "use the model's own tokenizer, or name them in the policy's add_tokens"
        )


def differing_tokens(own: PreTrainedTokenizerBase, policy: PreTrainedTokenizerBase) -> list[str]:
    """The tokens that have another id, or none, in one of two tokenizers."""
    ours, theirs = own.get_vocab(), policy.get_vocab()
    return sorted(token for token in {**ours, **theirs} if ours.get(token) != theirs.get(token))


def check_same_vocabulary(what: str, own: PreTrainedTokenizerBase, policy: PreTrainedTokenizerBase) -> None:
    """Refuses a model that reads other token ids than the policy writes.

    Args:
        what: The model, for the message: ``"critic.path: the value model in runs/x/reward/model"``.
        own: Its tokenizer.
        policy: The policy's.

    Raises:
        UserError: a token has another id, or none, in one of them.
    """
    if different := differing_tokens(own, policy):
        there, here = (tokenizer.get_vocab().get(different[0]) for tokenizer in (own, policy))
        raise UserError(
            f"{what} has another vocabulary than the policy ({len(different)} tokens differ: {different[0]!r} is "
            f"{there} there, {here} in the policy); train it from the same starting model"
        )

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
        raise UserError("corpus: no text to train a tokenizer on; give the stage data, or a policy with a tokenizer")
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, eos_token=END, clean_up_tokenization_spaces=False
    )


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
        "set pad_token or eos_token in its tokenizer_config.json"
    )


def check_tokenizer(tokenizer: PreTrainedTokenizerBase, module: PreTrainedModel) -> None:
    """Refuses a tokenizer whose ids the model has no embedding for."""
    rows = cast(Tensor, module.get_input_embeddings().weight).shape[0]
    token, largest = max(tokenizer.get_vocab().items(), key=lambda item: item[1])
    if largest >= rows:
        raise UserError(
            f"tokenizer: id {largest} ({token!r}) but the model has {rows} embedding rows; "
            "use the model's own tokenizer, or resize the model's embeddings"
        )


def check_same_vocabulary(what: str, own: PreTrainedTokenizerBase, policy: PreTrainedTokenizerBase) -> None:
    """Refuses a model that reads other token ids than the policy writes.

    Args:
        what: The model, for the message: ``"path: the reward model in runs/x/reward/model"``.
        own: Its tokenizer.
        policy: The policy's.

    Raises:
        UserError: a token has another id, or none, in one of them.
    """
    ours, theirs = own.get_vocab(), policy.get_vocab()
    if different := sorted(token for token in {**ours, **theirs} if ours.get(token) != theirs.get(token)):
        token = different[0]
        raise UserError(
            f"{what} has another vocabulary than the policy ({len(different)} tokens differ: {token!r} is "
            f"{ours.get(token)} there, {theirs.get(token)} in the policy); train it from the same starting model"
        )

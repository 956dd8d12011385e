"""A model's vocabulary beyond its tokenizer's: new tokens with embeddings of their own, ids that stand for nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from rlhf.models.modules import seeded

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def extend_vocabulary(
    module: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    pad_token: str | None = None,
    eos_token: str | None = None,
    add_tokens: Sequence[str] = (),
) -> list[str]:
    """Adds tokens to the tokenizer and gives those without an embedding one; both are changed in place.

    A new row of the input embedding, and of the output embedding and its bias, is the mean of the rows of the tokens
    that were there: a new token starts as an average one, neither likely nor impossible. Tied weights stay tied.
    Source: J. Hewitt, "Initializing New Word Embeddings for Pretrained Language Models", 2021.

    Args:
        module: The model; its config follows where ``eos_token`` or ``pad_token`` is given.
        tokenizer: Its tokenizer.
        pad_token: Becomes the tokenizer's pad token.
        eos_token: Becomes the tokenizer's end token.
        add_tokens: Further tokens, each one id from now on.

    Returns:
        The tokens among these that had no row in the embedding.
    """
    rows = _rows(module.get_input_embeddings()).shape[0]
    known = {token: id for token, id in tokenizer.get_vocab().items() if id < rows}
    special = {"pad_token": pad_token, "eos_token": eos_token}
    tokenizer.add_special_tokens({name: token for name, token in special.items() if token is not None})
    tokenizer.add_tokens(list(add_tokens), special_tokens=True)
    named = dict.fromkeys(token for token in (*special.values(), *add_tokens) if token is not None)
    new = {token: cast(int, tokenizer.convert_tokens_to_ids(token)) for token in named if token not in known}
    if new:
        _give_rows(module, sorted(known.values()), sorted(new.values()))
    for name in ("pad", "eos"):
        if special[f"{name}_token"] is not None:
            _set_id(module, f"{name}_token_id", getattr(tokenizer, f"{name}_token_id"))
    return list(new)


def unknown_ids(tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> Tensor | None:
    """[V] bool, True for the ids of a model that its tokenizer has no token for; None where there are none.

    Many vocabularies are filled up to a round number; such an id must never be drawn, for it has no text.
    """
    known = torch.tensor([id for id in tokenizer.get_vocab().values() if id < vocab_size], dtype=torch.int64)
    unknown = torch.ones(vocab_size, dtype=torch.bool)
    unknown[known] = False
    return unknown if unknown.any() else None


@torch.no_grad()
def _give_rows(module: PreTrainedModel, known: list[int], new: list[int]) -> None:
    if new[-1] >= _rows(module.get_input_embeddings()).shape[0]:
        with seeded(0):  # the library draws the new rows before we set them
            module.resize_token_embeddings(new[-1] + 1, mean_resizing=False)
    output = module.get_output_embeddings()
    weights = [_rows(module.get_input_embeddings())]
    if output is not None and _rows(output) is not weights[0]:
        weights.append(_rows(output))
    if output is not None and isinstance(bias := getattr(output, "bias", None), Tensor):
        weights.append(bias)
    for weight in weights:
        weight[new] = weight[known].float().mean(0).to(weight.dtype)


def _rows(embedding: nn.Module | None) -> Tensor:
    return cast(Tensor, cast(nn.Module, embedding).weight)


def _set_id(module: PreTrainedModel, name: str, id: int) -> None:
    setattr(module.config.get_text_config(), name, id)
    if module.generation_config is not None:
        setattr(module.generation_config, name, id)

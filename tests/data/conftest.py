"""Tokenizers small enough to count by hand."""

from collections.abc import Callable

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

SPECIAL = {"<pad>": 0, "<eos>": 1, "<bos>": 2, "<unk>": 3}


@pytest.fixture(scope="session")
def words() -> Callable[..., PreTrainedTokenizerBase]:
    """One token per word: w0 … w99 have ids 10 … 109; ``bos=True`` adds a beginning-of-sequence token as Llama does."""

    def make(*, bos: bool = False, eos: bool = True) -> PreTrainedTokenizerBase:
        vocabulary = {**SPECIAL, **{f"w{i}": 10 + i for i in range(100)}, "User:": 110, "Bot:": 111, ".": 112}
        backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
        backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        if bos:
            backend.post_processor = processors.TemplateProcessing(
                single="<bos> $A", pair="<bos> $A <bos> $B", special_tokens=[("<bos>", 2)]
            )
        return PreTrainedTokenizerFast(
            tokenizer_object=backend,
            unk_token="<unk>",
            pad_token="<pad>",
            bos_token="<bos>",
            eos_token="<eos>" if eos else None,
        )

    return make


@pytest.fixture(scope="session")
def merging() -> PreTrainedTokenizerBase:
    """Characters a, b, = and the merged piece ==; ids 1 … 4, <eos> 0."""
    backend = Tokenizer(models.BPE(vocab={"<eos>": 0, "a": 1, "b": 2, "=": 3, "==": 4}, merges=[("=", "=")]))
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>")


@pytest.fixture
def text() -> Callable[..., str]:
    """``text(3)`` is "w0 w1 w2"; ``text(2, start=5)`` is "w5 w6"."""
    return lambda n, start=0: " ".join(f"w{(start + i) % 100}" for i in range(n))

"""A tokenizer whose texts are the ids, and what samplers' tests do with rollouts."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from rlhf.types import Prompts, Rollout


class Numbers:
    """Has a token for each id below ``size`` that is not forbidden ([V] bool)."""

    unk_token_id = unk_token = eos_token_id = None

    def __init__(self, size: int, pad_id: int = 0, forbidden: Tensor | None = None) -> None:
        self.pad_token_id = pad_id
        self.known = [i for i in range(size) if forbidden is None or not forbidden[i]]

    def get_vocab(self) -> dict[str, int]:
        return {str(i): i for i in self.known}

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        assert not skip_special_tokens
        return " ".join(map(str, ids))

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        assert not add_special_tokens
        return [int(word) for word in text.split()]

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        return [str(i) for i in ids]


def prompts_of(ids: Sequence[Sequence[int]]) -> Prompts:
    return Prompts(ids, [str(i) for i in range(len(ids))], ["test"] * len(ids))


def responses(rollout: Rollout) -> list[list[int]]:
    ids, mask = rollout.sequences.response_ids, rollout.mask
    return [row[real].tolist() for row, real in zip(ids, mask, strict=True)]

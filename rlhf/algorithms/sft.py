"""Supervised fine-tuning."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from torch import Tensor, nn

from rlhf.algorithms.base import Offline
from rlhf.data.collate import collate_labelled, collate_packed, pack
from rlhf.interfaces import Policy
from rlhf.types import Form, Labelled, LossTerm, Outputs, Phase, Tally

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from rlhf.models.modules import PolicyModel


@dataclass(frozen=True, kw_only=True)
class SFT(Offline[Labelled]):
    """Supervised fine-tuning: the policy learns to write the demonstrated responses.

    minimise  −1/N Σ_t log π(y_t | x, y_<t),   N the response tokens of the optimiser step over all ranks.
    Source: arXiv:2203.02155, section 3.1.

    Args:
        policy: The model to train.
        train_on_prompt: Learn the prompt's tokens too.
        packing: Put several examples in one row, each attending to itself only, instead of padding. Same loss.
    """

    phase: ClassVar[Phase] = "sft"
    form: ClassVar[Form] = "demonstration"
    want: ClassVar[tuple[str, ...]] = ("logprobs",)

    policy: Policy
    train_on_prompt: bool = False
    packing: bool = False

    def build(self, corpus: Callable[[], Iterable[str]], *, seed: int) -> tuple[nn.Module, PreTrainedTokenizerBase]:
        from rlhf.models.modules import PolicyModel

        model = self.policy.build(corpus, seed=seed)
        return PolicyModel(model.module), model.tokenizer

    def collate(self, examples: Sequence[Any], *, pad_id: int) -> Labelled:
        if self.packing:
            rows = pack(examples, self.data.max_tokens)
            return collate_packed(rows, pad_id=pad_id, train_on_prompt=self.train_on_prompt)
        return collate_labelled(examples, pad_id=pad_id, train_on_prompt=self.train_on_prompt)

    def loss(self, outputs: Outputs, batch: Labelled) -> tuple[list[LossTerm], Tally]:
        assert outputs.logprobs is not None
        tally = Tally()
        tally.mean("loss", -outputs.logprobs, batch.mask)
        return [LossTerm("sft", -outputs.logprobs, batch.mask)], tally

    def denominators(self, batch: Labelled) -> dict[str, float]:
        return {"sft": float(batch.mask.sum())}

    def save(
        self, directory: Path, model: nn.Module, tokenizer: PreTrainedTokenizerBase, state: dict[str, Tensor]
    ) -> None:
        from rlhf.models.storage import save_language_model

        save_language_model(directory, cast("PolicyModel", model), tokenizer, state)

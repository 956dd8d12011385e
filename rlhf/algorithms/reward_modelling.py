"""Reward modelling from comparisons."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
from torch import Tensor, nn

from rlhf.algorithms.base import Offline
from rlhf.algorithms.functional import losses
from rlhf.data.collate import collate_comparisons
from rlhf.errors import UserError, require
from rlhf.interfaces import LiveEngine, Policy, ValueHead
from rlhf.models.heads import Linear
from rlhf.types import Comparisons, Form, LossTerm, Outputs, Phase, Tally

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from rlhf.models.modules import ValueModel


@dataclass(frozen=True, kw_only=True)
class RewardModelling(Offline[Comparisons]):
    """Reward modelling: a scalar read at the last real token learns which response people prefer.

    minimise  −Σ w_i log σ(s(x, chosen) − s(x, rejected) − m_i) / Σ w_i,   the Bradley–Terry likelihood.
    Source: arXiv:2203.02155, eq. 1 (all pairs of a prompt together weigh 1); margin: arXiv:2307.09288, eq. 2.

    Accuracy is strict: equal scores are not correct, and are counted as ``ties``.

    Args:
        model: The trunk's weights: a language model, its output layer is dropped.
        head: The scalar head.
        margin: Weight of the data's margins in the loss; 0 ignores them.
        label_smoothing: Probability that a label is taken to be wrong.
        normalize: After training, store mean and standard deviation of the held-out scores in the model, so that its
            scores have mean 0 and deviation 1 there. A model without held-out rows keeps 0 and 1.
    """

    phase: ClassVar[Phase] = "reward"
    form: ClassVar[Form] = "comparison"
    want: ClassVar[tuple[str, ...]] = ("scores",)

    model: Policy
    head: ValueHead = Linear()
    margin: float = 0.0
    label_smoothing: float = 0.0
    normalize: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require(at_least=0, margin=self.margin)
        require(at_least=0, at_most=0.5, label_smoothing=self.label_smoothing)

    def build(self, corpus: Callable[[], Iterable[str]], *, seed: int) -> tuple[nn.Module, PreTrainedTokenizerBase]:
        from rlhf.models.storage import value_model_from

        language_model = self.model.build(corpus, seed=seed)
        return value_model_from(language_model, self.head, seed=seed), language_model.tokenizer

    def collate(self, examples: Sequence[Any], *, pad_id: int) -> Comparisons:
        return collate_comparisons(examples, pad_id=pad_id)

    def loss(self, outputs: Outputs, batch: Comparisons) -> tuple[list[LossTerm], Tally]:
        assert outputs.scores is not None
        chosen, rejected = outputs.scores[0::2], outputs.scores[1::2]
        weight = batch.weight[0::2]
        margin = self.margin * batch.margin[0::2] if self.margin else None
        values = losses.bradley_terry(chosen, rejected, margin=margin, label_smoothing=self.label_smoothing)
        tally = Tally()
        tally.ratio("loss", float((weight * values.detach()).sum()), float(weight.sum()))
        tally.ratio("accuracy", float((weight * (chosen > rejected)).sum()), float(weight.sum()))
        tally.ratio("ties", float((weight * (chosen == rejected)).sum()), float(weight.sum()))
        tally.ratio("margin", float((weight * (chosen - rejected).detach()).sum()), float(weight.sum()))
        term = LossTerm("reward", weight * values, torch.ones_like(weight, dtype=torch.bool), mode="constant")
        return [term], tally

    def denominators(self, batch: Comparisons) -> dict[str, float]:
        return {"reward": float(batch.weight[0::2].sum())}

    def conclude(self, engine: LiveEngine, heldout: Sequence[Comparisons]) -> dict[str, float]:
        """Sets the model's normalisation from the held-out scores (of chosen and rejected responses alike)."""
        scores = [outputs.scores for outputs in engine.evaluate(heldout, want=("scores",))]
        if not self.normalize or not scores:
            return {}
        values = torch.cat([score.double() for score in scores if score is not None])
        mean, std = float(values.mean()), float(values.std())
        if not std > 0:
            raise UserError(f"the reward model gives every held-out response the score {mean}; it has learned nothing")
        cast("ValueModel", engine.model).set_normalisation(mean, std)
        return {"normalisation/mean": mean, "normalisation/std": std}

    def save(
        self, directory: Path, model: nn.Module, tokenizer: PreTrainedTokenizerBase, state: dict[str, Tensor]
    ) -> None:
        from rlhf.models.storage import save_value_model

        save_value_model(directory, cast("ValueModel", model), tokenizer, self.head, state, self.data.template)

"""Critics: a trunk of their own, or a head on the policy's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, cast

import torch
from torch import Tensor, nn

from rlhf.algorithms.optimizers import AdamW
from rlhf.algorithms.schedules import Constant
from rlhf.errors import UserError, require
from rlhf.interfaces import Critic, LanguageModel, ModelPath, Optimizer, Schedule, ValueHead
from rlhf.models.heads import Linear
from rlhf.models.lora import LoRA

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, kw_only=True)
class OwnTrunk(Critic):
    """A critic with a trunk and an optimiser of its own.

    Args:
        path: A saved reward model (``@reward``: its head and normalisation are kept) to start from; null copies the
            policy's trunk.
        head: The head of a critic that starts from the policy; a reward model brings its own.
        optimizer: Of the critic.
        schedule: Of the critic's learning rate.
        max_grad_norm: The critic's gradients are scaled down to this global norm; null leaves them.
        coef: Weight of the value loss.
        clip: Values may move this far from the old ones before the loss stops rewarding it; null for no clipping.
        warmup_iterations: Iterations at the start in which only the critic learns.
        trainable_layers: Train only the last so many blocks of the trunk, and the head; null trains all of a saved
            model, and of a copy what the policy trains. With ``lora``, the last so many blocks have adapters.
        lora: Train low-rank adapters of the trunk, and the head, and freeze all else. Null for a copy of a policy with
            adapters, which has its own like them.
    """

    shared: ClassVar[bool] = False

    path: ModelPath | None = None
    head: ValueHead = Linear()
    optimizer: Optimizer = AdamW()
    schedule: Schedule = Constant()
    max_grad_norm: float | None = 1.0
    coef: float = 1.0
    clip: float | None = 0.2
    warmup_iterations: int = 0
    trainable_layers: int | None = None
    lora: LoRA | None = None

    def __post_init__(self) -> None:
        require(at_least=0, coef=self.coef, clip=self.clip, warmup_iterations=self.warmup_iterations)
        require(at_least=0, trainable_layers=self.trainable_layers)
        require(above=0, max_grad_norm=self.max_grad_norm)
        if self.lora is not None and (self.lora.start, self.lora.export) != ("new", "merged"):
            raise UserError("lora: a critic is not saved; leave out start and export")

    @property
    def starts_as_reward_model(self) -> bool:
        return self.path is not None

    def check_training(self, outline: PreTrainedModel) -> None:
        from rlhf.models.lora import check_trained

        check_trained(cast("PreTrainedModel", outline.base_model), self.lora, self.trainable_layers)

    def build(self, policy: LanguageModel, *, seed: int) -> nn.Module:
        from rlhf.models.freezing import freeze_below
        from rlhf.models.lora import attach, attached
        from rlhf.models.storage import load_value_model, value_model_from
        from rlhf.models.tokenizer import check_same_vocabulary

        if self.path is None:
            model = value_model_from(policy, self.head, seed=seed)
        else:
            model, tokenizer = load_value_model(self.path)
            check_same_vocabulary(f"critic.path: the value model in {self.path}", tokenizer, policy.tokenizer)
        trunk = cast("PreTrainedModel", model.trunk)
        if attached(trunk) is not None and self.trainable_layers is not None:
            raise UserError(
                f"critic.trainable_layers: {self.trainable_layers}, but the copy of the policy trains its adapters; "
                "leave it null"
            )
        if self.lora is not None:
            attach(trunk, self.lora, seed=seed, base=None, layers=self.trainable_layers)
        elif self.trainable_layers is not None:
            freeze_below(trunk, self.trainable_layers)
        return model


class _Detach(nn.Module):
    def forward(self, hidden: Tensor) -> Tensor:
        return hidden.detach()


@dataclass(frozen=True, kw_only=True)
class SharedTrunk(Critic):
    """A value head on the policy's trunk, trained by the policy's optimiser.

    Args:
        head: The head.
        coef: Weight of the value loss beside the policy's.
        clip: Values may move this far from the old ones before the loss stops rewarding it; null for no clipping.
        detach: Stop the value loss's gradient at the head, so that the trunk serves the policy alone.
        warmup_iterations: Iterations at the start in which only the value loss is trained.
    """

    shared: ClassVar[bool] = True

    head: ValueHead = Linear()
    coef: float = 0.1
    clip: float | None = 0.2
    detach: bool = False
    warmup_iterations: int = 0

    def __post_init__(self) -> None:
        require(at_least=0, coef=self.coef, clip=self.clip, warmup_iterations=self.warmup_iterations)

    def build(self, policy: LanguageModel, *, seed: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            head = self.head.build(policy.module.config.get_text_config().hidden_size)
        return nn.Sequential(_Detach(), head) if self.detach else head

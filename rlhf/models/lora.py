"""Low-rank adapters (LoRA) on a frozen model, by the library ``peft``.

Adapters are put into the model itself: it keeps its class, its weights keep their tensors, and what runs, samples from
or trains a model need not know of them. They alone require a gradient, with the head of a value model. What is
particular is here: where they go, switching them off, and what is written of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from torch import nn

from rlhf.errors import UserError, require
from rlhf.models.freezing import blocks_of, check_layers
from rlhf.models.modules import seeded

if TYPE_CHECKING:
    from peft import LoraConfig
    from peft.tuners.lora import LoraLayer
    from transformers import PreTrainedModel

NAME = "default"
"""``peft`` can hold several adapters and wants a name for each; we have one."""


@dataclass(frozen=True, kw_only=True)
class LoRA:
    """Low-rank adapters: an adapted layer answers W x + s B A x, where only A and B are trained.

    A is drawn, B starts at zero, so that the model starts as what is frozen under it. s is alpha / rank.
    Source: arXiv:2106.09685, section 4.1; ``rslora``: arXiv:2312.03732, eq. 3.

    Args:
        rank: Rows of A, columns of B.
        alpha: Numerator of s.
        dropout: Probability with which an element of x does not reach A; acts where the model's own dropout does.
        target_modules: Names, or ends of names, of the linear layers to adapt, such as ``[q_proj, v_proj]``; null
            adapts every linear layer of the blocks.
        rslora: s is alpha / sqrt(rank), which keeps large ranks learning.
        start: ``new`` adapters start at zero, and an adapter that ``path`` may name is merged into the base first.
            ``saved`` goes on training the adapter that ``path`` names, whose shape these settings must give.
        export: What is saved: ``merged``, a model like any other; ``adapter``, the adapter alone, with the path of
            its base, as ``peft`` loads it; ``both``, the adapter in a folder ``adapter`` in that of the model.
    """

    rank: int = 8
    alpha: float = 16.0
    dropout: float = 0.0
    target_modules: list[str] | None = None
    rslora: bool = False
    start: Literal["new", "saved"] = "new"
    export: Literal["merged", "adapter", "both"] = "merged"

    def __post_init__(self) -> None:
        require(at_least=1, rank=self.rank)
        require(above=0, alpha=self.alpha)
        require(at_least=0, below=1, dropout=self.dropout)
        if self.target_modules is not None and not all(self.target_modules):
            raise UserError("target_modules: one of them is empty; leave it out")
        if self.target_modules == []:
            raise UserError("target_modules: it is empty; name linear layers, or give null for those of the blocks")


@dataclass(frozen=True)
class Attached:
    """What is to be known of a model's adapters when it is saved.

    Attributes:
        settings: Theirs.
        targets: Ends of the names of the adapted layers, and of no other modules.
        base: Folder or hub name of the model without them; None where there is none such.
    """

    settings: LoRA
    targets: tuple[str, ...]
    base: str | None


def check_trained(module: PreTrainedModel, settings: LoRA | None, layers: int | None) -> None:
    """Refuses adapters, or last blocks to train, that a model does not have.

    Args:
        module: The model, or its outline on the meta device.
        settings: Of the adapters; None for none.
        layers: How many blocks are trained, or have adapters; None for all.
    """
    if settings is not None:
        targets(module, settings, layers)
    elif layers is not None:
        check_layers(module, layers)


def attached(module: nn.Module) -> Attached | None:
    """What :func:`attach` has noted on a language model or on its trunk; None where it has no adapters."""
    return getattr(module, "attached_lora", None)


def attach(module: PreTrainedModel, settings: LoRA, *, seed: int, base: str | None, layers: int | None = None) -> None:
    """Puts new adapters into a model, in fp32 whatever its precision, and freezes all else.

    Args:
        module: A Hugging Face model, with or without a language-model head.
        settings: Of the adapters.
        seed: Of their A.
        base: Folder or hub name that the model without them can be loaded from; None where there is none.
        layers: Adapt only the last so many blocks; None all.

    Raises:
        UserError: the model has no such layers, or one is tied to the embedding.
    """
    from peft import inject_adapter_in_model

    if attached(module) is not None:
        raise UserError("lora: the model has adapters already; leave it null")
    note = Attached(settings, _endings(module, targets(module, settings, layers)), base)
    config = config_of(module, note)
    with seeded(seed):
        inject_adapter_in_model(config, module, NAME)
    to_fp32(module)
    for part in cast(list[Any], [module, module.base_model]):  # a value model has a copy of the trunk alone
        part.attached_lora, part.peft_config = note, {NAME: config}


def to_fp32(module: nn.Module) -> None:
    """Gives adapters, to which the library gives their layers' precision, the precision in which they are trained."""
    for _, layer in adapted(module):
        for factor in _factors(layer):
            factor.data = factor.data.float()


def starts_as_base(module: nn.Module) -> bool:
    """Whether a model is, but for its adapters, what it starts as: every B is zero, and nothing else is trained."""
    if attached(module) is None:
        return False
    layers = [layer for _, layer in adapted(module)]
    own = {factor for layer in layers for factor in _factors(layer)}
    trained = {parameter for parameter in module.parameters() if parameter.requires_grad}
    return trained <= own and not any(factor.any() for layer in layers for factor in layer.lora_B.parameters())


@contextmanager
def adapters_off(module: nn.Module) -> Iterator[None]:
    """Inside, the model answers as if it had no adapters."""
    layers = [layer for _, layer in adapted(module)]
    trained = [(p, p.requires_grad) for layer in layers for p in _factors(layer)]
    try:
        for layer in layers:
            layer.enable_adapters(False)
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)
        for parameter, flag in trained:  # peft makes those that it switches on trainable
            parameter.requires_grad_(flag)


def adapted(module: nn.Module) -> Iterator[tuple[str, LoraLayer]]:
    """The layers with adapters, by name."""
    from peft.tuners.lora import LoraLayer

    for name, layer in module.named_modules():
        if isinstance(layer, LoraLayer):
            yield name, layer


def _factors(layer: LoraLayer) -> list[nn.Parameter]:
    return [*layer.lora_A.parameters(), *layer.lora_B.parameters()]


# ------------------------------------------------------------------------------------------------------------- targets


def _linear(module: nn.Module) -> dict[str, nn.Module]:
    from transformers.pytorch_utils import Conv1D

    return {name: layer for name, layer in module.named_modules() if isinstance(layer, nn.Linear | Conv1D)}


def targets(module: PreTrainedModel, settings: LoRA, layers: int | None) -> list[str]:
    """Names of the layers to adapt.

    Raises:
        UserError: the model has no such layers, or one is tied to the embedding.
    """
    linear = _linear(module)
    allowed = list(linear)
    if settings.target_modules is None or layers is not None:
        place, blocks = blocks_of(module, "name the layers to adapt in lora.target_modules, without trainable_layers")
        count = len(blocks)
        if layers is not None and not 1 <= layers <= count:
            raise UserError(
                f"trainable_layers: {layers}, but adapters go into 1 to {count} blocks of {type(module).__name__}"
            )
        last = tuple(f"{place}.{number}." for number in range(count - (layers or count), count))
        allowed = [name for name in linear if name.startswith(last)]
    chosen = allowed
    if settings.target_modules is not None:
        chosen = [name for name in allowed if any(_ends(name, target) for target in settings.target_modules)]
        for target in settings.target_modules:
            if not any(_ends(name, target) for name in chosen):
                there = ", ".join(sorted({name.rpartition(".")[2] for name in allowed}))
                kind = type(module).__name__
                raise UserError(f"target_modules: {target!r} is no linear layer of {kind}, which has {there}")
    output = module.get_output_embeddings()
    tied = output is not None and cast(Any, output).weight is cast(Any, module.get_input_embeddings()).weight
    if tied and any(linear[name] is output for name in chosen):
        raise UserError(
            "target_modules: the output layer is tied to the embedding, and would change that; leave it out"
        )
    return chosen


def _ends(name: str, target: str) -> bool:
    return name == target or name.endswith(f".{target}")


def _endings(module: nn.Module, names: list[str]) -> tuple[str, ...]:
    """The shortest ends of the names that no other module's name has: what ``peft`` finds the layers by.

    A trunk's modules have the ends, not the names, of those of the whole model.
    """
    others = [name for name, _ in module.named_modules() if name not in set(names)]
    found: dict[str, None] = {}
    for name in names:
        parts = name.split(".")
        ends = (".".join(parts[start:]) for start in range(len(parts) - 1, -1, -1))
        found[next(end for end in ends if not any(_ends(other, end) for other in others))] = None
    return tuple(found)


def config_of(module: nn.Module, note: Attached) -> LoraConfig:
    """The same settings as ``peft`` writes and reads them."""
    from peft import LoraConfig, TaskType
    from transformers.pytorch_utils import Conv1D

    settings = note.settings
    whole = cast("PreTrainedModel", module).get_output_embeddings() is not None
    return LoraConfig(
        base_model_name_or_path=note.base,
        task_type=TaskType.CAUSAL_LM if whole else TaskType.FEATURE_EXTRACTION,
        r=settings.rank,
        lora_alpha=cast(int, settings.alpha),  # a factor, and used as one
        lora_dropout=settings.dropout,
        use_rslora=settings.rslora,
        target_modules=sorted(note.targets),
        fan_in_fan_out=any(isinstance(layer, Conv1D) for layer in module.modules()),
    )

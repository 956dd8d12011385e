"""The models of a stage, and how large they are before they are loaded."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch

from rlhf.algorithms.ppo import PPO
from rlhf.engines.memory import Sizes
from rlhf.errors import ConfigError
from rlhf.interfaces import Algorithm, Optimizer, Policy
from rlhf.models.lora import attach
from rlhf.models.policy import Pretrained
from rlhf.schema import model_paths

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel


class Model(NamedTuple):
    """A model that a stage holds.

    Attributes:
        name: Of the setting it comes from.
        policy: Its settings.
        optimizer: None: it is frozen.
        whole: Whether it keeps its output layer.
        averages: How many averages of its weights are kept.
    """

    name: str
    policy: Policy
    optimizer: Optimizer | None
    whole: bool
    averages: int = 0


def models_of(algorithm: Algorithm) -> Iterator[Model]:
    """The models of a stage: those it trains, and the frozen ones that it asks."""
    if not isinstance(algorithm, PPO):
        for name in ("policy", "model"):
            if isinstance(policy := getattr(algorithm, name, None), Policy):
                yield Model(name, policy, cast(Any, algorithm).optimizer, whole=name == "policy")
        return
    policy, critic = algorithm.policy, algorithm.used_critic
    averages = (algorithm.averaging is not None) + (algorithm.reference_average is not None)
    yield Model("policy", policy, algorithm.optimizer, True, averages)
    if critic is not None and not critic.shared:
        own = cast(Any, critic)
        start = policy if own.path is None else Pretrained(path=own.path, dtype=getattr(policy, "dtype", "fp32"))
        if own.path is not None or own.lora is not None or own.trainable_layers is not None:
            start = _replaced(start, lora=own.lora, trainable_layers=own.trainable_layers)
        yield Model("critic", start, own.optimizer, whole=False)
    frozen = algorithm.kl is not None and algorithm.reference_average is None
    if frozen and (algorithm.reference is not None or getattr(policy, "lora", None) is None):
        yield Model("reference", algorithm.reference or policy, None, whole=True)
    for path in sorted(set(_paths([algorithm.reward, algorithm.constraints]))):
        yield Model("reward", Pretrained(path=path), None, whole=False)


def _replaced(policy: Policy, **settings: Any) -> Policy:
    known = {field.name for field in dataclasses.fields(cast(Any, policy))}
    return dataclasses.replace(cast(Any, policy), **{name: value for name, value in settings.items() if name in known})


def _paths(component: Any) -> Iterator[str]:
    """Models that a component loads."""
    if dataclasses.is_dataclass(component):
        for field in dataclasses.fields(component):
            value = getattr(component, field.name)
            if field.name in model_paths(type(component)) and isinstance(value, str):
                yield value
            yield from _paths(value)
    elif isinstance(component, Mapping):
        for value in component.values():
            yield from _paths(value)
    elif isinstance(component, list | tuple):
        for value in component:
            yield from _paths(value)


# --------------------------------------------------------------------------------------------------------------- sizes


class Shape(NamedTuple):
    """What the memory of passes depends on."""

    layers: int
    width: int
    heads: int
    kv_width: int
    """Elements of keys and values of a position, in a layer."""


class Measured(NamedTuple):
    """A model without its memory: how large it is."""

    model: Model
    sizes: Sizes
    shape: Shape

    @property
    def weights(self) -> int:
        """All of them."""
        return sum(map(sum, self.sizes.trained)) + sum(self.sizes.frozen)

    @property
    def trained(self) -> int:
        """Those that steps change."""
        return sum(map(sum, self.sizes.trained))


class Ruler:
    """Measures models, each once, that may be the result of an earlier stage.

    Args:
        stages: Those of the experiment.
    """

    def __init__(self, stages: Mapping[str, Algorithm]) -> None:
        self.stages = stages
        self._known: dict[str, Measured] = {}

    def __call__(self, model: Model) -> Measured:
        """Sizes of a model.

        Raises:
            ConfigError: nothing is known of the model before it is loaded.
        """
        key = repr(model)
        if key not in self._known:
            self._known[key] = self._measure(model)
        return self._known[key]

    def _measure(self, model: Model) -> Measured:
        source = model.policy
        while isinstance(path := getattr(source, "path", None), str) and path.startswith("@"):
            source = next(models_of(self.stages[path.removeprefix("@").partition("/")[0]])).policy
        outline = cast(Any, source).outline()
        if outline is None:
            raise ConfigError(
                f"deployment: nothing is known of the size of {model.name} ({getattr(source, 'path', source)}) before "
                "it is loaded; give the stages their engines yourself, and leave deployment null"
            )
        config = outline.config.get_text_config()
        module = outline if model.whole else cast("PreTrainedModel", outline.base_model)
        return Measured(model, _sizes(module, model), _shape(config))


def _sizes(module: PreTrainedModel, model: Model) -> Sizes:
    from rlhf.models.freezing import freeze_below

    if model.optimizer is None:
        return Sizes((), tuple(weight.numel() for weight in module.parameters()))
    layers, lora = getattr(model.policy, "trainable_layers", None), getattr(model.policy, "lora", None)
    if lora is not None:
        with torch.device("meta"):
            attach(module, lora, seed=0, base=None, layers=layers)
    elif layers is not None:
        freeze_below(module, layers)
    return Sizes.of(cast("nn.Module", module), model.optimizer)


def _shape(config: Any) -> Shape:
    heads = config.num_attention_heads
    kv = getattr(config, "num_key_value_heads", None) or heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    return Shape(config.num_hidden_layers, config.hidden_size, heads, 2 * kv * head_dim)


def activation_bytes(shape: Shape, tokens: int, *, checkpointing: bool, width: int) -> float:
    """Bytes that a row of a training pass keeps for the backward pass.

    A block keeps 34 bytes a token and unit of width in 16 bits, without the attention's scores, which are made again;
    with checkpointing its input alone, and one block at a time the rest.
    Source: arXiv:2205.05198, eq. 1 and table 2.

    Args:
        shape: Of the model.
        tokens: Of the row.
        checkpointing: Whether blocks are run again.
        width: Bytes of a number.
    """
    block = 17 * width * tokens * shape.width
    return shape.layers * width * tokens * shape.width + block if checkpointing else shape.layers * block

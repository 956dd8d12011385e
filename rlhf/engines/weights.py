"""A module's complete state dict, where engines hold some of its weights in another form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

from torch import Tensor, nn

from rlhf import distributed
from rlhf.engines.reshard import Held
from rlhf.models.lora import NAME, adapted


def model_state(model: nn.Module, trained: Mapping[str, Tensor], *, frozen: bool = True) -> dict[str, Tensor]:
    """The state dict of a module whose trained weights are given; the others are gathered where ZeRO parts them.

    Args:
        model: Any module, perhaps in DeepSpeed's hands: then every process has to ask.
        trained: Whole weights by their first name in the module.
        frozen: Whether the other weights are in it, and not only buffers.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found: dict[str, Tensor] = {}
    for key, tensor in model.state_dict(keep_vars=True).items():
        name = names.get(id(tensor), key)  # tied weights have a second key
        if name in trained:
            found[key] = trained[name]
        elif isinstance(tensor, nn.Parameter) and not frozen:
            continue
        elif hasattr(tensor, "ds_id"):
            found[key] = found[name] if name in found else _gathered(tensor)
        else:
            found[key] = tensor.detach()
    return found


def _gathered(parameter: Tensor) -> Tensor:
    with gathered([parameter]):
        return parameter.detach().cpu().clone()


def gathered(parameters: Sequence[Any]) -> AbstractContextManager[None]:
    """Inside, weights are whole here where ZeRO parts them: every process has to ask."""
    if not any(hasattr(parameter, "ds_id") for parameter in parameters):
        return nullcontext()
    from deepspeed.runtime.zero.partition_parameters import GatheredParameters

    return GatheredParameters(list(parameters))


def held_by(model: nn.Module) -> dict[str, Held]:
    """What this process has of each weight as the model computes with it, by name; trained and frozen ones.

    Args:
        model: Any module, perhaps in DeepSpeed's hands.
    """
    return {name: _held(parameter) for name, parameter in model.named_parameters()}


def _held(parameter: Any) -> Held:
    if not hasattr(parameter, "ds_tensor"):
        return Held(tuple(parameter.shape), parameter.detach().reshape(-1), None)
    stretch, total = parameter.ds_tensor.numel(), parameter.ds_numel
    start = min(distributed.rank() * stretch, total)
    own = parameter.ds_tensor.data.flatten()[: min(stretch, total - start)]
    return Held(tuple(parameter.ds_shape), own.to(distributed.device()), stretch)  # offloaded ones lie elsewhere


class Delta(NamedTuple):
    """What an adapter adds to a weight: scale · b · a.

    Attributes:
        weight: Name of the weight, in the model without adapters.
        a: [rank, inputs].
        b: [outputs, rank].
        scale: s of :class:`~rlhf.models.lora.LoRA`.
    """

    weight: str
    a: Tensor
    b: Tensor
    scale: float


def deltas(module: nn.Module) -> Iterator[Delta]:
    """What the adapters that are on add to the model; whole where ZeRO parts them: then every process has to ask."""
    for name, layer in adapted(module):
        if layer.disable_adapters:
            continue
        factors: list[Any] = [layer.lora_A[NAME].weight, layer.lora_B[NAME].weight]
        with gathered(factors):
            a, b = (factor.detach().clone() for factor in factors)
        yield Delta(f"{name}.weight", a, b, layer.scaling[NAME])

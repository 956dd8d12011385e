"""A module's complete state dict, where engines hold some of its weights in another form."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn


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
    from deepspeed.runtime.zero.partition_parameters import GatheredParameters

    with GatheredParameters([parameter]):
        return parameter.detach().cpu().clone()

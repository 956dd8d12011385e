"""Low-rank adapters on disk: merged into a plain model, or alone as ``peft`` writes and reads them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor, nn

from rlhf.errors import UserError
from rlhf.models.lora import NAME, Attached, LoRA, adapted, config_of, to_fp32

if TYPE_CHECKING:
    from peft import LoraConfig

ADAPTER = "adapter_config.json"
"""What makes a folder that of an adapter."""
WEIGHTS = "adapter_model.safetensors"
BESIDE = "adapter"
"""Folder of the adapter in that of the merged model, where both are saved."""
_PREFIX = "base_model.model."
"""``peft`` names weights in files as they are called inside its own wrapper."""


def is_adapter(folder: str | Path) -> bool:
    """Whether a folder holds an adapter."""
    return (Path(folder) / ADAPTER).is_file()


def merged(module: nn.Module, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of the plain model that answers as one with adapters does; neither is written to.

    W + s B A is summed in fp32 and rounded once, to the precision of W.

    Args:
        module: The model, or its trunk; only its form is read.
        weights: All its weights by name, such as those of an average.
    """
    plain = {
        name.replace(".base_layer.", "."): tensor for name, tensor in weights.items() if f".{NAME}.weight" not in name
    }
    for name, layer in adapted(module):
        frozen = weights[f"{name}.base_layer.weight"]
        a, b = (weights[f"{name}.{factor}.{NAME}.weight"] for factor in ("lora_A", "lora_B"))
        change = b @ a
        change = (change.T if cast(Any, layer).fan_in_fan_out else change) * layer.scaling[NAME]
        plain[f"{name}.weight"] = (frozen.to(change.dtype) + change).to(frozen.dtype)
    return plain


def write_adapter(folder: Path, module: nn.Module, note: Attached, weights: Mapping[str, Tensor]) -> None:
    """Writes the adapters of a model so that ``PeftModel.from_pretrained`` loads them on the base that they name."""
    from peft import get_peft_model_state_dict
    from safetensors.torch import save_file

    config = config_of(module, note)
    config.inference_mode = True
    found = get_peft_model_state_dict(module, dict(weights), NAME, save_embedding_layers=False)
    folder.mkdir(exist_ok=True)
    config.save_pretrained(str(folder))
    save_file({_PREFIX + name: tensor.contiguous() for name, tensor in found.items()}, folder / WEIGHTS)


def read_config(folder: str | Path) -> LoraConfig:
    """What an adapter's folder says of it.

    Raises:
        UserError: its weights or its base are not there, or it is of a kind that we do not read.
    """
    from peft import LoraConfig, PeftConfig

    path = Path(folder) / ADAPTER
    try:
        config = PeftConfig.from_pretrained(str(folder))
    except Exception as error:  # a damaged file may fail in any way
        raise UserError(f"{path} cannot be read ({error}); save the adapter again") from error
    if not isinstance(config, LoraConfig) or config.modules_to_save:
        what = "trains whole modules too" if isinstance(config, LoraConfig) else f"is {type(config).__name__}"
        raise UserError(f"{path} {what}, and only LoRA adapters are read; merge it into its base with peft first")
    if not (Path(folder) / WEIGHTS).is_file():
        raise UserError(f"model path: {folder} has no {WEIGHTS}; was the save complete?")
    base = config.base_model_name_or_path
    if not base:
        raise UserError(f"{path} names no base (base_model_name_or_path); write there what it was trained on")
    if os.path.isabs(base) and not os.path.exists(base):
        raise UserError(
            f"{path} names the base {base}, which does not exist; put it back, or write its new place there "
            "(base_model_name_or_path)"
        )
    return config


def merge_adapter(module: nn.Module, folder: str | Path, config: LoraConfig) -> None:
    """Adds a saved adapter to the weights of its base, in place, rounded as by :func:`merged`."""
    from peft import inject_adapter_in_model

    inject_adapter_in_model(config, module, NAME)
    to_fp32(module)
    load_adapter(module, folder)
    for name, layer in list(adapted(module)):
        base: Any = layer.get_base_layer()
        precision = base.weight.dtype
        base.weight.data = base.weight.data.float()
        layer.merge(safe_merge=True)
        base.weight.data = base.weight.data.to(precision)
        place, _, child = name.rpartition(".")
        setattr(module.get_submodule(place), child, base)
    del cast(Any, module).peft_config
    module.requires_grad_(True)


def load_adapter(module: nn.Module, folder: str | Path) -> None:
    """Loads the saved weights of the adapters that a model has.

    Raises:
        UserError: the file has others, or of other shapes.
    """
    from peft import get_peft_model_state_dict, set_peft_model_state_dict
    from safetensors.torch import load_file

    found = {name.removeprefix(_PREFIX): tensor for name, tensor in load_file(Path(folder) / WEIGHTS).items()}
    wanted = get_peft_model_state_dict(module, adapter_name=NAME, save_embedding_layers=False)
    for name in [*wanted, *found]:
        shapes = [list(some[name].shape) if name in some else "nothing" for some in (found, wanted)]
        if shapes[0] != shapes[1]:
            raise UserError(f"{Path(folder) / WEIGHTS} has {shapes[0]} for {name}, where the model has {shapes[1]}")
    set_peft_model_state_dict(module, found, NAME)


def check_same_shape(settings: LoRA, folder: str | Path, config: LoraConfig) -> None:
    """Refuses settings that are not those of the saved adapter whose training they shall continue."""
    saved = {"rank": config.r, "alpha": config.lora_alpha, "rslora": config.use_rslora}
    for name, value in saved.items():
        if getattr(settings, name) != value:
            raise UserError(
                f"lora.{name}: {getattr(settings, name)}, but start is 'saved' and the adapter in {folder} has "
                f"{value}; give {value}, or start: new"
            )

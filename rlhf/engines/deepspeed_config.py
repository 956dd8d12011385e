"""DeepSpeed's configuration: what our settings decide of it, what users may add, and how an engine is made of it."""

from __future__ import annotations

import difflib
import logging
import os
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from rlhf import distributed
from rlhf.errors import UserError

if TYPE_CHECKING:
    from rlhf.engines.zero import Zero

OURS = {
    "train_batch_size": "batch_size of the algorithm",
    "train_micro_batch_size_per_gpu": "micro_batch_size",
    "gradient_accumulation_steps": "micro_batch_size",
    "managed_gradient_accumulation": "nothing: a step is made of all that was accumulated",
    "gradient_clipping": "max_grad_norm of the algorithm",
    "optimizer": "optimizer of the algorithm",
    "scheduler": "schedule of the algorithm",
    "fp16.enabled": "precision",
    "fp16.fp16_master_weights_and_grads": "nothing: weights are kept in fp32",
    "bf16.enabled": "precision",
    "bfloat16": "precision",
    "zero_optimization.stage": "stage",
    "zero_optimization.offload_optimizer": "offload_optimizer",
    "zero_optimization.offload_param": "offload_parameters",
    "zero_allow_untested_optimizer": "optimizer of the algorithm",
}
"""Keys that a setting decides, and which."""

PLAIN = (
    "communication_data_type", "disable_allgather", "disable_python_gc", "dump_state", "gradient_allreduce_op",
    "gradient_predivide_factor", "memory_breakdown", "prescale_gradients", "steps_per_print", "torch_autocast",
    "wall_clock_breakdown", "zero_force_ds_cpu_optimizer", "data_types", "activation_checkpointing", "comms_logger",
    "flops_profiler", "tensorboard", "csv_monitor", "aio", "compile",
)  # fmt: skip
"""Further keys of the first level; DeepSpeed itself reads past those it does not know."""


def _sections() -> dict[str, Any]:
    """The sections that DeepSpeed describes by a schema."""
    from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    return {"zero_optimization": DeepSpeedZeroConfig, "bf16": DeepSpeedBF16Config, "fp16": DeepSpeedFP16Config}


def check(config: Mapping[str, Any]) -> None:
    """Refuses keys that DeepSpeed does not know, or that a setting decides.

    Raises:
        UserError: names the key, and the nearest one or the setting.
    """
    if not config:
        return
    sections = _sections()
    for key, value in config.items():
        _check_key(key, [*PLAIN, *sections, *(name for name in OURS if "." not in name)], "")
        if key in sections:
            if not isinstance(value, Mapping):
                raise UserError(f"config.{key}: is {value!r}; must be a table of options")
            fields = sections[key].model_fields
            known = [*fields, *(field.alias for field in fields.values() if field.alias)]
            for inner in value:
                _check_key(inner, known, f"{key}.")
            on = {"enabled": True} if "enabled" in fields else {}  # else DeepSpeed looks at no range
            try:
                sections[key](**value, **on)
                if key == "fp16" and value.get("hysteresis", 1) < 1:
                    raise ValueError(f"hysteresis is {value['hysteresis']}; must be at least 1")
            except ValueError as error:
                raise UserError(f"config.{key}: {' '.join(str(error).split())[:300]}") from None


def _check_key(key: str, known: list[str], section: str) -> None:
    if (setting := OURS.get(section + key)) is not None:
        raise UserError(f"config.{section}{key}: is decided by {setting}; leave it out")
    if key not in known:
        near = difflib.get_close_matches(key, known, 1)
        hint = f"; did you mean {near[0]}?" if near else f"; known: {', '.join(sorted(known))}"
        raise UserError(f"config.{section}{key}: DeepSpeed has no such option{hint}")


def zero_option(settings: Zero, name: str) -> Any:
    """An option of DeepSpeed's ``zero_optimization``, as given in the settings, or its default there."""
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    return getattr(DeepSpeedZeroConfig(**settings.config.get("zero_optimization", {})), name)


def reduce_bucket_size(settings: Zero, trained: int) -> int:
    """Elements of the buffer in which gradients go from process to process: no more than there are.

    DeepSpeed's default is the same for every model, and is allocated whole: 2 GB in fp32, for each one that is trained.

    Args:
        settings: The engine's settings, which may say it.
        trained: Elements of the trained weights.
    """
    wanted = zero_option(settings, "reduce_bucket_size")
    given = "reduce_bucket_size" in settings.config.get("zero_optimization", {})
    return wanted if given else min(wanted, max(trained, 1))


def complete(settings: Zero, *, clip: float, trained: int) -> dict[str, Any]:
    """The whole configuration of one engine.

    Args:
        settings: The engine's settings.
        clip: Global norm that gradients are scaled down to; 0 leaves them.
        trained: Elements of the trained weights.
    """
    given = {key: dict(value) if isinstance(value, Mapping) else value for key, value in settings.config.items()}
    zero: dict[str, Any] = {**given.pop("zero_optimization", {}), "stage": settings.stage}
    zero["reduce_bucket_size"] = reduce_bucket_size(settings, trained)
    if settings.offload_optimizer:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": torch.cuda.is_available()}
    if settings.offload_parameters:
        zero["offload_param"] = {"device": "cpu", "pin_memory": torch.cuda.is_available()}
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "managed_gradient_accumulation": False,
        "gradient_clipping": clip,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        **given,
        "zero_optimization": {
            "overlap_comm": False,
            "reduce_bucket_size": reduce_bucket_size(settings, trained),
            **zero,
        },
        "bf16": {**given.get("bf16", {}), "enabled": settings.precision == "bf16"},
        "fp16": {**given.get("fp16", {}), "enabled": settings.precision == "fp16"},
    }


def connect() -> None:
    """Makes DeepSpeed ready on this process: alone, or with those of the launcher."""
    import torch.distributed as dist
    from torch.distributed import HashStore  # pyright: ignore[reportPrivateImportUsage]

    distributed.start()
    if not dist.is_initialized():
        os.environ.setdefault("LOCAL_RANK", "0")
        dist.init_process_group(distributed.backend(), store=HashStore(), rank=0, world_size=1)
    # of torch's own renamed functions, which DeepSpeed still calls by their former names
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")
    os.environ.setdefault("DS_ACCELERATOR", distributed.device().type)
    import deepspeed
    from deepspeed.ops import __compatible_ops__

    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    if deepspeed.comm.is_initialized():
        return
    # An all-reduce in shared memory, which takes minutes to compile and is not used: gloo's does.
    __compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist.get_backend(), dist_init_required=False)


def _allow_half() -> None:
    """DeepSpeed wants a CPU that is fast in fp16; torch computes in it on any."""
    from deepspeed.accelerator import get_accelerator

    accelerator: Any = get_accelerator()
    if accelerator.device_name() == "cpu" and not accelerator.is_fp16_supported():
        accelerator.is_fp16_supported = lambda: True


def initialize(settings: Zero, model: nn.Module, optimizer: torch.optim.Optimizer | None, *, clip: float) -> Any:
    """Puts a model in DeepSpeed's hands.

    Args:
        settings: The engine's settings.
        model: What to train or, without an optimiser, to keep frozen.
        optimizer: Over its trained parameters.
        clip: Global norm that gradients are scaled down to; 0 leaves them.
    """
    connect()
    import deepspeed

    trained = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    config = complete(settings, clip=clip, trained=trained)
    if settings.precision == "fp16":
        _allow_half()
    if optimizer is None:
        return deepspeed.initialize(model=model, config=config)[0]
    return deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]

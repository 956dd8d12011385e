"""What a process that trains holds in tensors besides activations: ZeRO's arithmetic, as DeepSpeed keeps it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import nn

from rlhf.engines.deepspeed_config import reduce_bucket_size, zero_option
from rlhf.engines.zero import DTYPES, Zero

if TYPE_CHECKING:
    from rlhf.interfaces import Optimizer

FP32 = 4
"""Bytes of a master weight, of its average, and of each number that the optimiser keeps for it."""


@dataclass(frozen=True)
class Sizes:
    """Elements of a model's weights; a weight that is tied counts once.

    Attributes:
        trained: By parameter group of the optimiser, in its order: DeepSpeed parts each group by itself.
        frozen: Those that no step changes, such as the base under adapters.
    """

    trained: tuple[tuple[int, ...], ...]
    frozen: tuple[int, ...] = ()

    @classmethod
    def of(cls, model: nn.Module, optimizer: Optimizer) -> Sizes:
        """Those of a model before an engine has it, which may have no memory yet (device ``meta``)."""
        groups = optimizer.build((name, p) for name, p in model.named_parameters() if p.requires_grad).param_groups
        return cls(
            tuple(tuple(weight.numel() for weight in group["params"]) for group in groups),
            tuple(weight.numel() for weight in model.parameters() if not weight.requires_grad),
        )


@dataclass(frozen=True)
class Bytes:
    """Of one kind of tensor, on the process that holds most of it.

    Attributes:
        device: Where the model computes.
        host: In the CPU's memory, where that is offloaded.
    """

    device: int = 0
    host: int = 0

    @property
    def total(self) -> int:
        """Both."""
        return self.device + self.host


KINDS = ("weights", "masters", "gradients", "optimizer", "average", "buffers")
"""Of tensors: what the model computes with; the fp32 weights that are stepped, where they are others; the gradients
accumulated; what the optimiser keeps for each weight; averages of the weights; DeepSpeed's own."""


def state_bytes(
    sizes: Sizes, settings: Zero, world_size: int, *, slots: int = 2, averages: int = 1
) -> dict[str, Bytes]:
    """Bytes that a process holds between passes, when the gradients of an optimiser step are accumulated.

    With P trained and F frozen weights on W processes, w bytes a weight in the precision of the computation, Adam and
    one average:

    | stage | weights | masters | gradients | optimizer | average | buffers |
    |---|---|---|---|---|---|---|
    | 0 | w(P + F) | 4P; in fp32 none | wP | 8P | 4P | |
    | 1 | w(P + F) | 4P/W | wP | 8P/W | 4P/W | wB |
    | 2 | w(P + F) | 4P/W | wP/W | 8P/W | 4P/W | |
    | 3 | w(P + F)/W | 4P/W | wP/W | 8P/W | 4P/W | wB |

    Source: arXiv:1910.02054, section 5 and figure 1, where the masters are counted with the optimiser, with what
    DeepSpeed 0.19 does otherwise: masters are a copy in fp32 too, at stages 1 to 3; gradients are accumulated in the
    precision of the computation, and at stage 2 those of whole weights, however little of one a process owns; a bucket
    of B elements (P, up to 5e8) serves to reduce them; weights of up to 1e5 elements stay whole at stage 3. With
    ``offload_optimizer`` fp32 gradients of 4P/W are kept too, and at stages 1 and 2 room for the largest weight, twice,
    and for wP/W weights on their way back.

    Not in it is what a pass or a step needs while it lasts: activations, the bucket of stage 2, weights that stage 3
    has gathered (up to ``stage3_max_live_parameters``), fp32 gradients in the step (4P/W; 4P at stage 0 in bf16).

    Args:
        sizes: Of the model; without trained weights it is a frozen one.
        settings: The engine's; ``Local`` holds what stage 0 in fp32 does.
        world_size: W.
        slots: fp32 numbers that the optimiser keeps for each weight: 2 for Adam, 0 for SGD without momentum.
        averages: How many of the weights there are.

    Returns:
        By kind, in the order of ``KINDS``: the bytes of the process that holds most of it.
    """
    own = _stretch(sizes, settings.stage, world_size)
    plain = settings.stage == 0 and settings.precision == "fp32"

    def placed(count: int) -> Bytes:
        return Bytes(host=count) if settings.offload_optimizer else Bytes(count)

    return {
        "weights": _weights(sizes, settings, world_size),
        "masters": placed(0 if plain else FP32 * own),
        "gradients": _gradients(sizes, settings, world_size, own),
        "optimizer": placed(FP32 * slots * own),
        "average": placed(FP32 * averages * own),
        "buffers": _buffers(sizes, settings, own),
    }


def _stretch(sizes: Sizes, stage: int, world_size: int) -> int:
    """Trained weights that a process steps."""
    if stage == 0:
        return sum(map(sum, sizes.trained))
    if stage == 3:
        return sum(_ceil(weight, world_size) for group in sizes.trained for weight in group)
    return sum(_even_share(group, world_size) for group in sizes.trained)


def _ceil(count: int, parts: int) -> int:
    return -(-count // parts)


def _even_share(group: Sequence[int], world_size: int) -> int:
    """Stages 1 and 2 fill a group up to an even number for each process."""
    return 2 * _ceil(sum(group), 2 * world_size)


def _touched(group: Sequence[int], world_size: int) -> int:
    """Elements of the weights that the fullest process owns some of. Gradients are kept of whole weights."""
    share, found = _even_share(group, world_size), []
    for rank in range(world_size):
        start, own = 0, 0
        for weight in group:
            if start < (rank + 1) * share and start + weight > rank * share:
                own += weight
            start += weight
        found.append(own)
    return max(found)


def _weights(sizes: Sizes, settings: Zero, world_size: int) -> Bytes:
    width, trained = DTYPES[settings.precision].itemsize, [weight for group in sizes.trained for weight in group]
    every = [*trained, *sizes.frozen]
    if settings.stage < 3:
        return Bytes(width * sum(every))
    limit = zero_option(settings, "param_persistence_threshold")
    whole = width * sum(weight for weight in every if weight <= limit)  # besides the share: not worth a gathering
    share = width * sum(_ceil(weight, world_size) for weight in every)
    if not settings.offload_parameters:
        return Bytes(share if world_size == 1 else whole + share)  # a share that is the whole is not copied
    stays = width * sum(_ceil(weight, world_size) for weight in sizes.frozen if weight <= limit)
    return Bytes(whole + stays, share - stays)


def _gradients(sizes: Sizes, settings: Zero, world_size: int, own: int) -> Bytes:
    trained = sum(map(sum, sizes.trained))
    touched = sum(_touched(group, world_size) for group in sizes.trained)
    accumulated = DTYPES[settings.precision].itemsize * (trained, trained, touched, own)[settings.stage]
    if not settings.offload_optimizer:
        return Bytes(accumulated)
    if settings.stage == 1:  # moved when the step is made
        return Bytes(accumulated, FP32 * own)
    return Bytes(host=accumulated + FP32 * own)


def _buffers(sizes: Sizes, settings: Zero, own: int) -> Bytes:
    trained = [weight for group in sizes.trained for weight in group]
    if settings.stage == 0 or not trained:
        return Bytes()
    width = DTYPES[settings.precision].itemsize
    bucket = 0 if settings.stage == 2 else width * reduce_bucket_size(settings, sum(trained))
    if settings.stage == 3 or not settings.offload_optimizer:
        return Bytes(bucket)
    return Bytes(bucket + width * max(trained), width * (max(trained) + own))

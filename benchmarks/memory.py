"""What a training process holds in tensors, counted, beside what ``rlhf.engines.memory.state_bytes`` works out.

    torchrun --standalone --nproc-per-node 2 benchmarks/memory.py --precision bf16

Trains a small decoder by every stage of ZeRO, whole and by low-rank adapters, with and without offload, and prints a
Markdown table of megabytes, counted / worked out, on the process that holds most. Without a launcher there is one
process. Counted after the first optimiser step (so that the optimiser has its states), when the gradients of the second
are accumulated and no pass is under way. On a CPU what is offloaded stays where it is: "host" says what would go there.

Every storage is counted once, however many tensors look into it. Weights, gradients and states are found where
DeepSpeed's own structures keep them. Buffers are all further storages that Python can reach and that were not there
before the engine: this finds whatever is kept by mistake, which an allocator's total cannot tell from what is needed.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from rlhf.engines.memory import Bytes

STAGES = (0, 1, 2, 3)
PRECISIONS = ("fp32", "bf16")
OFFLOADS = ("none", "optimiser", "optimiser, weights")
WIDTH, LAYERS = 384, 5
"""9.2 M weights. The odd number has the border between two processes run through a weight."""


@dataclass(frozen=True)
class Cell:
    """One way to train: a stage, what is trained, what is offloaded, and the precision."""

    stage: int
    lora: bool
    offload: str
    precision: str


def cells(stages: Iterable[int] = STAGES, precisions: Iterable[str] = PRECISIONS) -> list[Cell]:
    """All of them."""
    return [
        Cell(stage, lora, offload, precision)
        for precision in precisions
        for lora in (False, True)
        for stage in stages
        for offload in OFFLOADS[: {0: 1, 3: 3}.get(stage, 2)]
    ]


def make_model(lora: bool, *, width: int, layers: int) -> nn.Module:
    """A decoder, its vocabulary 4 % of the weights at the default size."""
    from transformers import AutoConfig, AutoModelForCausalLM

    from rlhf.models.lora import LoRA, attach
    from rlhf.models.modules import PolicyModel, seeded

    sizes = {
        "hidden_size": width,
        "intermediate_size": 8 * width // 3,
        "num_hidden_layers": layers,
        "num_attention_heads": 6,
    }
    with seeded(1):
        lm = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", vocab_size=512, **sizes))
    if lora:
        attach(lm, LoRA(rank=16), seed=1, base=None)
    return PolicyModel(lm)


# ------------------------------------------------------------------------------------------------------------ counting


def _flat(value: Any) -> Iterator[Tensor]:
    """The tensors in lists and mappings of them."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _flat(inner)
    elif isinstance(value, list | tuple):
        yield from _flat(getattr(value, "flat_partition", None))
        for inner in value:
            yield from _flat(inner)


def storages(tensors: Iterable[Tensor]) -> dict[int, int]:
    """Bytes of each storage, by its address."""
    found = {}
    for tensor in tensors:
        if tensor.device.type != "meta" and (size := tensor.untyped_storage().nbytes()):
            found[tensor.untyped_storage().data_ptr()] = size
    return found


def reachable() -> list[Tensor]:
    """Every tensor that Python's garbage collector knows. It is asked by type: some objects answer for others."""
    gc.collect()
    return [found for found in gc.get_objects() if issubclass(type(found), Tensor)]


def count(live: Any, average: Any, others: set[int]) -> dict[str, int]:
    """Bytes by kind of what an engine of ``Zero`` holds on this process.

    Args:
        live: The engine.
        average: Of its weights.
        others: Storages that were there before it.
    """
    zero, weights = live.partition.zero, list(live.model.parameters())
    masters = [
        getattr(zero, name, [])
        for name in ("fp32_groups", "single_partition_of_fp32_groups", "fp32_partitioned_groups_flat")
    ]
    gradients = [
        *([p.grad, getattr(p, "grad_accum", None)] for p in (*weights, *_flat(masters))),
        *(
            getattr(zero, name, None)
            for name in ("averaged_gradients", "all_grad_tensors", "grad_partitions_flat_buffer")
        ),
        getattr(zero, "accumulated_grads_in_cpu", None),
    ]
    kinds = {
        "weights": [*([p.data, getattr(p, "ds_tensor", None)] for p in weights)],
        "masters": masters,
        "gradients": gradients,
        "optimizer": list(live.partition.inner.state.values()),
        "average": average.shards,
        "buffers": reachable(),
    }
    counted, found = set(others), {}
    for kind, tensors in kinds.items():
        own = {address: size for address, size in storages(_flat(tensors)).items() if address not in counted}
        counted |= own.keys()
        found[kind] = sum(own.values())
    return found


def measure(
    cell: Cell, *, width: int = WIDTH, layers: int = LAYERS
) -> tuple[dict[str, int], dict[str, int], dict[str, Bytes]]:
    """Trains for two steps: bytes counted before the second, after it, and as worked out; of the fullest process."""
    from rlhf import distributed
    from rlhf.algorithms.averaging import EMA
    from rlhf.algorithms.optimizers import AdamW
    from rlhf.engines.memory import Sizes, state_bytes
    from rlhf.engines.zero import Zero
    from rlhf.types import Labelled, LossTerm, Outputs, Sequences, Tally

    def loss(outputs: Outputs, batch: Labelled) -> tuple[list[LossTerm], Tally]:
        assert outputs.logprobs is not None
        return [LossTerm("sft", -outputs.logprobs, batch.mask)], Tally()

    before = reachable()  # kept until the end, so that no address of theirs is given away
    others = set(storages(before))
    offloaded = cell.offload != OFFLOADS[0], cell.offload == OFFLOADS[2]
    settings = Zero(
        stage=cell.stage,  # pyright: ignore[reportArgumentType]
        precision=cell.precision,  # pyright: ignore[reportArgumentType]
        offload_optimizer=offloaded[0],
        offload_parameters=offloaded[1],
    )
    model, optimizer = make_model(cell.lora, width=width, layers=layers), AdamW(lr=1e-4)
    sizes = Sizes.of(model, optimizer)
    live: Any = settings.build(model, optimizer=optimizer, max_grad_norm=1.0)
    average = EMA().build(live.master())
    ids = torch.arange(8 * 16).view(8, 16)
    batch = Labelled(Sequences(ids, torch.ones_like(ids, dtype=torch.bool), 1), torch.ones(8, 15, dtype=torch.bool))
    found = []
    for number in range(2):
        live.accumulate(batch.split(4), loss, {"sft": float(batch.mask.sum())}, want=("logprobs",))
        if number:
            found.append(count(live, average, others))
        live.step()
        average.update(live.master())
    found.append(count(live, average, others))
    live.engine.destroy()
    del before
    fullest = [{kind: max(part[kind] for part in distributed.gather(own)) for kind in own} for own in found]
    return fullest[0], fullest[1], state_bytes(sizes, settings, distributed.world_size())


# ------------------------------------------------------------------------------------------------------------- table


def row(cell: Cell, counted: Mapping[str, int], worked_out: Mapping[str, Bytes]) -> str:
    """A line of the table: megabytes of each kind, counted / worked out, and the ratio of the sums."""
    trained, parts = "adapters" if cell.lora else "all", []
    for kind, found in worked_out.items():
        of_it = f" {found.host / 1e6:.2f}" if found.device else ""
        place = f" (host{of_it})" if found.host else ""
        parts.append(f"{counted[kind] / 1e6:.2f} / {found.total / 1e6:.2f}{place}")
    ratio = sum(counted.values()) / sum(found.total for found in worked_out.values())
    return f"| {cell.stage} | {trained} | {cell.offload} | {' | '.join(parts)} | {ratio:.3f} |"


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stages", type=int, nargs="+", choices=STAGES, default=STAGES)
    parser.add_argument("--precision", choices=PRECISIONS, default="bf16")
    parser.add_argument("--width", type=int, default=WIDTH, help="a multiple of 12")
    parser.add_argument("--layers", type=int, default=LAYERS)
    options = parser.parse_args()
    from rlhf import distributed
    from rlhf.engines.memory import KINDS

    distributed.start()
    if distributed.is_main():
        print(f"| stage | trained | offload | {' | '.join(KINDS)} | ratio |\n|{'---|' * (4 + len(KINDS))}", flush=True)
    for cell in cells(options.stages, [options.precision]):
        before, _, worked_out = measure(cell, width=options.width, layers=options.layers)
        if distributed.is_main():
            print(row(cell, before, worked_out), flush=True)
    distributed.stop()


if __name__ == "__main__":
    main()

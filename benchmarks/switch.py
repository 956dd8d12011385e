"""What a process holds in tensors while a hybrid engine goes to sampling and back, counted.

    torchrun --standalone --nproc-per-node 2 benchmarks/switch.py --stage 3 --tp 2

Trains a small decoder for one step, switches, samples and switches back, and prints a Markdown table of megabytes, of
the process that holds most: everything that training holds, the copy that is sampled from, its packed matrices, the
cache of keys and values, and the most that was under way at a time. Every storage is counted once; the last column is
all that Python can reach and that was not there before the engine, packed matrices included: nothing is left out.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

WIDTH, LAYERS, VOCABULARY = 384, 5, 512
COLUMNS = ("training", "copy", "packed", "cache", "under way", "all")


def storages(tensors: Iterable[Tensor]) -> dict[int, int]:
    """Bytes of each storage, by its address; packed matrices have none that can be asked for."""
    return {
        found.untyped_storage().data_ptr(): found.untyped_storage().nbytes()
        for found in tensors
        if found.layout == torch.strided and found.device.type != "meta"
    }


def reachable() -> list[Tensor]:
    """Every tensor that Python's garbage collector knows."""
    gc.collect()
    return [found for found in gc.get_objects() if issubclass(type(found), Tensor)]


class Counter:
    """Counts what was not there when it was made, of the hybrid engine ``live``."""

    def __init__(self) -> None:
        self.before = reachable()  # kept, so that no address of theirs is given away
        self.others = set(storages(self.before))
        self.live: Any = None

    def count(self) -> dict[str, int]:
        """Bytes by column."""
        inference = self.live.inference
        figures = inference.figures()
        copy = sum(storages(inference.weights.values()).values())
        packed = 0 if inference.decoder is None else inference.decoder.packed_bytes
        cache = 0 if inference.cache is None else inference.cache.bytes
        every = {address: size for address, size in storages(reachable()).items() if address not in self.others}
        total = sum(every.values()) + packed
        under_way = int(figures.get("switch/peak_mb", 0) * 1e6)
        training = total - copy - packed - cache
        return dict(zip(COLUMNS, (training, copy, packed, cache, under_way, total), strict=True))


def measure(*, stage: int, tp: int, keep: bool, width: int = WIDTH, layers: int = LAYERS) -> dict[str, dict[str, int]]:
    """Bytes at each moment, on the process that holds most.

    Args:
        stage: Of ZeRO.
        tp: Processes that sample together.
        keep: Whether copy and cache stay while the policy is trained.
        width: Of the decoder.
        layers: Of the decoder.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    from rlhf import distributed
    from rlhf.algorithms.optimizers import AdamW
    from rlhf.engines.hybrid import Hybrid
    from rlhf.engines.inference.tensor_parallel import TensorParallel
    from rlhf.engines.zero import Zero
    from rlhf.models.modules import PolicyModel, seeded
    from rlhf.types import Labelled, LossTerm, Outputs, Sequences, Tally

    def loss(outputs: Outputs, batch: Labelled) -> tuple[list[LossTerm], Tally]:
        assert outputs.logprobs is not None
        return [LossTerm("sft", -outputs.logprobs, batch.mask)], Tally()

    counter = Counter()
    sizes = {"hidden_size": width, "intermediate_size": 8 * width // 3, "num_hidden_layers": layers}
    with seeded(1):
        config = AutoConfig.for_model("llama", vocab_size=VOCABULARY, num_attention_heads=6, **sizes)
        model = PolicyModel(AutoModelForCausalLM.from_config(config))
    engine = Hybrid(
        train=Zero(stage=stage),  # pyright: ignore[reportArgumentType]
        inference=TensorParallel(tp=tp, keep_cache=keep, keep_weights=keep, bucket_mib=1.0),
    )
    live: Any = engine.build(model, optimizer=AdamW(lr=1e-4), max_grad_norm=1.0)
    counter.live = live
    ids = torch.arange(8 * 16).view(8, 16)
    batch = Labelled(Sequences(ids, torch.ones_like(ids, dtype=torch.bool), 1), torch.ones(8, 15, dtype=torch.bool))

    def train() -> None:
        live.accumulate(batch.split(4), loss, {"sft": float(batch.mask.sum())}, want=("logprobs",))
        live.step()

    moments: dict[str, dict[str, int]] = {}
    train()
    moments["trained a step"] = counter.count()
    live.eval()
    moments["switched to sampling"] = counter.count()
    _sample(live)
    moments["sampled"] = counter.count()
    live.train()
    moments["switched back"] = counter.count()
    train()
    moments["trained another step"] = counter.count()
    live.training.engine.destroy()
    gathered = distributed.gather(moments)
    return {name: max((part[name] for part in gathered), key=lambda found: found["all"]) for name in moments}


def _sample(live: Any) -> None:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    from rlhf.engines.inference import Sampling
    from rlhf.types import Prompts

    words = {f"w{number}": number for number in range(VOCABULARY)}
    backend = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="w0", pad_token="w1")
    prompts = Prompts([[5] * 32 for _ in range(16)], [""] * 16, [""] * 16)
    live.generate(prompts, Sampling(max_new_tokens=32), tokenizer, seed=0, counters=range(16), stop_ids=[])


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stage", type=int, choices=(0, 1, 2, 3), default=3)
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--width", type=int, default=WIDTH, help="a multiple of 12")
    parser.add_argument("--layers", type=int, default=LAYERS)
    options = parser.parse_args()
    from rlhf import distributed

    distributed.start()
    if distributed.is_main():
        print(f"| moment | kept | {' | '.join(COLUMNS)} |\n|{'---|' * (2 + len(COLUMNS))}", flush=True)
    for keep in (True, False):
        found = measure(stage=options.stage, tp=options.tp, keep=keep, width=options.width, layers=options.layers)
        for moment, counted in found.items():
            if distributed.is_main():
                cells = " | ".join(f"{counted[name] / 1e6:.2f}" for name in COLUMNS)
                print(f"| {moment} | {'all' if keep else 'nothing'} | {cells} |", flush=True)
    distributed.stop()


if __name__ == "__main__":
    main()

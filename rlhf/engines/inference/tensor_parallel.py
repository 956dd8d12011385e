"""``TensorParallel``: a policy's weights divided over processes that answer the same prompts together."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

import torch
import torch.distributed as dist
from torch import Tensor

from rlhf import distributed
from rlhf.engines.inference.cache import BLOCK, KVCache
from rlhf.engines.inference.collectives import Collectives
from rlhf.engines.inference.decoder import Decoder
from rlhf.engines.inference.families import spec_of
from rlhf.engines.inference.responses import OnTokens, Request, Responses
from rlhf.engines.inference.scheduler import Scheduler, blocks_needed
from rlhf.engines.inference.shards import check_weights
from rlhf.engines.inference.specs import DecoderSpec, Unsupported
from rlhf.engines.reshard import Held, Resharder
from rlhf.errors import UserError, require
from rlhf.interfaces import Inference, LiveInference
from rlhf.types import Rollout

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from rlhf.engines.weights import Delta

logger = logging.getLogger(__name__)

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class LiveTensorParallel(LiveInference):
    """One policy's decoder on this process.

    Args:
        settings: How it runs.
        spec: Of the policy.
    """

    def __init__(self, settings: TensorParallel, spec: DecoderSpec) -> None:
        self.settings, self.spec = settings, spec
        world, rank = distributed.world_size(), distributed.rank()
        self.collectives = Collectives(_group(settings.tp) if settings.tp > 1 else None)
        self.resharder = Resharder(
            spec,
            ranks=[number % settings.tp for number in range(world)],
            tp=settings.tp,
            process=rank,
            bucket_bytes=int(settings.bucket_mib * 2**20),
        )
        self.weights: dict[str, Tensor] = {}
        self.decoder: Decoder | None = None
        self.cache: KVCache | None = None
        self.found: dict[str, float] = {}

    def refresh(self, held: Mapping[str, Held], deltas: Iterable[Delta]) -> None:
        if not self.weights:
            own = held[f"{self.spec.names.embedding}.weight"].flat
            dtype = own.dtype if self.settings.precision is None else DTYPES[self.settings.precision]
            self.weights = {
                name: torch.zeros(tensor.shape, dtype=dtype, device=own.device)
                for name, tensor in self.resharder.plan.items()
            }
        self.resharder.fill(self.weights, held)
        self._merge(deltas)
        self.decoder = Decoder(self.spec, self.weights, self.collectives)
        if self.settings.pack:
            self.decoder.pack()
        self._add("switch/received_mb", self.resharder.received / 1e6)
        self._most("switch/peak_mb", self.resharder.peak / 1e6)
        own = sum(tensor.nbytes for tensor in self.weights.values())
        self._most("memory/inference_weights_gb", (own + self.decoder.packed_bytes) / 1e9)

    @torch.no_grad()
    def _merge(self, deltas: Iterable[Delta]) -> None:
        """Adds low-rank changes to this copy of the weights, which has just been made anew: the base stays as it is."""
        changes = {delta.weight: delta for delta in deltas}
        for name, tensor in self.resharder.plan.items():
            for piece in tensor.pieces:
                if (delta := changes.get(piece.parameter)) is not None and piece.columns is not None:
                    change = delta.b[slice(*piece.rows)].float() @ delta.a[:, slice(*piece.columns)].float()
                    target = self.weights[name][piece.at : piece.at + len(change)]
                    target.copy_(target.float().add_(change, alpha=delta.scale))

    def respond(self, request: Request, *, on_tokens: OnTokens | None = None) -> Rollout:
        assert self.decoder is not None, "refresh comes first"
        responses = Responses(request, self.spec.vocab_size, self._embedding.device)
        cache, self.cache = self._cache(request), None
        scheduler = Scheduler(self.decoder, cache, responses, on_tokens=on_tokens)
        scheduler.run()
        self.cache = cache  # that of a call which did not end has rows nobody will ask for
        self._add("rollout/decoder_calls", scheduler.calls)
        self._add("rollout/gave_way", scheduler.gave_way)
        self._most("memory/kv_cache_gb", cache.bytes / 1e9)
        return responses.rollout()

    def check(self, request: Request) -> None:
        least, limit = blocks_needed(request, BLOCK)[0], self._most_blocks()
        if limit is not None and least > limit:
            raise UserError(
                f"engine.inference.cache_gib: {self.settings.cache_gib} holds {limit * BLOCK} positions, and one "
                f"prompt with its response may need {least * BLOCK}; raise it, or lower max_new_tokens"
            )

    @property
    def _embedding(self) -> Tensor:
        return self.weights["embedding.weight"]

    def _most_blocks(self) -> int | None:
        if self.settings.cache_gib is None:
            return None
        budget = int(self.settings.cache_gib * 2**30)
        return KVCache.blocks_within(self.spec, budget, tp=self.settings.tp, dtype=self._embedding.dtype)

    def _cache(self, request: Request) -> KVCache:
        """The cache of the last call, or a larger one, within the budget."""
        assert self.decoder is not None
        wanted, limit = blocks_needed(request, BLOCK)[1], self._most_blocks()
        wanted = wanted if limit is None else min(wanted, limit)
        if self.cache is not None and self.cache.blocks >= wanted:
            return self.cache
        self.cache = None  # gone before its successor is there
        return self.decoder.cache(wanted)

    def release(self) -> None:
        if not self.settings.keep_cache:
            self.cache = None
        if not self.settings.keep_weights:
            self.weights, self.decoder = {}, None

    def figures(self) -> dict[str, float]:
        found, self.found = self.found, {}
        return found

    def _add(self, name: str, value: float) -> None:
        self.found[name] = self.found.get(name, 0.0) + value

    def _most(self, name: str, value: float) -> None:
        self.found[name] = max(self.found.get(name, 0.0), value)


@functools.cache
def _group(tp: int) -> dist.ProcessGroup:
    """The processes that this one answers with. All of them have to be asked for, by every process, once."""
    world, rank = distributed.world_size(), distributed.rank()
    groups = [dist.new_group(list(range(first, first + tp))) for first in range(0, world, tp)]
    return cast(dist.ProcessGroup, groups[rank // tp])


@dataclass(frozen=True, kw_only=True)
class TensorParallel(Inference):
    """Continuous batching on a decoder whose matrices are divided over ``tp`` processes.

    Covers GPT-2, OPT, GPT-NeoX, Llama, Mistral, Qwen 2 and 3, Phi, Gemma 2 and 3; another architecture, or a variant
    of these that cannot be expressed, is sampled by its Hugging Face module, and the log says so.
    Source of the division: arXiv:1909.08053, section 3; of the batching: Yu et al. 2022, "Orca", section 4.

    Args:
        tp: Processes that hold one copy of the weights together; the run's processes are groups of so many, which
            divide the prompts.
        precision: Of weights and cache; null: that in which the policy computes.
        cache_gib: Memory for keys and values on each process, GiB; rows wait, or give way and are read again, where it
            is too little. Null: what all rows need that are decoded at once (``sampling.max_rows``).
        keep_cache: Whether the cache stays allocated while the policy is trained.
        keep_weights: Whether the copy of the weights does.
        pack: Copy matrices once more, into the layout that a CPU multiplies few rows by fastest; memory for speed.
        bucket_mib: Most that a process sends and receives at a time while weights travel, MiB.
    """

    tp: int = 1
    precision: Literal["fp32", "bf16"] | None = None
    cache_gib: float | None = None
    keep_cache: bool = True
    keep_weights: bool = True
    pack: bool = True
    bucket_mib: float = 64.0

    def __post_init__(self) -> None:
        require(at_least=1, tp=self.tp)
        require(above=0, cache_gib=self.cache_gib, bucket_mib=self.bucket_mib)

    @property
    def ways(self) -> int:
        return self.tp

    def build(self, lm: PreTrainedModel) -> LiveInference | None:
        try:
            spec = spec_of(lm.config)
            state = {name.replace(".base_layer.", "."): tensor for name, tensor in lm.state_dict().items()}
            check_weights(spec, {name: tensor for name, tensor in state.items() if ".lora_" not in name})
            return LiveTensorParallel(self, spec)
        except Unsupported as reason:
            logger.warning("The policy is sampled by its Hugging Face module, not by %s: %s", self, reason)
            return None

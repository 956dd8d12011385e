"""``Zero``: DeepSpeed's data-parallel training, with weights, gradients and optimiser states parted over processes.

Every process runs the same loop on the same batch; here the rows are divided, each process computes its share, and
what comes back is that of the whole batch, the same on all. So nothing outside an engine counts processes.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

import torch
from torch import Tensor, nn

from rlhf import distributed
from rlhf.engines import deepspeed_config, frozen, recomputation
from rlhf.engines.devices import moved
from rlhf.engines.diagnosis import TrainingPass, training_mode
from rlhf.engines.inference.responses import Request
from rlhf.engines.inference.rollouts import answered_together
from rlhf.engines.loss_scale import LossScale
from rlhf.engines.partitions import partition
from rlhf.engines.shares import fields, join_outputs, share
from rlhf.engines.weights import model_state
from rlhf.errors import NonFiniteError, UserError
from rlhf.interfaces import Engine, LiveEngine, LossFn, Optimizer, Schedule
from rlhf.types import Outputs, Prompts, Rollout, Selectable, Tally

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from rlhf.engines.inference.sampling import Sampling
    from rlhf.models.modules import PolicyModel

M = TypeVar("M", bound=Selectable)

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class ZeroEngine(LiveEngine):
    """One model in the hands of DeepSpeed on every process of the run."""

    def __init__(
        self,
        settings: Zero,
        model: nn.Module,
        optimizer: Optimizer | None,
        schedule: Schedule | None,
        total_steps: int,
        max_grad_norm: float | None,
    ) -> None:
        self.settings, self.model = settings, model
        self.schedule, self.total_steps, self.max_grad_norm = schedule, total_steps, max_grad_norm
        self.steps = 0
        self.substitutes: Sequence[Tensor] | None = None
        """Fragments that the model works with in the place of its own; see :meth:`substituted`."""
        self.types = {name: p.dtype for name, p in model.named_parameters()}
        self.device = distributed.device()
        if optimizer is None:
            model.requires_grad_(False)
        if settings.stage < 3:  # before equal frozen weights are shared, which are there to be on the device once
            model.to(self.device)
        content = frozen.digests(model)
        self.frozen = frozen.fingerprint(content)
        if settings.stage < 3:
            frozen.share(model, content)
        self.partition, self.scale = None, None
        if optimizer is None:
            self._freeze()
            return
        self.blocks = recomputation.blocks(model) if settings.gradient_checkpointing else []
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        inner = optimizer.build(named)
        self.peaks = [group["lr"] for group in inner.param_groups]
        self.norm: float | None = None
        if self._plain:
            inner.register_step_pre_hook(self._clip)
        clip = 0.0 if self._plain else max_grad_norm or 0.0
        self.engine: Any = deepspeed_config.initialize(settings, model, inner, clip=clip)
        if settings.stage in (1, 2):
            self.engine.optimizer.check_grad_overflow = True  # DeepSpeed looks in half precision only
        self.partition = partition(self.engine, dict(named))
        if settings.precision == "fp16":
            self.scale = LossScale(self.engine)
        self.overflow: bool | None = None
        """Whether what was accumulated has overflowed; None until somebody asks."""

    @property
    def _plain(self) -> bool:
        """Whether DeepSpeed leaves the step to the torch optimiser, and so clipping and the norm to us."""
        return self.settings.stage == 0 and self.settings.precision == "fp32"

    def _freeze(self) -> None:
        if self.settings.stage == 3:
            self.engine = deepspeed_config.initialize(self.settings, self.model, None, clip=0.0)
        else:  # nothing to part: ZeRO below stage 3 parts what belongs to training
            self.engine = self.model.to(DTYPES[self.settings.precision])

    # --------------------------------------------------------------------------------------------------------- training

    def accumulate(
        self,
        micro_batches: Iterable[M],
        loss_fn: LossFn[M],
        denominators: Mapping[str, float],
        *,
        want: Sequence[str],
        temperature: float = 1.0,
        dropout: bool = False,
    ) -> Tally:
        tally, trouble = Tally(), None
        # DeepSpeed takes the mean over processes; the denominators are global already.
        world, self.overflow = distributed.world_size(), None
        with training_mode(self.model, dropout), recomputation.recomputed(self.blocks):
            for whole in micro_batches:
                own = share(whole)
                if own is None:
                    self.engine.backward(self._nothing(whole, want, temperature), scale_wrt_gas=False)
                    continue
                own, state = moved(own, self.device), torch.get_rng_state()
                sent = TrainingPass(own, loss_fn, denominators, tuple(want), temperature, dropout, state)
                total, _, metrics = sent.loss(sent.outputs(self.engine))
                if not math.isfinite(total.item()):
                    trouble = trouble or (f"the loss is {total.item()}", sent)
                tally.merge(metrics)
                total = total * world
                self.engine.backward(total if self.scale is None else self.scale.scaled(total), scale_wrt_gas=False)
        return self._of_all(tally, trouble)

    def _nothing(self, whole: Selectable, want: Sequence[str], temperature: float) -> Tensor:
        """A loss of exactly 0: processes must make the same number of passes, as weights are gathered in them."""
        one = moved(whole.select(torch.arange(whole.unit)), self.device)
        outputs = self.engine(one.sequences, temperature=temperature, want=tuple(want), mask=one.mask)
        return sum((value.sum() * 0.0 for value in fields(outputs).values()), torch.zeros((), device=self.device))

    def _of_all(self, tally: Tally, trouble: tuple[str, TrainingPass[Any]] | None) -> Tally:
        """The figures of all processes; an error on all where one has met a loss that is not finite."""
        merged, said = Tally(), None
        for number, (part, text) in enumerate(distributed.gather((tally, trouble and trouble[0]))):
            merged.merge(part)
            if text is not None and said is None:
                said = f"{text} on process {number}"
        if said is not None:
            raise self._not_finite(said, "the loss itself", trouble and trouble[1])
        return merged

    def _not_finite(self, what: str, first: str, sent: TrainingPass[Any] | None = None) -> NonFiniteError:
        return NonFiniteError(
            f"{what} at optimiser step {self.steps + 1}; no weight was changed. First not finite: {first}. Lower the "
            "learning rate, or look for a broken row in the data",
            {"step": self.steps + 1, "first": first, "pass": sent, "model": None},
        )

    def _clip(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Called when all processes' gradients are there and no weight has moved."""
        bound = math.inf if self.max_grad_norm is None else self.max_grad_norm
        self.norm = float(nn.utils.clip_grad_norm_([p for g in optimizer.param_groups for p in g["params"]], bound))
        if not math.isfinite(self.norm):
            raise self._not_finite(f"the gradient's norm is {self.norm}", "the sum of all gradients")

    def overflowed(self) -> bool:
        if self.scale is None:
            return False
        if self.overflow is None:
            self.overflow = self.scale.overflowed()
        return self.overflow

    def skip(self) -> dict[str, float]:
        assert self.scale is not None, "without a loss scale a gradient that is not finite is an error"
        own, value = self.overflowed(), self.scale.value
        if own and self.scale.exhausted:
            raise self._not_finite(
                f"the gradient overflows in fp16 at the smallest loss scale, {value:g} (min_loss_scale)",
                "the sum of all gradients, scaled",
            )
        self.scale.skip(own)
        self.skipped, self.overflow = self.skipped + 1, None
        return {"loss_scale": value}

    def step(self) -> dict[str, float]:
        assert self.partition is not None, "a frozen model makes no steps"
        if self.overflowed():
            return self.skip()
        factor = 1.0 if self.schedule is None else self.schedule.factor(self.steps, self.total_steps)
        for group, peak in zip(self.partition.inner.param_groups, self.peaks, strict=True):
            group["lr"] = peak * factor
        figures = {"lr": self.peaks[0] * factor}
        if self.scale is None:
            self.engine.step()
            norm = self.norm if self._plain else float(self.engine.get_global_grad_norm())
        else:
            figures["loss_scale"], self.overflow = self.scale.value, None
            norm = self.scale.step()
        if getattr(self.engine.optimizer, "overflow", False):
            raise self._not_finite(f"the gradient's norm is {norm}", "the sum of all gradients")
        self.steps += 1
        return {"grad_norm": cast(float, norm), **figures}

    # ------------------------------------------------------------------------------------------------ without gradients

    def evaluate(self, batches: Iterable[M], *, temperature: float = 1.0, want: Sequence[str]) -> Iterator[Outputs]:
        for whole in batches:
            yield self._forward(whole, temperature, want)

    @torch.no_grad()
    def _forward(self, whole: Selectable, temperature: float, want: Sequence[str]) -> Outputs:
        own = share(whole)
        batch = moved(whole.select(torch.arange(whole.unit)) if own is None else own, self.device)
        with training_mode(self.model, False):
            found = fields(self.engine(batch.sequences, temperature=temperature, want=tuple(want), mask=batch.mask))
        parts = distributed.gather({} if own is None else {name: value.cpu() for name, value in found.items()})
        return join_outputs(whole, list(found), parts)

    def generate(
        self,
        prompts: Prompts,
        sampling: Sampling,
        tokenizer: PreTrainedTokenizerBase,
        *,
        seed: int,
        counters: Sequence[int],
        stop_ids: Sequence[int],
    ) -> Rollout:
        from rlhf.engines.inference.sampler import sample

        request = Request(prompts, sampling, tokenizer, seed, counters, stop_ids)
        shares = torch.arange(len(prompts)).tensor_split(distributed.world_size())
        own = shares[distributed.rank()].tolist()
        # Processes must answer equally many: who has one fewer answers one more, which is dropped.
        rows = own if len(own) == len(shares[0]) else [*own, 0]
        together = self._everywhere if self.settings.stage == 3 else None
        own_request, lm = request.select(rows), cast("PolicyModel", self.model).lm
        return answered_together(request, lambda: sample(lm, own_request, all_done=together), len(own), step=self.steps)

    @staticmethod
    def _everywhere(done: bool) -> bool:
        """Whether all processes are done: under stage 3 each forward pass gathers weights, so all make as many."""
        flag = torch.tensor([int(done)])
        torch.distributed.all_reduce(flag, torch.distributed.ReduceOp.MIN)
        return bool(flag.item())

    # ---------------------------------------------------------------------------------------------------------- weights

    def master(self) -> list[Tensor]:
        if self.partition is None:
            return []
        return [self.partition.master(number) for number in range(len(self.partition.names))]

    @contextlib.contextmanager
    def substituted(self, shards: Sequence[Tensor]) -> Iterator[None]:
        assert self.partition is not None, "a frozen model has no weights to put others in the place of"
        numbers = range(len(self.partition.names))
        own = [self.partition.working(number).clone() for number in numbers]
        for number, shard in zip(numbers, shards, strict=True):
            self.partition.put(number, shard)
        self.substitutes = shards
        try:
            yield
        finally:
            self.substitutes = None
            for number, data in zip(numbers, own, strict=True):
                self.partition.restore(number, data)

    def gradient(self) -> list[Tensor]:
        assert self.partition is not None
        found = [self.partition.gradient(number) for number in range(len(self.partition.names))]
        return found if self.scale is None else [fragment / self.scale.value for fragment in found]

    def inner(self, a: Sequence[Tensor], b: Sequence[Tensor]) -> float:
        own = sum(float((x.double() * y.double()).sum()) for x, y in zip(a, b, strict=True))
        return sum(distributed.gather(own)) if self.partition is not None and self.partition.shared else own

    def whole(self, shards: Sequence[Tensor]) -> dict[str, Tensor]:
        assert self.partition is not None
        return {
            name: self.partition.whole(shard, number).cpu()
            for number, (name, shard) in enumerate(zip(self.partition.names, shards, strict=True))
        }

    def cut(self, weights: Mapping[str, Tensor]) -> list[Tensor]:
        assert self.partition is not None
        return [self.partition.cut(weights[name], number) for number, name in enumerate(self.partition.names)]

    def full_state(self) -> dict[str, Tensor]:
        trained = {} if self.partition is None else self.whole(self.substitutes or self.master())
        return model_state(self.model, {name: value.to(self.types[name]) for name, value in trained.items()})

    # ------------------------------------------------------------------------------------------------------ checkpoints

    def state_dict(self) -> dict[str, Any]:
        trained = {} if self.partition is None else self.whole(self.master())
        return {
            "model": model_state(self.model, trained, frozen=False),
            "frozen": self.frozen,
            "optimizer": None if self.partition is None else self.partition.optimizer_state(),
            "steps": self.steps,
            "skipped": self.skipped,
            "loss_scale": {} if self.scale is None else self.scale.state_dict(),
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        frozen.check(self.model, self.frozen, state["frozen"])
        self.steps, self.skipped = state["steps"], state.get("skipped", 0)
        if self.scale is not None:
            self.scale.load_state_dict(state.get("loss_scale", {}))  # none where no loss was scaled
        for name, buffer in self.model.named_buffers():
            if name in state["model"]:
                buffer.copy_(state["model"][name])
        if self.partition is None:
            return
        for number, fragment in enumerate(self.cut(state["model"])):
            self.partition.master(number).copy_(fragment)
            self.partition.put(number, fragment.float())
        self.partition.load_optimizer_state(state["optimizer"])


@dataclass(frozen=True, kw_only=True)
class Zero(Engine):
    """DeepSpeed's ZeRO on any number of processes, started by ``torchrun`` or the deepspeed launcher.

    What a process holds besides activations: stage 0 everything; 1 its share of optimiser states and fp32 weights; 2
    of gradients too; 3 of the weights the model computes with too.   Source: arXiv:1910.02054.

    Args:
        stage: What is parted over processes, 0 to 3.
        precision: In which the model computes; weights are kept and updated in fp32 in any case. With fp16 the loss is
            scaled, and a step whose gradient overflows is skipped and counted; its options are ``config: {fp16: …}``.
        micro_batch_size: Rows a training pass of one process takes at once; null for up to 64. Changes speed and
            memory, never results.
        gradient_checkpointing: Keep only the inputs of a model's blocks for the backward pass, which runs the blocks
            again: less memory, about a third more time, the same results.
        offload_optimizer: Keep optimiser states and fp32 weights in the CPU's memory, and step there.
        offload_parameters: Keep the weights of stage 3 in the CPU's memory between passes.
        config: Further options of DeepSpeed's configuration, as its documentation names them. Those that the settings
            above decide are refused, and so are unknown ones.
    """

    stage: Literal[0, 1, 2, 3] = 2
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    micro_batch_size: int | None = None
    gradient_checkpointing: bool = False
    offload_optimizer: bool = False
    offload_parameters: bool = False
    config: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.micro_batch_size is not None and self.micro_batch_size < 1:
            raise UserError(f"micro_batch_size is {self.micro_batch_size}; must be at least 1, or null")
        if self.offload_optimizer and self.stage == 0:
            raise UserError("offload_optimizer: true with stage 0, which parts nothing; set stage to 1, 2 or 3")
        if self.offload_parameters and self.stage != 3:
            raise UserError(f"offload_parameters: true with stage {self.stage}; only stage 3 parts parameters")
        deepspeed_config.check(self.config)

    @property
    def world_size(self) -> int:
        return distributed.world_size()

    @property
    def rows_at_once(self) -> int:
        return (self.micro_batch_size or 64) * self.world_size

    def build(
        self,
        model: nn.Module,
        *,
        optimizer: Optimizer | None = None,
        schedule: Schedule | None = None,
        total_steps: int = 0,
        max_grad_norm: float | None = None,
    ) -> LiveEngine:
        return ZeroEngine(self, model, optimizer, schedule, total_steps, max_grad_norm)

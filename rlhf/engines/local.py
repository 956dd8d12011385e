"""``Local``: plain torch in one process, without tricks. The reference that other engines are tested against."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch import Tensor, nn

from rlhf.engines import frozen, recomputation
from rlhf.engines.diagnosis import SamplingPass, TrainingPass, training_mode
from rlhf.engines.inference.responses import Request
from rlhf.errors import NonFiniteError, UserError
from rlhf.interfaces import Engine, LiveEngine, LossFn, Optimizer, Schedule
from rlhf.types import Outputs, Prompts, Rollout, Selectable, Tally

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from rlhf.engines.inference.sampling import Sampling
    from rlhf.models.modules import PolicyModel

M = TypeVar("M", bound=Selectable)


class LocalEngine(LiveEngine):
    """One model in this process."""

    def __init__(
        self,
        settings: Local,
        model: nn.Module,
        optimizer: Optimizer | None,
        schedule: Schedule | None,
        total_steps: int,
        max_grad_norm: float | None,
    ) -> None:
        self.settings = settings
        self.model = model
        self.schedule = schedule
        self.total_steps = total_steps
        self.max_grad_norm = max_grad_norm
        self.steps = 0
        self.optimizer: torch.optim.Optimizer | None = None
        self.names: list[str] = []
        self.trained: list[nn.Parameter] = []
        self.passes: list[TrainingPass[Any]] = []
        """What the gradient of the coming step is made of."""
        if optimizer is None:
            model.requires_grad_(False)
        content = frozen.digests(model)
        frozen.share(model, content)
        self.frozen = frozen.fingerprint(content)
        if optimizer is None:
            return
        self.blocks = recomputation.blocks(model) if settings.gradient_checkpointing else []
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        for name, parameter in named:
            if parameter.dtype not in (torch.float32, torch.float64):
                raise UserError(
                    f"weight {name} is {parameter.dtype}: Local keeps no fp32 master weights, and an update of a "
                    "half-precision weight is mostly rounded away; set the policy's dtype to fp32"
                )
        self.names = [name for name, _ in named]
        self.trained = [parameter for _, parameter in named]
        self.optimizer = optimizer.build(named)
        self.peaks = [group["lr"] for group in self.optimizer.param_groups]

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
        tally = Tally()
        with training_mode(self.model, dropout), recomputation.recomputed(self.blocks):
            for batch in micro_batches:
                sent = TrainingPass(
                    batch, loss_fn, denominators, tuple(want), temperature, dropout, torch.get_rng_state()
                )
                self.passes.append(sent)
                total, _, metrics = sent.loss(sent.outputs(self.model))
                if not math.isfinite(total.item()):
                    raise self._not_finite(f"the loss is {total.item()}", [sent], "the loss itself")
                tally.merge(metrics)
                if total.requires_grad:
                    total.backward()
        return tally

    def step(self) -> dict[str, float]:
        assert self.optimizer is not None, "a frozen model makes no steps"
        bound = math.inf if self.max_grad_norm is None else self.max_grad_norm
        norm = float(nn.utils.clip_grad_norm_(self.trained, bound))
        if not math.isfinite(norm):
            raise self._not_finite(f"the gradient's norm is {norm}", self.passes, "the sum of all gradients")
        factor = 1.0 if self.schedule is None else self.schedule.factor(self.steps, self.total_steps)
        for group, peak in zip(self.optimizer.param_groups, self.peaks, strict=True):
            group["lr"] = peak * factor
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.steps += 1
        self.passes.clear()
        return {"grad_norm": norm, "lr": self.peaks[0] * factor}

    def _not_finite(self, what: str, passes: Sequence[TrainingPass[Any]], otherwise: str) -> NonFiniteError:
        """The error of a step that is not made, with the first pass that shows why, or what is known otherwise."""
        self.passes = []
        first, guilty = otherwise, passes[0] if passes else None
        for sent in passes:
            if found := sent.find(self.model):
                first, guilty = found, sent
                break
        self.model.zero_grad(set_to_none=True)
        return NonFiniteError(
            f"{what} at optimiser step {self.steps + 1}; no weight was changed. First not finite: {first}. Lower the "
            "learning rate, or look for a broken row in the data",
            {"step": self.steps + 1, "first": first, "pass": guilty, "model": self.model},
        )

    @torch.no_grad()
    def _forward(self, batch: Selectable, temperature: float, want: Sequence[str]) -> Outputs:
        with training_mode(self.model, False):
            return self.model(batch.sequences, temperature=temperature, want=want, mask=batch.mask)

    def evaluate(self, batches: Iterable[M], *, temperature: float = 1.0, want: Sequence[str]) -> Iterator[Outputs]:
        for batch in batches:
            yield self._forward(batch, temperature, want)

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
        try:
            return sample(cast("PolicyModel", self.model).lm, request)
        except NonFiniteError as error:
            sent = SamplingPass(request)
            first = sent.find(self.model)
            evidence = {"step": self.steps, "first": first, "pass": sent, "model": self.model}
            raise NonFiniteError(f"{error} First not finite: {first}", evidence) from None

    def master(self) -> list[Tensor]:
        return [parameter.detach() for parameter in self.trained]

    @contextlib.contextmanager
    def substituted(self, shards: Sequence[Tensor]) -> Iterator[None]:
        own = [parameter.data for parameter in self.trained]
        try:
            for parameter, shard in zip(self.trained, shards, strict=True):
                parameter.data = shard.to(parameter.dtype)
            yield
        finally:
            for parameter, data in zip(self.trained, own, strict=True):
                parameter.data = data

    def gradient(self) -> list[Tensor]:
        return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in self.trained]

    def inner(self, a: Sequence[Tensor], b: Sequence[Tensor]) -> float:
        return sum(float((x.double() * y.double()).sum()) for x, y in zip(a, b, strict=True))

    def whole(self, shards: Sequence[Tensor]) -> dict[str, Tensor]:
        return dict(zip(self.names, shards, strict=True))

    def cut(self, weights: Mapping[str, Tensor]) -> list[Tensor]:
        return [weights[name] for name in self.names]

    def state_dict(self) -> dict[str, Any]:
        states = None if self.optimizer is None else [self.optimizer.state[parameter] for parameter in self.trained]
        optimizer = None if states is None else dict(zip(self.names, map(dict, states), strict=True))
        model = frozen.trained_state(self.model)
        return {"model": model, "frozen": self.frozen, "optimizer": optimizer, "steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        frozen.check(self.model, self.frozen, state["frozen"])
        frozen.load_trained_state(self.model, state["model"])
        self.steps = state["steps"]
        if self.optimizer is not None:
            for name, parameter in zip(self.names, self.trained, strict=True):
                self.optimizer.state[parameter] = {k: _copied(v) for k, v in state["optimizer"][name].items()}

    def full_state(self) -> dict[str, Tensor]:
        return {name: tensor.detach() for name, tensor in self.model.state_dict().items()}


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


@dataclass(frozen=True, kw_only=True)
class Local(Engine):
    """Plain torch in one process, on the CPU.

    Args:
        micro_batch_size: Rows a training pass takes at once; null for up to 64. Changes speed and memory, never
            results.
        gradient_checkpointing: Keep only the inputs of a model's blocks for the backward pass, which runs the blocks
            again: less memory, about a third more time, the same results.
    """

    micro_batch_size: int | None = None
    gradient_checkpointing: bool = False

    def __post_init__(self) -> None:
        if self.micro_batch_size is not None and self.micro_batch_size < 1:
            raise UserError(f"micro_batch_size is {self.micro_batch_size}; must be at least 1, or null")

    def build(
        self,
        model: nn.Module,
        *,
        optimizer: Optimizer | None = None,
        schedule: Schedule | None = None,
        total_steps: int = 0,
        max_grad_norm: float | None = None,
    ) -> LiveEngine:
        return LocalEngine(self, model, optimizer, schedule, total_steps, max_grad_norm)

"""``Hybrid``: one actor, two modes. An engine trains it; for sampling its weights are brought into another form.

Training mode is where it lives; :meth:`HybridEngine.inference_mode` is the other one. At each switch the weights that
the training computes with are copied into the decoder, bucket by bucket where ZeRO has parted them, adapters merged in
the copy; the trained weights themselves are only read.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch import Tensor, nn

from rlhf import distributed
from rlhf.engines.inference.responses import Request
from rlhf.engines.inference.rollouts import answered_together
from rlhf.engines.inference.tensor_parallel import TensorParallel
from rlhf.engines.local import Local
from rlhf.engines.weights import deltas, held_by
from rlhf.interfaces import Engine, Inference, LiveEngine, LiveInference, LossFn, Optimizer, Schedule
from rlhf.models.modules import PolicyModel
from rlhf.types import Outputs, Prompts, Rollout, Selectable, Tally

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from rlhf.engines.inference.sampling import Sampling

M = TypeVar("M", bound=Selectable)


class HybridEngine(LiveEngine):
    """A policy in the hands of two engines.

    Args:
        training: Has the policy.
        inference: Samples from it. None: it cannot, and ``training`` does.
        ways: How many processes answer the same prompts.
    """

    def __init__(self, training: LiveEngine, inference: LiveInference | None, ways: int) -> None:
        self.training, self.inference, self.ways = training, inference, ways
        self.model = training.model
        self.sampling = False
        """Whether it is in inference mode."""
        self.seconds = 0.0

    # ------------------------------------------------------------------------------------------------------------ modes

    def eval(self) -> None:
        if self.sampling or self.inference is None:
            return
        start = time.perf_counter()
        lm = self._policy.lm
        prefix = "lm."
        held = {
            name.removeprefix(prefix).replace(".base_layer.", "."): part
            for name, part in held_by(self.model).items()
            if name.startswith(prefix) and ".lora_" not in name
        }
        self.inference.refresh(held, deltas(lm))
        self.sampling = True
        self.seconds += time.perf_counter() - start

    def train(self) -> None:
        if self.sampling and self.inference is not None:
            self.sampling = False
            self.inference.release()

    @contextlib.contextmanager
    def inference_mode(self) -> Iterator[None]:
        outer = self.sampling
        try:
            self.eval()
            yield
        finally:
            if not outer:
                self.train()

    @property
    def _policy(self) -> PolicyModel:
        assert isinstance(self.model, PolicyModel)
        return self.model

    # --------------------------------------------------------------------------------------------------------- sampling

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
        inference = self.inference
        if inference is None:
            return self.training.generate(prompts, sampling, tokenizer, seed=seed, counters=counters, stop_ids=stop_ids)
        request = Request(prompts, sampling, tokenizer, seed, counters, stop_ids)
        request.check(self._policy.lm.config)
        groups = distributed.world_size() // self.ways
        group, first = distributed.rank() // self.ways, distributed.rank() % self.ways == 0
        own = torch.arange(len(prompts)).tensor_split(groups)[group].tolist()
        with self.inference_mode():
            inference.check(request)
            return answered_together(
                request,
                lambda: inference.respond(request.select(own)),
                len(own) if first else 0,
                step=self.steps,
            )

    def sampling_figures(self) -> dict[str, float]:
        if self.inference is None:
            return {"rollout/own_module": 1.0}
        found, self.seconds = {"time/switch": self.seconds, **self.inference.figures()}, 0.0
        return found

    # --------------------------------------------------------------------------------------------------------- training

    @property
    def steps(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.training.steps

    @property
    def skipped(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.training.skipped

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
        self.train()
        return self.training.accumulate(
            micro_batches, loss_fn, denominators, want=want, temperature=temperature, dropout=dropout
        )

    def step(self) -> dict[str, float]:
        self.train()
        return self.training.step()

    def overflowed(self) -> bool:
        return self.training.overflowed()

    def skip(self) -> dict[str, float]:
        return self.training.skip()

    def evaluate(self, batches: Iterable[M], *, temperature: float = 1.0, want: Sequence[str]) -> Iterator[Outputs]:
        return self.training.evaluate(batches, temperature=temperature, want=want)

    # ---------------------------------------------------------------------------------------------------------- weights

    def master(self) -> list[Tensor]:
        return self.training.master()

    @contextlib.contextmanager
    def substituted(self, shards: Sequence[Tensor]) -> Iterator[None]:
        self.train()
        with self.training.substituted(shards):
            try:
                yield
            finally:
                self.train()

    def gradient(self) -> list[Tensor]:
        return self.training.gradient()

    def inner(self, a: Sequence[Tensor], b: Sequence[Tensor]) -> float:
        return self.training.inner(a, b)

    def whole(self, shards: Sequence[Tensor]) -> dict[str, Tensor]:
        return self.training.whole(shards)

    def cut(self, weights: Mapping[str, Tensor]) -> list[Tensor]:
        return self.training.cut(weights)

    def full_state(self) -> dict[str, Tensor]:
        return self.training.full_state()

    def state_dict(self) -> dict[str, Any]:
        return self.training.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.train()
        self.training.load_state_dict(state)


@dataclass(frozen=True, kw_only=True)
class Hybrid(Engine):
    """Trains by one engine and samples by another, with one policy.

    Models that are not sampled from (critic, reference, reward model) are the training engine's alone. A policy that
    ``inference`` cannot run is sampled by the training engine too.

    Args:
        train: Trains; ``Local`` or ``Zero``.
        inference: Samples.
    """

    train: Engine = Local()
    inference: Inference = TensorParallel()

    @property
    def micro_batch_size(self) -> int | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.train.micro_batch_size

    @property
    def rows_at_once(self) -> int:
        return self.train.rows_at_once

    @property
    def world_size(self) -> int:
        return self.train.world_size

    def check(self, launched: int) -> list[str]:
        problems = [f"engine.train: {text.partition(': ')[2]}" for text in self.train.check(launched)]
        ways = self.inference.ways
        if not problems and launched % ways:
            problems.append(
                f"engine.inference: {ways} processes answer together (tp), and {launched} were launched; launch a "
                f"multiple of {ways}"
            )
        return problems

    def build(
        self,
        model: nn.Module,
        *,
        optimizer: Optimizer | None = None,
        schedule: Schedule | None = None,
        total_steps: int = 0,
        max_grad_norm: float | None = None,
    ) -> LiveEngine:
        inference, sampled = None, isinstance(model, PolicyModel) and optimizer is not None
        if sampled:
            inference = self.inference.build(cast(PolicyModel, model).lm)  # while the model is whole
        training = self.train.build(
            model, optimizer=optimizer, schedule=schedule, total_steps=total_steps, max_grad_norm=max_grad_norm
        )
        return HybridEngine(training, inference, self.inference.ways) if sampled else training

"""Presets: which engine a stage gets on the machines at hand, worked out from the sizes of its models.

A deployment takes an experiment and answers one with engines (and adapters, where nothing else fits) chosen; all else
stays. Every choice is told with the numbers it was made by.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast

from rlhf import distributed
from rlhf.algorithms.ppo import PPO
from rlhf.deployment.models import Measured, Ruler, activation_bytes, models_of
from rlhf.engines.hybrid import Hybrid
from rlhf.engines.inference.tensor_parallel import TensorParallel
from rlhf.engines.local import Local
from rlhf.engines.memory import state_bytes
from rlhf.engines.zero import DTYPES, Zero
from rlhf.errors import ConfigError, UserError, require, telling
from rlhf.interfaces import Algorithm, Deployment, Engine
from rlhf.models.lora import LoRA
from rlhf.models.policy import Pretrained

GB = 1e9
USED = 0.9
"""Of a device's memory: the rest is the runtime's, and lost between tensors."""
ROWS = (32, 16, 8, 4, 2, 1)
"""Micro-batches that are tried."""
ADAPTERS = LoRA(rank=128, alpha=256.0)
STAGES: tuple[tuple[Literal[0, 1, 2, 3], bool, bool], ...] = (
    (0, False, False),
    (2, False, False),
    (3, False, False),
    (2, True, False),
    (3, True, False),
    (3, True, True),
)
"""ZeRO's stage, and what is offloaded: the optimiser, the weights. By what they cost in time, least first."""


class Option(NamedTuple):
    """A way to run a stage, and what it needs on each device."""

    engine: Engine
    bytes: float
    text: str


@dataclass(frozen=True, kw_only=True)
class _Preset(Deployment):
    """What presets have in common.

    Args:
        device_gib: Memory of a device, GiB; null asks the device (a CPU: the machine's memory over its processes).
        precision: In which models compute; null is bf16 on GPUs and fp32 on CPUs.
        adapters: Whether to train low-rank adapters (rank 128) where the weights themselves cannot be trained.
    """

    device_gib: float | None = None
    precision: Literal["fp32", "bf16"] | None = None
    adapters: bool = True

    def __post_init__(self) -> None:
        require(above=0, device_gib=self.device_gib)

    @property
    def world(self) -> int:
        """Devices that a stage runs on."""
        return 1

    @property
    def near(self) -> int:
        """Devices close enough to sample together."""
        return 1

    @property
    def _precision(self) -> Literal["fp32", "bf16"]:
        if self.precision is not None:
            return self.precision
        return "bf16" if distributed.device().type == "cuda" else "fp32"

    @property
    def _machine(self) -> str:
        return f"{self.world} {'device' if self.world == 1 else 'devices'} of {_gb(self.memory() / USED)}"

    def memory(self) -> float:
        """Bytes of a device that may be used."""
        if self.device_gib is not None:
            return USED * self.device_gib * 2**30
        if distributed.device().type == "cuda":
            import torch

            return USED * torch.cuda.get_device_properties(distributed.device()).total_memory
        return USED * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / self.near

    def choose(self, stages: Mapping[str, Algorithm]) -> tuple[dict[str, Algorithm], list[str]]:
        chosen, ruler = dict(stages), Ruler(stages)
        lines = [f"{type(self).__name__}: {self._machine}, of which {100 * USED:.0f} % are used; {self._precision}"]
        for name, algorithm in stages.items():
            if isinstance(getattr(algorithm, "engine", None), Engine):
                chosen[name], told = self._stage(name, algorithm, ruler)
                lines += told
                if cast(Any, algorithm).engine != Local():
                    lines.append(f"{name}: its own engine is not used")
        return chosen, lines

    def _stage(self, name: str, algorithm: Algorithm, ruler: Ruler) -> tuple[Algorithm, list[str]]:
        tried: list[str] = []
        least: Option | None = None
        for candidate in self._candidates(algorithm):
            with telling(f"stage {name}"):
                models = [ruler(model) for model in models_of(candidate)]
            sizes = ", ".join(_told(model) for model in models)
            for option in self._options(candidate, models):
                if option.bytes <= self.memory():
                    fits = f"{option.text}: {_gb(option.bytes)} a device"
                    why = f"; too large: {'; '.join(tried)}" if tried else ""
                    changed = dataclasses.replace(cast(Any, candidate), engine=option.engine)
                    return changed, [f"{name}: {sizes}", f"{name}: {fits}{why}"]
                tried.append(f"{option.text} {_gb(option.bytes)}")
                least = min(least, option, key=lambda one: one.bytes) if least else option
        assert least is not None
        raise ConfigError(
            f"deployment: stage {name} fits on {self._machine} in no way (with least memory: {least.text}, "
            f"{_gb(least.bytes)}); use more devices or larger ones, a smaller model, or lora"
        )

    def _candidates(self, algorithm: Algorithm) -> Iterator[Algorithm]:
        """The stage as it is, and with adapters where it trains all weights."""
        yield algorithm
        name = "policy" if hasattr(algorithm, "policy") else "model"
        policy = getattr(algorithm, name, None)
        if not self.adapters or not isinstance(policy, Pretrained) or policy.lora is not None:
            return
        changes: dict[str, Any] = {name: dataclasses.replace(policy, lora=ADAPTERS)}
        critic = getattr(algorithm, "critic", None)
        if critic is not None and not critic.shared and critic.path is not None and critic.lora is None:
            changes["critic"] = dataclasses.replace(critic, lora=ADAPTERS)
        yield dataclasses.replace(cast(Any, algorithm), **changes)

    def _options(self, algorithm: Algorithm, models: Sequence[Measured]) -> Iterator[Option]:
        """Ways to run it, the fastest first."""
        for stage, optimizer, weights in STAGES:
            if self.world == 1 and stage in (2, 3) and not optimizer:
                continue  # there is nobody to part anything with
            if optimizer and self.device_gib is None and distributed.device().type == "cpu":
                continue  # a CPU has no other memory
            yield self._option(algorithm, models, stage, optimizer, weights)

    def _option(
        self,
        algorithm: Algorithm,
        models: Sequence[Measured],
        stage: Literal[0, 1, 2, 3],
        optimizer: bool,
        weights: bool,
    ) -> Option:
        zero = Zero(stage=stage, precision=self._precision, offload_optimizer=optimizer, offload_parameters=weights)
        states = 0.0
        for model in models:
            kinds = state_bytes(model.sizes, zero, self.world, averages=model.model.averages)
            states += sum(found.device for found in kinds.values())
        inference, sampling = 0.0, None
        if isinstance(algorithm, PPO):
            inference, sampling = self._sampling(algorithm, models[0], self.memory() - states)
        checkpointing, rows, passes = self._passes(algorithm, models, self.memory() - states - inference)
        train: Engine = dataclasses.replace(zero, micro_batch_size=rows, gradient_checkpointing=checkpointing)
        if stage == 0 and self.world == 1 and distributed.device().type == "cpu" and self._precision == "fp32":
            train = Local(micro_batch_size=rows, gradient_checkpointing=checkpointing)
        engine = train if sampling is None else Hybrid(train=train, inference=sampling)
        offload = " with offload of " + ("optimiser and weights" if weights else "the optimiser") if optimizer else ""
        text = f"{'Local' if isinstance(train, Local) else f'ZeRO-{stage}'}{offload}"
        text += f", {rows} {'row' if rows == 1 else 'rows'} at a time"
        text += ", gradient checkpointing" if checkpointing else ""
        text += "" if sampling is None else f", tp {sampling.tp}"
        return Option(engine, states + inference + passes, text)

    def _passes(self, algorithm: Algorithm, models: Sequence[Measured], room: float) -> tuple[bool, int, float]:
        """Whether blocks are run again, rows at a time, and their bytes: as many as fit, without it where eight do."""
        tokens = cast(Any, algorithm).data.max_tokens
        batch = getattr(algorithm, "mini_batch_size", None) or cast(Any, algorithm).batch_size
        if isinstance(algorithm, PPO):
            tokens += algorithm.sampling.max_new_tokens
        elif not any(model.model.whole for model in models):
            tokens *= 2  # a pair
        width = DTYPES[self._precision].itemsize
        allowed = [rows for rows in ROWS if batch % (rows * self.world) == 0] or [1]
        trained = [model for model in models if model.trained]

        def need(rows: int, checkpointing: bool) -> float:
            return max(
                rows * activation_bytes(model.shape, tokens, checkpointing=checkpointing, width=width)
                for model in trained
            )

        for checkpointing, least in ((False, min(8, allowed[0])), (True, 1)):
            for rows in allowed:
                if rows >= least and need(rows, checkpointing) <= room:
                    return checkpointing, rows, need(rows, checkpointing)
        return True, allowed[-1], need(allowed[-1], True)

    def _sampling(self, algorithm: PPO, policy: Measured, room: float) -> tuple[float, TensorParallel]:
        """Bytes of copy and cache, and over how many devices they are divided: as few as leave half of the room."""
        width = DTYPES[self._precision].itemsize
        positions = algorithm.data.max_tokens + algorithm.sampling.max_new_tokens
        rows = min(algorithm.sampling.max_rows, max(algorithm.batch_size // self.world, 1))
        ways = [tp for tp in range(1, self.near + 1) if self.near % tp == 0 and policy.shape.heads % tp == 0]
        cache = (
            rows * positions * policy.shape.layers * policy.shape.kv_width * width
        )  # a group's rows, divided among it
        needed = 0.0
        for tp in ways:
            needed = policy.weights * width / tp + cache
            if needed <= room / 2:
                return needed, TensorParallel(tp=tp)
        return needed, TensorParallel(tp=ways[-1])


def _told(model: Measured) -> str:
    size = f"{model.weights / GB:.2f} B" if model.weights >= 1e8 else f"{model.weights / 1e6:.2f} M"
    if not model.trained:
        return f"{model.model.name} {size} (frozen)"
    part = "" if not model.sizes.frozen else f", {100 * model.trained / model.weights:.2g} % of it trained"
    return f"{model.model.name} {size}{part}"


def _gb(count: float) -> str:
    return f"{count / GB:.1f} GB" if count >= GB else f"{count / 1e6:.3g} MB"


def _launched_or(devices: int | None) -> int:
    return distributed.launched() if devices is None else devices


@dataclass(frozen=True, kw_only=True)
class SingleGPU(_Preset):
    """One device: all weights, with offload or adapters where that is too much."""


@dataclass(frozen=True, kw_only=True)
class SingleNode(_Preset):
    """The devices of one machine: ZeRO over all of them, and sampling over as many together as a copy needs.

    Args:
        devices: How many; null: as many as processes were launched.
    """

    devices: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require(at_least=1, devices=self.devices)

    @property
    def world(self) -> int:
        return _launched_or(self.devices)

    @property
    def near(self) -> int:
        return self.world


@dataclass(frozen=True, kw_only=True)
class MultiNode(_Preset):
    """Several machines: ZeRO over all devices, and sampling over those of one machine at most.

    Args:
        nodes: How many machines.
        devices: Of each; null: as many as processes were launched on it.
    """

    nodes: int = 2
    devices: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require(at_least=1, nodes=self.nodes, devices=self.devices)
        if self.devices is None and distributed.launched() % self.nodes:
            raise UserError(
                f"nodes: {self.nodes}, but the number of processes launched is {distributed.launched()}, which they "
                "do not divide; launch as many on each, or set how many devices each has (devices)"
            )

    @property
    def world(self) -> int:
        return self.nodes * self.near

    @property
    def near(self) -> int:
        return distributed.launched() // self.nodes if self.devices is None else self.devices

"""Losses and estimators of published implementations, called by themselves: without a model, a trainer or a cluster.

TRL's losses are methods of trainers: an object is made without its constructor, and given the attributes that the
method reads. verl's are functions of a module whose package wants Ray, Hydra and an older transformers: the module's
file is run with empty stand-ins for what its functions do not use. Nothing of a peer's own text is changed.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import sys
import types
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

VERSIONS = {"trl": "1.16.0", "verl": "0.9.1", "stable-baselines3": "2.9.2"}
"""What the table was made with. verl is installed without its dependencies: it wants transformers below 5.11."""
HINT = "pip install -c constraints.txt -e '.[peers]' && pip install --no-deps verl==0.9.1"


class MissingPeer(ImportError):
    """A peer is not installed, or in another version; the text says which."""


def check_version(name: str) -> None:
    """Raises :class:`MissingPeer` unless the peer is there in the version that the table is about."""
    try:
        found = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        raise MissingPeer(f"{name} is not installed: {HINT}") from None
    if found != VERSIONS[name]:
        raise MissingPeer(f"{name} is {found}, the comparison is with {VERSIONS[name]}: {HINT}")


# -------------------------------------------------------------------------------------------------------------- TRL


class _Accelerator:
    """One process."""

    num_processes = 1
    sync_gradients = True

    def gather(self, x: Tensor) -> Tensor:
        return x

    def reduce(self, x: Tensor, reduction: str) -> Tensor:
        return x


def trl_loss(trainer: str, logprobs: Tensor, inputs: dict[str, Any], **settings: Any) -> Tensor:
    """The scalar that a trainer of TRL minimises on one batch.

    Args:
        trainer: Dotted path of the class below ``trl``.
        logprobs: [B, T] in the place of the model's.
        inputs: What the trainer's own sampling would have put into the batch.
        **settings: Attributes of the trainer that are not those of plain GRPO.
    """
    check_version("trl")
    module, _, name = f"trl.{trainer}".rpartition(".")
    cls = getattr(importlib.import_module(module), name)
    mask = inputs["completion_mask"]

    class Bare(cls):  # a class of our own, so that no other trainer is changed
        def __init__(self) -> None:
            pass

        def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor, None]:
            return logprobs, torch.zeros_like(logprobs), None

    bare = Bare()
    args = SimpleNamespace(delta=settings.pop("delta", None), use_bias_correction_kl=False, steps_per_generation=1)
    plain = {
        "accelerator": _Accelerator(),
        "args": args,
        "aux_loss_enabled": False,
        "beta": 0.0,
        "current_gradient_accumulation_steps": 1,
        "epsilon_low": 0.2,
        "epsilon_high": 0.2,
        "importance_sampling_level": "token",
        "loss_type": "grpo",
        "max_completion_length": mask.shape[1],
        "model": SimpleNamespace(training=True),
        "off_policy_mask_threshold": None,
        "top_entropy_quantile": 1.0,
        "use_vllm": False,
        "_entropy_bonus_enabled": False,
        "_metrics": defaultdict(lambda: defaultdict(list)),
    }
    for attribute, value in {**plain, **settings}.items():
        setattr(bare, attribute, value)
    prompt = torch.zeros(len(mask), 1, dtype=torch.long)
    given = {
        "prompt_ids": prompt,
        "prompt_mask": torch.ones_like(prompt),
        "completion_ids": torch.zeros(mask.shape, dtype=torch.long),
        "num_items_in_batch": mask.sum(),
        **inputs,
    }
    return bare._compute_loss(None, given)


# ------------------------------------------------------------------------------------------------------------- verl


class ActorConfig(SimpleNamespace):
    """Settings of verl's policy losses."""

    def get(self, name: str, default: Any = None) -> Any:
        return getattr(self, name, default)


def actor_config(low: float = 0.2, high: float = 0.2, dual: float = 3.0, **policy_loss: Any) -> ActorConfig:
    """Settings of one of verl's losses, with these clips."""
    names = ("clip_cov_ratio", "clip_cov_lb", "clip_cov_ub", "kl_cov_ratio", "ppo_kl_coef")
    losses = SimpleNamespace(**{name: policy_loss.get(name) for name in names})
    return ActorConfig(
        clip_ratio=low,
        clip_ratio_low=low,
        clip_ratio_high=high,
        clip_ratio_c=dual,
        global_batch_info={},
        policy_loss=losses,
    )


class _Any(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls


class _StandIn(metaclass=_Any):
    """A class for annotations, decorators and imports that no function under comparison uses."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return lambda function: function


def _stand_in(name: str, **contents: Any) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__path__ = []  # so that it may have modules inside
    module.__getattr__ = lambda attribute: _Any.__getattr__(_StandIn, attribute)  # type: ignore[method-assign]
    vars(module).update(contents)
    return module


@contextmanager
def _stood_in(**modules: types.ModuleType) -> Iterator[None]:
    """The modules are found under these names inside; afterwards everything is as it was."""
    names = {name.replace("__", "."): module for name, module in modules.items()}
    before = {name: sys.modules.get(name) for name in names}
    sys.modules.update(names)
    try:
        yield
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


def _run_file(path: Path, name: str) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def verl_modules() -> tuple[types.ModuleType, types.ModuleType]:
    """The modules ``core_algos`` and ``rollout_corr_helper`` of verl, with its own ``torch_functional`` under them."""
    check_version("verl")
    found = importlib.util.find_spec("verl")  # finds the folder, runs nothing
    assert found is not None and found.origin is not None
    root = Path(found.origin).parent
    empty = {
        name: _stand_in(name.replace("__", "."))
        for name in (
            "omegaconf",
            "tensordict",
            "verl",
            "verl__protocol",
            "verl__trainer",
            "verl__trainer__config",
            "verl__trainer__config__algorithm",
            "verl__utils__device",
            "verl__utils__import_utils",
            "verl__workers",
            "verl__workers__config__actor",
        )
    }
    empty["verl__workers__config"] = _stand_in("verl.workers.config", ActorConfig=ActorConfig)
    empty["verl__utils"] = _stand_in("verl.utils")
    vars(empty["verl"])["utils"] = empty["verl__utils"]  # as importing it would
    with _stood_in(**empty):
        functional = _run_file(root / "utils" / "torch_functional.py", "verl.utils.torch_functional")
        vars(empty["verl__utils"])["torch_functional"] = functional
        with _stood_in(verl__utils__torch_functional=functional):
            folder = root / "trainer" / "ppo"
            algorithms = _run_file(folder / "core_algos.py", "verl.trainer.ppo.core_algos")
            corrections = _run_file(folder / "rollout_corr_helper.py", "verl.trainer.ppo.rollout_corr_helper")
    return algorithms, corrections


# ------------------------------------------------------------------------------------------------ Stable-Baselines3


def sb3_gae(rewards: Tensor, values: Tensor, last: Tensor, *, gamma: float, lam: float) -> tuple[Tensor, Tensor]:
    """Advantages and returns [B, T] of whole rows that go on after their end, from Stable-Baselines3's buffer."""
    check_version("stable-baselines3")
    import numpy as np
    from gymnasium import spaces
    from stable_baselines3.common.buffers import RolloutBuffer

    rows, width = rewards.shape
    space = spaces.Box(-1.0, 1.0, (1,))
    buffer = RolloutBuffer(width, space, space, device="cpu", gae_lambda=lam, gamma=gamma, n_envs=rows)
    zeros = np.zeros((rows, 1), dtype=np.float32)
    for t in range(width):
        column = values[:, t].float()
        buffer.add(zeros, zeros, rewards[:, t].float().numpy(), np.full(rows, t == 0), column, torch.zeros(rows))
    buffer.compute_returns_and_advantage(last.float(), np.zeros(rows, dtype=bool))
    return torch.from_numpy(buffer.advantages.T.copy()), torch.from_numpy(buffer.returns.T.copy())

"""fp16: the factor on the loss that keeps small gradients from vanishing, and what becomes of large ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from rlhf import distributed

STATE = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")
"""Numbers of DeepSpeed's scaler that change."""


class LossScale:
    """The loss scale of one fp16 engine: DeepSpeed's scaler, moved after the step, and alike in every stage.

    DeepSpeed itself would scale no loss in stage 0, know no hysteresis there and not say when the scale is at its end;
    in the others it raises the scale before it divides by it, which halves the gradient of that step.

    Args:
        engine: From ``deepspeed.initialize``, with an optimiser.
    """

    def __init__(self, engine: Any) -> None:
        from deepspeed.runtime.fp16.loss_scaler import CreateLossScaler, LossScalerBase

        self.engine = engine
        self.scaler: Any = CreateLossScaler(
            torch.half, engine.loss_scale(), engine.dynamic_loss_scale(), engine.dynamic_loss_scale_args()
        )
        if self._replicated:
            self.zero.loss_scale_config.dynamic_loss_scale = False
        else:
            self.zero.loss_scaler = LossScalerBase(self.value)
        self.zero.loss_scale = self.value

    @property
    def zero(self) -> Any:
        """DeepSpeed's wrapper of the optimiser."""
        return self.engine.optimizer

    @property
    def _replicated(self) -> bool:
        return self.engine.zero_optimization_stage() == 0

    @property
    def value(self) -> float:
        """The factor that gradients carry now."""
        return float(self.scaler.cur_scale)

    @property
    def exhausted(self) -> bool:
        """Whether the scale is at its smallest, so that a further overflow is not for it to mend."""
        scaler = self.scaler
        return scaler.dynamic and scaler.cur_hysteresis <= 1 and scaler.cur_scale <= scaler.min_scale

    def scaled(self, loss: Tensor) -> Tensor:
        """The loss to hand to DeepSpeed's ``backward``, which scales it but in stage 0."""
        return loss * self.value if self._replicated else loss

    def overflowed(self) -> bool:
        """Whether the gradient of all processes is not finite; every process has to ask.

        Asked once all is accumulated: the sum over processes, which DeepSpeed takes in ``step``, is taken here.
        """
        self.engine._running_engine_step = True
        try:
            if self.engine.zero_optimization_partition_gradients():
                self.zero.finalize_gradient_accumulation_boundary()
            else:
                self.engine.allreduce_gradients()
        finally:
            self.engine._running_engine_step = False
        found = self.zero.overflow_checker.check() if self._replicated else self.zero.has_overflow()
        return any(distributed.gather(bool(found)))

    def step(self) -> float:
        """Makes the step after :meth:`overflowed`; the gradient's norm, without the scale."""
        with self._decided(overflow=False):
            self.engine.step()
        norm = float(self.engine.get_global_grad_norm()) / (self.value if self._replicated else 1.0)
        self._update(overflow=False)
        return norm

    def skip(self, own: bool) -> None:
        """Drops the gradient as DeepSpeed does where it finds an overflow; nothing else changes, but perhaps the scale.

        Args:
            own: Whether this model's gradient has overflowed, and not only another's of the same step.
        """
        with self._decided(overflow=True):
            self.engine.step()
        if own:
            self._update(overflow=True)

    def _update(self, overflow: bool) -> None:
        self.scaler.update_scale(overflow)
        self.zero.loss_scale = self.scaler.cur_scale

    @contextmanager
    def _decided(self, overflow: bool) -> Iterator[None]:
        """Inside, DeepSpeed neither sums gradients again nor looks at them."""
        reduces, checker = self.engine.enable_backward_allreduce, self.zero
        if self._replicated:
            checker = self.zero.overflow_checker
        self.engine.enable_backward_allreduce = False
        self.zero.finalize_gradient_accumulation_boundary = lambda: None
        checker.has_overflow = lambda *_, **__: overflow
        try:
            yield
        finally:
            self.engine.enable_backward_allreduce = reduces
            del self.zero.finalize_gradient_accumulation_boundary, checker.has_overflow

    def state_dict(self) -> dict[str, float]:
        """What continues the scale exactly; empty where it is constant."""
        return {name: getattr(self.scaler, name) for name in STATE} if self.scaler.dynamic else {}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Continues from :meth:`state_dict`; a constant scale stays that of the settings."""
        if self.scaler.dynamic:
            for name, value in state.items():
                setattr(self.scaler, name, value)
            self.zero.loss_scale = self.scaler.cur_scale

"""Which checks belong to which kind of component."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlhf import interfaces
from rlhf.testing import building, data, updates

CHECKS: dict[type, Callable[..., Any]] = {
    interfaces.AdvantageEstimator: updates.check_estimator,
    interfaces.PolicyLoss: updates.check_policy_loss,
    interfaces.SamplerCorrection: updates.check_correction,
    interfaces.RolloutFilter: updates.check_filter,
    interfaces.KLController: building.check_controller,
    interfaces.WeightAverage: building.check_average,
    interfaces.Schedule: building.check_schedule,
    interfaces.Optimizer: building.check_optimizer,
    interfaces.ValueHead: building.check_head,
    interfaces.Template: data.check_template,
    interfaces.Blender: data.check_blender,
    interfaces.Source: data.check_source,
    interfaces.RewardModel: data.check_reward,
}
"""By base class; of other kinds only what every component keeps to is checked."""

"""What users may say to DeepSpeed, and what of it our settings decide."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf.engines.deepspeed_config import complete
from rlhf.engines.zero import Zero


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"gradient_clipp1ng": 1.0}, "config.gradient_clipp1ng: DeepSpeed has no such option"),
        ({"steps_per_prnt": 1}, "config.steps_per_prnt: .*did you mean steps_per_print"),
        (
            {"zero_optimization": {"reduce_bucket_sise": 1}},
            "reduce_bucket_sise: .*reduce_bucket_size",
        ),
        ({"zero_optimization": {"stage": 1}}, "config.zero_optimization.stage: is decided by stage"),
        ({"zero_optimization": {"reduce_bucket_size": "big"}}, "config.zero_optimization: "),
        ({"zero_optimization": 3}, "config.zero_optimization: is 3; must be a table"),
        ({"gradient_clipping": 1.0}, "config.gradient_clipping: is decided by max_grad_norm"),
        ({"train_batch_size": 8}, "config.train_batch_size: is decided by batch_size"),
        ({"fp16": {"enabled": True}}, "config.fp16.enabled: is decided by precision"),
        ({"fp16": {"min_loss_scal": 1}}, "config.fp16.min_loss_scal: .*did you mean min_loss_scale"),
        ({"fp16": {"loss_scale_window": 0}}, "config.fp16: .*loss_scale_window must be > 0"),
        ({"fp16": {"hysteresis": 0}}, "config.fp16: hysteresis is 0; must be at least 1"),
        ({"fp16": {"fp16_master_weights_and_grads": True}}, "decided by nothing: weights are kept in fp32"),
    ],
)
def test_unknown_options_and_those_that_a_setting_decides_are_refused(config: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):  # case H1
        Zero(config=config)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"micro_batch_size": 0}, "micro_batch_size is 0"),
        ({"stage": 0, "offload_optimizer": True}, "offload_optimizer: true with stage 0"),
        ({"stage": 2, "offload_parameters": True}, "offload_parameters: true with stage 2"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Zero(**settings)


def test_the_whole_configuration() -> None:
    settings = Zero(stage=3, precision="bf16", config={"zero_optimization": {"reduce_bucket_size": 10}})
    found = complete(settings, clip=0.5, trained=7)
    assert found["zero_optimization"] == {"overlap_comm": False, "reduce_bucket_size": 10, "stage": 3}
    assert found["bf16"] == {"enabled": True} and found["fp16"] == {"enabled": False}
    assert found["gradient_clipping"] == 0.5 and found["managed_gradient_accumulation"] is False
    assert "stage" not in settings.config["zero_optimization"]  # what was given stays as it was


def test_the_buffer_of_gradients_is_no_larger_than_they_are() -> None:
    assert complete(Zero(stage=2), clip=0.0, trained=7)["zero_optimization"]["reduce_bucket_size"] == 7
    assert complete(Zero(stage=2), clip=0.0, trained=10**9)["zero_optimization"]["reduce_bucket_size"] == 5 * 10**8
    chosen = Zero(stage=2, config={"zero_optimization": {"reduce_bucket_size": 9}})
    assert complete(chosen, clip=0.0, trained=7)["zero_optimization"]["reduce_bucket_size"] == 9


def test_the_loss_scale_is_that_of_the_options_given() -> None:
    settings = Zero(precision="fp16", config={"fp16": {"initial_scale_power": 8}})
    found = complete(settings, clip=0.5, trained=7)
    assert found["fp16"] == {"initial_scale_power": 8, "enabled": True} and found["bf16"] == {"enabled": False}

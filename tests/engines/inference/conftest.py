"""A tiny model of each family that samplers are tested on."""

import pytest
from transformers import PreTrainedModel


@pytest.fixture(params=["gpt2", "opt", "llama", "mistral"])
def lm(request: pytest.FixtureRequest) -> PreTrainedModel:
    from sampled import MODELS  # made only where a test asks for them

    return MODELS[request.param]

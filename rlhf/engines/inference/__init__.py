"""Sampling from a language model: the settings, the random numbers and the decoding loop."""

from rlhf.engines.inference.random import uniform
from rlhf.engines.inference.responses import Request
from rlhf.engines.inference.sampler import sample
from rlhf.engines.inference.sampling import Sampling, draw, filter_logits

__all__ = ["Request", "Sampling", "draw", "filter_logits", "sample", "uniform"]

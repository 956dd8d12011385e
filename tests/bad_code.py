"""Functions and classes of a user's own that go wrong: what configs of tests/bad_input name."""

import sys
from dataclasses import dataclass

from rlhf.algorithms.sft import SFT

ROWS = [{"prompt": "a=", "response": "xyz"}]


def nans(prompts, responses):
    return [float("nan")] * len(responses)


def one(prompts, responses):
    return [1.0]


def leaving(prompts, responses):
    sys.exit(0)


def torn_rows():
    yield {"prompt": "a", "response": "b"}
    yield {}["x"]


def leaving_rows():
    sys.exit(0)


def raising(prompts, responses):
    raise KeyError("gold")


def wants_gold(prompts, responses, gold):
    return [0.0] * len(responses)


@dataclass(frozen=True, kw_only=True)
class Unfinished(SFT):
    """A class of one's own."""

    def loss(self, outputs, batch):
        raise NotImplementedError("not yet")

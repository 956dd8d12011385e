"""How often the blocks of a model run in training passes; run in processes by the tests."""

from __future__ import annotations

from typing import Any
from unittest import mock

import zero_runs
from torch import nn

from rlhf.algorithms.optimizers import SGD
from rlhf.engines.recomputation import blocks
from rlhf.engines.zero import Zero, ZeroEngine


class Calls:
    """How often the first block's inner part runs: a hook on the block itself would not see it run again."""

    def __init__(self, model: nn.Module) -> None:
        self.count = 0
        next(iter(blocks(model)[0].children())).register_forward_hook(self._called)

    def _called(self, *_: Any) -> None:
        self.count += 1

    def since(self) -> int:
        found, self.count = self.count, 0
        return found


def counted(kind: str, engine: Zero) -> dict[str, Any]:
    """Two steps by :func:`zero_runs.train`, and how often a block's inner part ran in training passes."""
    honest, passes = ZeroEngine.accumulate, 0

    def accumulate(self: ZeroEngine, *arguments: Any, **settings: Any) -> Any:
        nonlocal passes
        calls = Calls(self.model)
        tally = honest(self, *arguments, **settings)
        passes += calls.since()
        return tally

    with mock.patch.object(ZeroEngine, "accumulate", accumulate):
        found = zero_runs.train(kind, engine, 2, optimizer=SGD(lr=0.1))
    return {"passes": passes, **found}

"""How far an update is, and its figures."""

from types import SimpleNamespace
from typing import Any

import torch

from rlhf.loops.update import Update
from rlhf.types import Tally


def batch(rows: int, tokens: int) -> Any:
    mask = torch.zeros(rows, 5, dtype=torch.bool)
    mask.view(-1)[:tokens] = True
    stands_for = SimpleNamespace(sequences=SimpleNamespace(attention_mask=mask))
    return type("Batch", (), {"__len__": lambda self: rows, **vars(stands_for)})()


def test_steps_add_up():
    metrics = Tally()
    metrics.mean("reward/score", [1.0, 2.0])
    update = Update(SimpleNamespace(metrics=metrics))  # pyright: ignore[reportArgumentType]
    update.add({"step": 1}, batch(3, 7), 0.5)
    update.add({"step": 2}, batch(2, 5), 1.0)
    figures = update.tally().compute()
    assert figures == {
        "reward/score": 1.5,
        "update/steps": 2,
        "update/samples": 5,
        "time/train": 1.5,
        "throughput/train_tokens_per_s": 8,
    }
    assert metrics.compute() == {"reward/score": 1.5}  # asked twice, the experience's are as they were

"""What a stage is going to cost, as far as that is known before it runs; what is not known is None, and said to be."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from functools import singledispatch
from pathlib import Path
from typing import Any, NamedTuple

from rlhf.algorithms.base import Offline
from rlhf.algorithms.ppo import PPO
from rlhf.deployment.models import Ruler, models_of
from rlhf.engines.hybrid import Hybrid
from rlhf.engines.local import Local
from rlhf.engines.memory import state_bytes
from rlhf.engines.zero import Zero
from rlhf.errors import UserError
from rlhf.files import read_json
from rlhf.interfaces import Algorithm
from rlhf.metrics import read_metrics
from rlhf.stages.folder import DONE, RECORD
from rlhf.stages.key import identity
from rlhf.stages.settings import differences

LENGTHS = ("steps", "epochs", "batch_size", "data")
"""Settings by which a stage that learns from data is as long as it is."""


class Work(NamedTuple):
    """What a stage has to do.

    Attributes:
        steps: Optimiser steps; None where they follow from data that have not been read.
        tokens: Sampled tokens at most, evaluations aside; 0 of a stage that samples nothing.
        rounds: Iterations of an on-policy stage; else its steps.
    """

    steps: int | None
    tokens: int | None
    rounds: int | None


@singledispatch
def work(algorithm: Algorithm) -> Work:
    """What a stage has to do. Nothing is known of an algorithm of a new family, until it registers its own."""
    return Work(None, None, None)


@work.register
def _(algorithm: Offline) -> Work:
    return Work(algorithm.steps, 0, algorithm.steps)


@work.register
def _(algorithm: PPO) -> Work:
    steps = algorithm.iterations * algorithm.epochs * -(-algorithm.learnt // algorithm.mini_batch_size)
    attempts = 1 if algorithm.filter is None else algorithm.filter.attempts()
    responses = algorithm.batch_size * attempts + (algorithm.prompts if algorithm.advantage.needs_greedy else 0)
    tokens = 0 if algorithm.replay else algorithm.iterations * responses * algorithm.sampling.max_new_tokens
    return Work(steps, tokens, algorithm.iterations)


def memory(stages: Mapping[str, Algorithm], name: str) -> int | None:
    """Bytes on its device that a stage needs at least: weights, gradients, optimiser and averages; None if not known.

    Passes and sampling need more while they last.
    """
    engine = getattr(stages[name], "engine", None)
    if isinstance(engine, Hybrid):
        engine = engine.train
    settings = Zero(stage=0, precision="fp32") if isinstance(engine, Local) else engine
    if not isinstance(settings, Zero):
        return None
    ruler, found = Ruler(stages), 0
    try:
        for model in models_of(stages[name]):
            sizes = ruler(model).sizes
            kinds = state_bytes(sizes, settings, settings.world_size, averages=model.averages)
            found += sum(kind.device for kind in kinds.values())
    except (UserError, OSError, StopIteration):  # nothing is known of a model before it is loaded
        return None
    return found or None


# ---------------------------------------------------------------------------------------------------------------- time


class Made(NamedTuple):
    """A stage that was made before.

    Attributes:
        settings: Those of its record.
        seconds: It took.
        steps: Optimiser steps in it.
    """

    settings: dict[str, Any]
    seconds: float
    steps: float


def made_before(folders: Sequence[Path], stage: str) -> Iterator[Made]:
    """Finished stages of this name: kept ones, and those in runs.

    Args:
        folders: Of kept stages, or of runs.
        stage: Its name.
    """
    for root in folders:
        for path in (*root.glob(f"{stage}-*/{DONE}"), *root.glob(f"*/{stage}/{DONE}")):
            try:
                done, record = read_json(path), read_json(path.parent / RECORD)
                if "taken_from" not in record or "-" in path.parent.name:
                    yield Made(record["settings"], spent(path.parent, done), done["figures"].get("step", 0))
            except (UserError, OSError, KeyError, TypeError, AttributeError):
                continue  # damaged, or of another version of this program: nothing to learn from


def spent(folder: Path, done: Mapping[str, Any]) -> float:
    """Seconds that a finished stage took: of one that was continued ``done.json`` times the last part alone, but every
    step's line has its own time.
    """
    parts = [f"time/{part}" for part in ("rollout", "score", "train")]
    return max(done["seconds"], sum(line.get(part) or 0.0 for line in read_metrics(folder) for part in parts))


def seconds(algorithm: Algorithm, earlier: Sequence[Made]) -> float | None:
    """How long a stage will take, by the earlier ones that are most like it; None where none is like it."""
    settings = identity(algorithm, seed=0, threads=None)
    alike = [made for made in earlier if made.settings.get("class_path") == settings["class_path"]]
    if not alike:
        return None
    changes = [_changes(made.settings, settings) for made in alike]
    least = min(map(len, changes))
    nearest = [pair for pair in zip(alike, changes, strict=True) if len(pair[1]) == least]
    if (steps := work(algorithm).steps) is not None:
        found = [made.seconds * steps / made.steps for made, _ in nearest if made.steps]
    else:  # as long as one that learns from the same data as often
        found = [made.seconds for made, changed in nearest if not any(c.startswith(LENGTHS) for c in changed)]
    return statistics.median(found) if found else None


def _changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    return [change for change in differences(dict(old), dict(new)) if not change.startswith(("seed:", "threads:"))]


# ---------------------------------------------------------------------------------------------------------- in writing


def told_bytes(count: int | None) -> str:
    """Bytes for people."""
    if count is None:
        return "memory unknown"
    return f"at least {count / 1e9:.1f} GB" if count >= 1e9 else f"at least {count / 1e6:.3g} MB"


def told_work(algorithm: Algorithm) -> str:
    """What a stage has to do, for people."""
    found = work(algorithm)
    steps = f"{found.steps} optimiser steps" if found.steps is not None else "optimiser steps unknown (data not read)"
    if found.tokens is None:
        return f"{steps}, sampled tokens unknown"
    return f"{steps}, up to {found.tokens} sampled tokens" if found.tokens else steps

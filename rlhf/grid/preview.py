"""``--dry_run``: the cells of a grid, which stages they share, and what they will cost as far as that is known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

from rlhf.grid.cells import Cell
from rlhf.grid.ledger import Ledger
from rlhf.grid.plan import Made, made_before, memory, seconds, told_bytes, told_work, work
from rlhf.grid.settings import Grid
from rlhf.interfaces import Algorithm
from rlhf.stages.cache import StageCache


class Stage(NamedTuple):
    """A stage that some cells have alike.

    Attributes:
        name: Its name.
        algorithm: Its settings.
        cells: Those that have it.
        made: Whether it is kept, or finished in one of them.
        bytes: It needs at least; None where that is not known.
        seconds: It will take; None where nothing tells.
    """

    name: str
    algorithm: Algorithm
    cells: list[str]
    made: bool
    bytes: int | None
    seconds: float | None


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=max(1, round(seconds))))


def stages(cells: Sequence[Cell], ledger: Ledger) -> list[Stage]:
    """The different stages of a grid, each once, in the order in which the cells come to them."""
    cache = StageCache(StageCache.meant(cells[0].experiment.stage_cache, Path()))
    places = [cells[0].experiment.directory.parent, *([] if cache.root is None else [cache.root, cache.root.parent])]
    found: dict[str, Stage] = {}
    earlier: dict[str, list[Made]] = {}
    known: dict[str, int | None] = {}
    for cell in cells:
        experiment = cell.experiment.deployed()[0]
        own = ledger.finished(cell.name)
        for name, algorithm in experiment.stages.items():
            key = ledger.keys[cell.name][name]
            mark = f"{name} {cell.name}" if key is None or cache.root is None else f"{name} {key}"
            made = name in own or cache.has(name, key)
            if mark in found:
                found[mark] = found[mark]._replace(cells=[*found[mark].cells, cell.name], made=found[mark].made or made)
                continue
            text = repr((name, experiment.stages))
            if text not in known:  # of another seed, say
                known[text] = memory(experiment.stages, name)
            if name not in earlier:
                earlier[name] = list(made_before(places, name))
            found[mark] = Stage(name, algorithm, [cell.name], made, known[text], seconds(algorithm, earlier[name]))
    return sorted(found.values(), key=lambda stage: list(cells[0].experiment.stages).index(stage.name))


def lines(grid: Grid, cells: Sequence[Cell], ledger: Ledger) -> Iterator[str]:
    """What is said of a grid before it runs."""
    variants = list(dict.fromkeys(cell.variant for cell in cells))
    seeds = list(dict.fromkeys(cell.seed for cell in cells))
    yield (
        f"{grid.name}: {_count(len(cells), 'cell')} in {grid.directory}: {_count(len(variants), 'variant')}, the "
        f"baseline first, with {_count(len(seeds), 'seed')} ({', '.join(map(str, seeds))})"
    )
    yield f"{type(grid.executor).__name__}: {grid.executor.slots} at a time; {grid.executor.describe()}"
    for cell in cells:
        standing = ledger.standing(cell.name)
        error = f": {standing.error.splitlines()[0]}" if standing.error else ""
        yield f"  {cell.name}: {standing.state}{error}"
    found = stages(cells, ledger)
    if cells[0].experiment.stage_cache is None:
        yield "no stage is shared, as stage_cache is null: each cell makes its own"
    groups: dict[tuple[str, int, bool, str, str], list[Stage]] = {}
    for stage in found:
        work, size = ("", "") if stage.made else (told_work(stage.algorithm), told_bytes(stage.bytes))
        groups.setdefault((stage.name, len(stage.cells), stage.made, work, size), []).append(stage)
    for (name, sharers, made, work, size), alike in groups.items():
        who = "for one cell" if sharers == 1 else f"for {sharers} cells"
        each = "" if len(alike) == 1 else " each"
        what = "made before" if made else f"{work}, {_times(alike)}, {size}"
        yield f"{name}: {len(alike)} {who}{each}: {what}"
    yield _total([stage for stage in found if not stage.made], grid)


def _times(alike: Sequence[Stage]) -> str:
    """How long each of some stages takes."""
    known = sorted(stage.seconds for stage in alike if stage.seconds is not None)
    if not known:
        return "time unknown"
    first, last = _clock(known[0]), _clock(known[-1])
    return f"about {first}" if first == last else f"about {first} to {last}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _total(open_stages: Sequence[Stage], grid: Grid) -> str:
    """What is still to be done, with what is not known of it."""
    done = [work(stage.algorithm) for stage in open_stages]
    steps = [found.steps for found in done if found.steps is not None]
    tokens = [found.tokens for found in done if found.tokens is not None]
    text = f"to be made: {_count(len(open_stages), 'stage')}, {sum(steps)} optimiser steps"
    text += f"{_unknown(len(done) - len(steps))}, up to {sum(tokens)} sampled tokens besides evaluations"
    text += _unknown(len(done) - len(tokens))
    times = [stage.seconds for stage in open_stages if stage.seconds is not None]
    if not open_stages:
        return "to be made: nothing"
    if not times:
        return f"{text}; time unknown, as no such stage was made before"
    text += f"; about {_clock(sum(times))}{_unknown(len(open_stages) - len(times))}"
    return f"{text} of work, without loading, for {grid.executor.slots} at a time"


def _unknown(count: int) -> str:
    return f" (and {_count(count, 'stage')} of which it is unknown)" if count else ""

"""From a grid to its cells: every combination that is to be run, as an experiment that has been checked."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rlhf.config import Override, load
from rlhf.errors import ConfigError
from rlhf.experiment import Experiment
from rlhf.grid.axes import Axis, check_axes, holds, labels, named
from rlhf.grid.settings import Grid
from rlhf.stages.cache import StageCache
from rlhf.stages.feasible import infeasible
from rlhf.stages.settings import missing_inputs

OWN = {
    "name": "is that of the cell's folder; rename the choice",
    "output_dir": "is the grid's own setting; set output_dir of the grid",
    "seed": "is the grid's own setting; set seeds of the grid",
}
"""Settings of an experiment that the grid sets, with what is said of a choice that sets them."""
EXPANDED_BY = ("axes", "zip", "only_if", "exclude", "baseline", "variants")
"""What has to be right before there are cells to look at."""
LONGEST = 200
"""Characters of a cell's name, which is that of a folder."""
SHOWN = 3
"""Cells that a message names before it counts the rest."""


class Variant(NamedTuple):
    """A cell, whatever its seed.

    Attributes:
        name: The choices, or what the grid calls it.
        choices: By axis; none for an axis that sets nothing here, or for a variant that the grid names.
        overrides: The settings that make it of the base.
    """

    name: str
    choices: dict[str, str]
    overrides: tuple[Override, ...]


class Cell(NamedTuple):
    """One run of a grid.

    Attributes:
        name: Of its folder.
        variant: Name of what it is a repetition of.
        choices: As :class:`Variant` has them.
        seed: Which repetition it is.
        overrides: As :class:`Variant` has them.
        experiment: What is run.
    """

    name: str
    variant: str
    choices: dict[str, str]
    seed: int
    overrides: tuple[Override, ...]
    experiment: Experiment


# ----------------------------------------------------------------------------------------------------------- expansion


def _plain(text: str) -> str:
    """A text as it can stand in the name of a folder, and on a command line without quotes."""
    return "".join(character if character.isalnum() or character in "=.,-+_" else "_" for character in text)


def combinations(grid: Grid) -> list[dict[str, str]]:
    """The choices of each cell, in order: the last axis varies fastest."""
    axes = {axis.name: axis for axis in grid.read_axes()}
    groups: list[list[dict[str, str]]] = []
    zipped = {name: tuple(group) for group in grid.zip for name in group}
    for name in axes:
        group = zipped.get(name, (name,))
        if name == min(group, key=list(axes).index):  # the first of them stands for all
            lists = [[{member: choice} for choice in axes[member].choices] for member in group]
            groups.append([_joined(parts) for parts in zip(*lists, strict=True)])
    found = [_varying(_joined(parts), grid, axes) for parts in itertools.product(*groups)]
    unique = [choices for index, choices in enumerate(found) if choices not in found[:index]]
    return [choices for choices in unique if not any(holds(one, choices, axes) for one in grid.exclude)]


def _joined(parts: Iterable[Mapping[str, str]]) -> dict[str, str]:
    return {name: choice for part in parts for name, choice in part.items()}


def _varying(choices: dict[str, str], grid: Grid, axes: Mapping[str, Axis]) -> dict[str, str]:
    """The choices without those of axes that vary only where others have certain choices, and these have not."""
    while True:  # an axis that is gone may take others with it
        gone = [
            name for name, condition in grid.only_if.items() if name in choices and not holds(condition, choices, axes)
        ]
        if not gone:
            return choices
        choices = {name: choice for name, choice in choices.items() if name not in gone}


def baseline_choices(grid: Grid) -> dict[str, str]:
    """Those of the baseline; where that is a variant, those that it changes."""
    axes = {axis.name: axis for axis in grid.read_axes()}
    given = grid.baseline if isinstance(grid.baseline, dict) else {}
    chosen = {name: named(axis, given[name]) if name in given else axis.first for name, axis in axes.items()}
    return _varying({name: choice for name, choice in chosen.items() if choice is not None}, grid, axes)


def baseline_name(grid: Grid) -> str:
    """The variant that the others are compared with."""
    return grid.baseline if isinstance(grid.baseline, str) else _variant_name(baseline_choices(grid), grid)


def _variant_name(choices: Mapping[str, str], grid: Grid) -> str:
    short = labels(grid.axes)
    return ",".join(f"{short[name]}={choice}" for name, choice in choices.items()) or "base"


def _changes(choices: Mapping[str, str], axes: Iterable[Axis]) -> Iterator[Override]:
    for axis in axes:
        if choice := choices.get(axis.name):
            for key, value in axis.choices[choice].items():
                yield Override(key, value, f"axes.{axis.name}.{choice}")


def expand(grid: Grid) -> list[Variant]:
    """The cells of a grid without their seeds, the baseline first; of axes in which there is no problem."""
    axes = grid.read_axes()
    everywhere = [Override(key, value, "overrides") for key, value in grid.overrides.items()]
    found = [
        Variant(_variant_name(choices, grid), choices, (*everywhere, *_changes(choices, axes)))
        for choices in combinations(grid)
    ]
    base = tuple(_changes(baseline_choices(grid), axes))
    for name, changes in grid.variants.items():
        own = (Override(key, value, f"variants.{name}") for key, value in changes.items())
        found.append(Variant(name, {}, (*everywhere, *base, *own)))
    chosen = baseline_name(grid)
    return sorted(found, key=lambda variant: variant.name != chosen)


def check_expansion(grid: Grid, variants: Sequence[Variant]) -> list[str]:
    """Problems that a grid's choices have together."""
    axes = {axis.name: axis for axis in grid.read_axes()}
    every = combinations(dataclasses.replace(grid, exclude=[]))
    problems = [
        f"exclude.{index}: no cell has these choices, so that nothing is excluded; mend it, or leave it out"
        for index, condition in enumerate(grid.exclude)
        if not any(holds(condition, choices, axes) for choices in every)
    ]
    own = [{key for key, _, origin in variant.overrides if origin != "overrides"} for variant in variants]
    problems += [
        f"overrides.{key}: every cell sets it by an axis or a variant, so that it changes nothing; leave it out"
        for key in grid.overrides
        if own and all(key in changed for changed in own)
    ]
    every_change = {(change.origin, change.key): None for variant in variants for change in variant.overrides}
    problems += [f"{origin}: {key} {OWN[key]}" for origin, key in every_change if key in OWN]
    folders: dict[str, str] = {}
    for name in (variant.name for variant in variants):
        folder = _plain(name)
        if folder in folders:
            text = f"'{name}' and '{folders[folder]}' would be in one folder, {folder}; rename a choice or variant"
            problems.append(f"axes: {text}")
        folders[folder] = name
        if len(folder) > LONGEST:
            problems.append(f"axes: {name[:40]}… has a name of {len(folder)} characters; give shorter names to choices")
    if isinstance(grid.baseline, dict) and (chosen := baseline_name(grid)) not in [one.name for one in variants]:
        problems.append(f"baseline: {chosen} is not among the cells (zip, exclude); choose another")
    return problems


# --------------------------------------------------------------------------------------------------------- experiments


def cells(grid: Grid) -> list[Cell]:
    """The cells of a grid, each checked as far as an experiment can be before it runs.

    Raises:
        ConfigError: with every problem of every cell; the text says in which.
    """
    own = [*grid.problems(), *check_axes(grid)]
    if any(problem.startswith(EXPANDED_BY) for problem in own):
        raise ConfigError(own)
    variants = expand(grid)
    own += check_expansion(grid, variants)
    found: dict[str, Experiment] = {}
    problems: dict[str, list[str]] = {}
    for variant in variants:
        try:
            found[variant.name] = _experiment(grid, variant)
        except ConfigError as error:
            for problem in error.problems:
                problems.setdefault(problem, []).append(variant.name)
    problems |= _check_experiments(grid, found)
    if own or problems:
        raise ConfigError(own + [_told(problem, names, found, variants) for problem, names in problems.items()])
    return [_cell(grid, variant, found[variant.name], seed) for variant in variants for seed in _seeds(grid, found)]


def _seeds(grid: Grid, found: Mapping[str, Experiment]) -> list[int]:
    return grid.seeds if grid.seeds is not None else [next(iter(found.values())).seed]


def _experiment(grid: Grid, variant: Variant) -> Experiment:
    experiment: Experiment = load(grid.files, variant.overrides, quickly=True)
    cache = StageCache.meant(experiment.stage_cache, Path(grid.output_dir))
    return dataclasses.replace(
        experiment,
        name=_plain(variant.name),
        output_dir=str(grid.directory),
        stage_cache=None if cache is None else str(cache),
        threads=grid.executor.threads if experiment.threads is None else experiment.threads,
    )


def _cell(grid: Grid, variant: Variant, experiment: Experiment, seed: int) -> Cell:
    name = f"{experiment.name},seed={seed}"  # said of a single one too: others may join it
    changes: dict[str, Any] = {"seed": seed}
    if grid.seed_stages is not None:
        changes = {"stage_seeds": {**experiment.stage_seeds, **dict.fromkeys(grid.seed_stages, seed)}}
    experiment = dataclasses.replace(experiment, name=name, **changes)
    return Cell(name, variant.name, variant.choices, seed, variant.overrides, experiment)


def _check_experiments(grid: Grid, found: Mapping[str, Experiment]) -> dict[str, list[str]]:
    """Problems of whole experiments, with the variants that have them."""
    problems: dict[str, list[str]] = {}
    known: dict[str, list[str]] = {}
    for name, experiment in found.items():
        chosen = experiment.deployed()[0]
        key = repr(chosen.stages)
        if key not in known:  # such as another seed's
            missing = [text for stage, one in chosen.stages.items() for text in missing_inputs(one, f"stages.{stage}")]
            known[key] = missing or list(infeasible(chosen.stages, list(chosen.stages)))
        for problem in [*known[key], *grid.check_stages(experiment.stages)]:
            problems.setdefault(problem, []).append(name)
    same: dict[str, str] = {}
    for name, experiment in found.items():
        other = same.setdefault(repr(dataclasses.replace(experiment, name="")), name)
        if other != name:
            text = f"{other} and {name} are the same experiment; leave one out (exclude, only_if), or mend what it sets"
            problems[f"axes: {text}"] = list(found)
    return problems


def _told(problem: str, names: Sequence[str], found: Collection[str], variants: Collection[Variant]) -> str:
    """A problem with the cells that have it, where not all do; ``found`` are those of which more than that is known."""
    if len(names) == len(variants) or (len(names) == len(found) and set(names) == set(found)):
        return problem
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{problem} (in {'; '.join(names[:SHOWN])}{more})"

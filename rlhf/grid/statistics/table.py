"""The table of results, checked, as variants by seeds."""

from __future__ import annotations

import difflib
import importlib.util
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlhf.errors import UserError

if TYPE_CHECKING:
    from pandas import DataFrame

Array = NDArray[np.float64]


def check_installed() -> None:
    """Refuses to begin without the packages of the extra ``grid``."""
    for package in ("pandas", "scipy", "statsmodels"):
        if importlib.util.find_spec(package) is None:
            raise UserError(f"statistics: the package {package} is missing; pip install 'rlhf[grid]'")


class Runs(NamedTuple):
    """Metrics of variants by seeds.

    Attributes:
        variants: V names.
        seeds: S, rising.
        values: [M, S, V] each of M metrics; NaN where a run has none or is not there.
    """

    variants: list[str]
    seeds: list[int]
    values: Array


def by_seed(results: DataFrame, metrics: Sequence[str], variants: Sequence[str] | None = None) -> Runs:
    """The table as variants by seeds.

    Args:
        results: One row per run.
        metrics: The columns.
        variants: Which, in this order; None for all, by name.

    Raises:
        UserError: a column is missing or holds no numbers, a variant is unknown or named twice, or a variant has two
            runs of one seed.
    """
    frame = checked(results, metrics, ["variant"])
    chosen = _chosen(frame, variants)
    frame = frame[frame["variant"].isin(chosen)]
    refuse_twice(frame, ["variant", "seed"])
    seeds, at_seed = np.unique(frame["seed"].to_numpy(), return_inverse=True)
    at_variant = frame["variant"].map({name: index for index, name in enumerate(chosen)}).to_numpy()
    values = np.full((len(metrics), len(seeds), len(chosen)), math.nan)
    values[:, at_seed, at_variant] = frame[[*metrics]].to_numpy(dtype=np.float64).T
    return Runs(chosen, seeds.tolist(), values)


def by_task(
    results: DataFrame, metric: str, task: str | None, variants: Sequence[str] | None = None
) -> dict[str, dict[str, Array]]:
    """A metric's values by variant and task, each in the order of the seeds, without those that are no numbers.

    Args:
        results: One row per run and task.
        metric: The column.
        task: The column that says which task a row is of; None where there is one, called "".
        variants: Which, in this order; None for all, by name.

    Raises:
        UserError: as :func:`by_seed`; and a variant has two runs of one seed in one task.
    """
    columns = ["variant"] if task is None else ["variant", task]
    frame = checked(results, [metric], columns)
    chosen = _chosen(frame, variants)
    frame = frame[frame["variant"].isin(chosen)]
    refuse_twice(frame, [*columns, "seed"])
    tasks = [""] if task is None else sorted(frame[task].unique())
    found: dict[str, dict[str, Array]] = {}
    for variant in chosen:
        own = frame[frame["variant"] == variant].sort_values("seed", kind="stable")
        parts = {name: own if task is None else own[own[task] == name] for name in tasks}
        found[variant] = {name: part[metric].dropna().to_numpy(dtype=np.float64) for name, part in parts.items()}
    return found


def checked(results: DataFrame, metrics: Sequence[str], columns: Sequence[str]) -> Any:
    """A DataFrame of the columns in need: texts as texts, the seed whole, metrics as floats, NaN where not finite."""
    check_installed()
    for column in (*columns, "seed", *metrics):
        if column not in results.columns:
            raise UserError(f"results: no column {column!r}; {_known(column, list(results.columns))}")
    if not len(results):
        raise UserError("results: the table has no rows; run a cell first")
    frame = results[[*dict.fromkeys([*columns, "seed", *metrics])]].copy()
    try:
        values = frame[[*metrics]].astype("float64")
        seeds = frame["seed"].astype("int64")
    except (TypeError, ValueError) as error:
        raise UserError(f"results: {named(metrics)} and seed must be numbers: {error}") from error
    frame[[*metrics]] = values.where(np.isfinite(values))
    frame["seed"] = seeds
    for column in columns:
        frame[column] = frame[column].astype(str)
    return frame


def refuse_twice(frame: Any, columns: Sequence[str]) -> None:
    """Refuses rows that are the same run by these columns."""
    twice = frame[frame.duplicated(list(columns), keep=False)].sort_values(list(columns), kind="stable")
    if len(twice):
        one = ", ".join(f"{column} {twice.iloc[0][column]}" for column in columns)
        raise UserError(f"results: {len(twice)} rows are no runs of their own, first {one}; each needs one row")


def named(names: Iterable[Any]) -> str:
    """Names in a row, for people."""
    return ", ".join(str(name) for name in names)


def _chosen(frame: Any, variants: Sequence[str] | None) -> list[str]:
    known = sorted(frame["variant"].unique())
    if variants is None:
        return known
    for variant in variants:
        if variant not in known:
            raise UserError(f"results: no variant {variant!r}; {_known(variant, known)}")
    if len(set(variants)) < len(variants):
        raise UserError(f"variants: {named(variants)} has one of them twice; name each once")
    return list(variants)


def _known(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, [str(one) for one in known], n=1)
    return (f"did you mean {near[0]!r}? " if near else "") + f"known: {named(known)}"

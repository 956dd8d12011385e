"""Main effects and interactions of crossed axes, over seeds that every cell shares."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from rlhf.errors import UserError, require
from rlhf.grid.statistics.comparisons import holm, settled, t_tests
from rlhf.grid.statistics.table import Array, checked, named

if TYPE_CHECKING:
    from pandas import DataFrame

SIGNS = " × "


class Factorial(NamedTuple):
    """What crossed axes do.

    Attributes:
        effects: A row per contrast: ``term`` (the axis, or the axes of an interaction), ``contrast`` (the choices),
            ``n`` seeds, ``estimate`` and ``low``, ``high`` in the metric's unit, ``p``, ``p_holm`` over all rows,
            ``remark``.
        terms: A row per term, all its contrasts at once: ``term``, ``df``, ``df_error``, ``F``, ``p``, ``p_holm`` over
            all rows, ``remark``.
        remarks: What was left out, and what the table rests on.
    """

    effects: DataFrame
    terms: DataFrame
    remarks: list[str]


class Design(NamedTuple):
    """Runs as seeds by cells.

    Attributes:
        levels: The choices of each axis, by name; the first is what others are compared with.
        seeds: S, rising.
        values: [S, K] the metric; the K cells in the order of the product of the levels, the last axis fastest.
    """

    levels: dict[str, list[str]]
    seeds: list[int]
    values: Array


def effects(
    results: DataFrame,
    metric: str,
    factors: Sequence[str] | Mapping[str, Sequence[str]],
    *,
    method: Literal["repeated", "blocks"] = "repeated",
    order: int = 2,
    confidence: float = 0.95,
) -> Factorial:
    """Main effects and interactions of crossed axes, each with its interval and p-value.

    With y(a, b) a seed's value in a cell and a₀, b₀ the first choices, averaged over the other axes with equal weight:

    - main effect of a:         mean_b [y(a, b) − y(a₀, b)]
    - interaction of a and b:   [y(a, b) − y(a₀, b)] − [y(a, b₀) − y(a₀, b₀)],   and so on for more axes.

    ``repeated`` treats the design as repeated measures of each seed: a contrast is worked out in every seed, and its S
    values are tested by Student's t with S − 1 degrees of freedom; a term by the F of repeated-measures ANOVA
    (statsmodels' ``AnovaRM``), which for two choices is the square of that t. Every effect has its own error, so cells
    may vary as differently as they like, as an unstable variant among stable ones does, and a contrast of two cells is
    what :func:`~rlhf.grid.statistics.comparisons.differences` says. A term of more than one degree of freedom assumes
    sphericity (differences of any two choices vary alike); its contrasts do not. Every seed needs every cell;
    others are left out and told.

    ``blocks`` is ordinary least squares with a mean for each cell and a shift for each seed, y_sk = μ_k + β_s + ε_sk:
    all contrasts share one error with (S − 1)(K − 1) degrees of freedom where nothing is missing. It uses every run and
    is sharper with few seeds, but holds only if ε varies alike in all cells; where it does not, intervals of the
    steady cells are too wide and those of the unsteady ones too narrow. Terms are tested with all others present
    (type III), with equal weights however many runs a cell has.

    Source: Montgomery, Design and Analysis of Experiments: blocks, factorial designs, repeated measures.

    Args:
        results: One row per run.
        metric: The column.
        factors: The axes, by their columns; or the choices that count by axis, the first being what others are
            compared with. Without choices they are in the order of their names.
        method: See above.
        order: Most axes of an interaction among ``effects``; ``terms`` has them all.
        confidence: 1 − α.

    Raises:
        UserError: an axis has fewer than two choices, a cell has no run at all, two rows are the same cell and seed, or
            too few seeds are left.
    """
    require(above=0.0, below=1.0, confidence=confidence)
    require(at_least=1, order=order)
    design, remarks = _design(results, metric, factors)
    if method == "repeated":
        design, left = _complete(design, metric)
        contrasts, terms = _repeated(design, order, confidence)
        remarks += left
    else:
        contrasts, terms = _blocks(design, order, confidence)
        if count := int(np.isnan(design.values).sum()):
            remarks.append(f"{count} of {design.values.size} runs have no number; unbiased only if they fail by chance")
        remarks.append("rests on one variance for all cells")
    for table in (contrasts, terms):
        table.insert(list(table.columns).index("p") + 1, "p_holm", holm(table["p"].to_numpy()))
    return Factorial(contrasts, terms, remarks)


def _complete(design: Design, metric: str) -> tuple[Design, list[str]]:
    """The seeds that have a number in every cell, and the others told."""
    whole = [not np.isnan(row).any() for row in design.values]
    kept = [seed for seed, ok in zip(design.seeds, whole, strict=True) if ok]
    if len(kept) < 2:
        raise UserError(
            f"{metric}: {len(kept)} seeds have a number in every cell, and an effect needs two; run more seeds or the "
            "missing cells, or use method 'blocks'"
        )
    left = named([seed for seed in design.seeds if seed not in kept])
    told = f"left out, as a cell of theirs has no number: seeds {left}; method 'blocks' would use them"
    return Design(design.levels, kept, design.values[whole]), [told] if left else []


def _design(
    results: DataFrame, metric: str, factors: Sequence[str] | Mapping[str, Sequence[str]]
) -> tuple[Design, list[str]]:
    """The table as seeds by cells, and what was left out of it."""
    names = [factors] if isinstance(factors, str) else list(factors)
    frame = checked(results, [metric], names)
    wanted = {name: [str(level) for level in factors[name]] for name in names} if isinstance(factors, Mapping) else {}
    levels = {name: wanted.get(name) or sorted(frame[name].unique()) for name in names}
    for name, choices in levels.items():
        if len(set(choices)) < 2:
            raise UserError(f"factors: {name} has one choice, {named(choices)}, and so no effect; leave it out")
    everything = len(frame)
    for name, choices in levels.items():
        frame = frame[frame[name].isin(choices)]
    others = everything - len(frame)
    remarks = [f"{others} of {everything} runs have other choices and are left out"] if others else []
    doubled = frame[frame.duplicated([*names, "seed"], keep=False)].sort_values([*names, "seed"], kind="stable")
    if len(doubled):
        where = ", ".join(f"{name} {doubled.iloc[0][name]}" for name in names)
        raise UserError(
            f"factors: {len(doubled)} runs share choices and seed with another, first {where}, seed "
            f"{doubled.iloc[0]['seed']}; name every axis that varies, and leave out named variants"
        )
    number = {cell: index for index, cell in enumerate(itertools.product(*levels.values()))}
    seeds, at_seed = np.unique(frame["seed"].to_numpy(), return_inverse=True)
    at_cell = [number[cell] for cell in zip(*(frame[name] for name in names), strict=True)]
    values = np.full((len(seeds), len(number)), math.nan)
    values[at_seed, at_cell] = frame[metric].to_numpy()
    _refuse_empty(names, [cell for cell, index in number.items() if np.isnan(values[:, index]).all()])
    kept = [not np.isnan(row).all() for row in values]
    return Design(levels, seeds[kept].tolist(), values[kept]), remarks


def _refuse_empty(names: Sequence[str], empty: Sequence[tuple[str, ...]]) -> None:
    if empty:
        which = "; ".join(" & ".join(f"{n}={c}" for n, c in zip(names, cell, strict=True)) for cell in empty[:3])
        more = f" and {len(empty) - 3} more" if len(empty) > 3 else ""
        raise UserError(
            f"factors: no run has a number at {which}{more}; effects need every combination. Give the choices that are "
            "crossed, as in {axis: [choice, choice]}, or compare the variants in pairs"
        )


def _terms(levels: Mapping[str, Sequence[str]]) -> list[tuple[str, ...]]:
    names = list(levels)
    return [term for size in range(1, len(names) + 1) for term in itertools.combinations(names, size)]


def weights(levels: Mapping[str, Sequence[str]], term: Sequence[str]) -> Array:
    """[df, K] what each contrast of a term takes of the cells: choice − first choice on its axes, means on others."""
    parts: list[Any] = []
    for name, choices in levels.items():
        count = len(choices)
        against_first = np.hstack([-np.ones((count - 1, 1)), np.eye(count - 1)])
        parts.append(against_first if name in term else np.full((1, count), 1 / count))
    return reduce(np.kron, parts)


def _contrast_names(levels: Mapping[str, Sequence[str]], term: Sequence[str]) -> list[str]:
    parts = [[f"{choice} − {levels[name][0]}" for choice in levels[name][1:]] for name in term]
    bracket = "({})" if len(term) > 1 else "{}"
    return [SIGNS.join(bracket.format(part) for part in combination) for combination in itertools.product(*parts)]


def _heads(design: Design, order: int) -> tuple[list[dict[str, Any]], Array]:
    """Term and name of each contrast that is reported, and [C, K] their weights."""
    heads, rows = [], []
    for term in _terms(design.levels):
        if len(term) <= order:
            heads += [{"term": SIGNS.join(term), "contrast": name} for name in _contrast_names(design.levels, term)]
            rows.append(weights(design.levels, term))
    return heads, np.concatenate(rows)


def _repeated(design: Design, order: int, confidence: float) -> tuple[DataFrame, DataFrame]:
    from pandas import DataFrame, concat
    from statsmodels.stats.anova import AnovaRM

    heads, rows = _heads(design, order)
    samples = [settled(column, design.values) for column in (design.values @ rows.T).T]
    tests = t_tests(samples, confidence=confidence).rename(columns={"mean": "estimate"})
    table = concat([DataFrame(heads), tests[["n", "estimate", "low", "high", "p", "remark"]]], axis=1)

    # plain names, as an axis may be called by a path
    plain = {name: f"factor{index}" for index, name in enumerate(design.levels)}
    cells = list(itertools.product(*design.levels.values()))
    long = [
        {"y": design.values[s, k], "seed": seed, **dict(zip(plain.values(), cell, strict=True))}
        for s, seed in enumerate(design.seeds)
        for k, cell in enumerate(cells)
    ]
    with np.errstate(all="ignore"):
        found = AnovaRM(DataFrame(long), "y", "seed", within=list(plain.values())).fit().anova_table
    terms = []
    for term in _terms(design.levels):
        scores = np.stack(
            [settled(column, design.values) for column in (design.values @ weights(design.levels, term).T).T]
        )
        row = found.loc[":".join(plain[name] for name in term)]
        entry = {"term": SIGNS.join(term), "df": int(row["Num DF"]), "df_error": int(row["Den DF"])}
        if (np.ptp(scores, axis=1) == 0).all():
            told = "every seed gives the same: there is no spread to judge by, so no test"
            terms.append({**entry, "F": math.nan, "p": math.nan, "remark": told})
        else:
            told = (
                "assumes that differences of any two choices vary alike; its contrasts do not"
                if entry["df"] > 1
                else ""
            )
            terms.append({**entry, "F": float(row["F Value"]), "p": float(row["Pr > F"]), "remark": told})
    return table, DataFrame(terms)


def _blocks(design: Design, order: int, confidence: float) -> tuple[DataFrame, DataFrame]:
    from pandas import DataFrame
    from statsmodels.regression.linear_model import OLS

    seeds, cells = design.values.shape
    at_seed, at_cell = (~np.isnan(design.values)).nonzero()
    shifts = np.vstack([np.eye(seeds - 1), -np.ones((1, seeds - 1))])  # they sum to 0, so that μ is a mean over seeds
    matrix = np.hstack([np.eye(cells)[at_cell], shifts[at_seed]])
    if np.linalg.matrix_rank(matrix) < matrix.shape[1] or len(matrix) <= matrix.shape[1]:
        raise UserError(
            f"factors: {len(matrix)} runs of {seeds} seeds cannot tell {cells} cells and the seeds apart with an error "
            "left to judge by; run more seeds"
        )
    fit = OLS(design.values[at_seed, at_cell], matrix).fit()
    scale = float(np.nanmax(np.abs(design.values)))
    exact = float(fit.ssr) <= (1e-12 * scale) ** 2 * len(matrix)
    told = "the cells and seeds explain every run exactly: there is no spread to judge by, so no test" if exact else ""

    def padded(rows: Array) -> Array:
        return np.hstack([rows, np.zeros((len(rows), seeds - 1))])

    heads, rows = _heads(design, order)
    test = fit.t_test(padded(rows))
    bounds = np.atleast_2d(test.conf_int(alpha=1 - confidence))
    columns = {"low": bounds[:, 0], "high": bounds[:, 1], "p": np.atleast_1d(test.pvalue)}
    table = DataFrame(heads)
    table["n"], table["estimate"] = seeds, np.atleast_1d(test.effect)
    for name, column in columns.items():
        table[name] = math.nan if exact else column
    table["remark"] = told
    terms = []
    for term in _terms(design.levels):
        found = fit.f_test(padded(weights(design.levels, term)))
        entry = {"term": SIGNS.join(term), "df": int(found.df_num), "df_error": int(found.df_denom)}
        numbers = (math.nan, math.nan) if exact else (float(np.squeeze(found.fvalue)), float(found.pvalue))
        terms.append({**entry, "F": numbers[0], "p": numbers[1], "remark": told})
    return table, DataFrame(terms)

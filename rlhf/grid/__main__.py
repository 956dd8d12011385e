"""``python -m rlhf.grid --config grid.yaml``: runs an experiment with many settings and seeds."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rlhf import distributed
from rlhf.command import guarded, prepare_environment, settings_parser

if TYPE_CHECKING:
    from rich.console import Console

    from rlhf.grid.cells import Cell
    from rlhf.grid.settings import Grid

_OVERRIDES = """\
any setting of the grid can be changed by its dotted path, and those of all cells by --set:
  --executor.at_once 4                 --seeds '[1, 2, 3]'
  --set stages.ppo.iterations 20       --set stages.ppo.mixture null
The same command continues a grid that was stopped or killed. What is done is not run again.
"""


def _parser() -> argparse.ArgumentParser:
    from rlhf.grid.settings import Grid

    parser = settings_parser(
        Grid,
        prog="python -m rlhf.grid",
        does="Runs an experiment with every combination of some choices, and with several seeds.",
        of="a grid",
        overrides=_OVERRIDES,
    )
    parser.add_argument(
        "--set",
        nargs=2,
        action="append",
        default=[],
        metavar=("KEY", "VALUE"),
        help="a setting of all cells, as on the command line of python -m rlhf.run",
    )
    parser.add_argument(
        "--dry_run", action="store_true", help="print the cells, what they share and what they cost, and stop"
    )
    parser.add_argument("--retry", action="store_true", help="run cells again that failed")
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="run stages anew that the grid's folder holds with other settings or data, and those that use them",
    )
    report = parser.add_mutually_exclusive_group()
    report.add_argument("--no_report", action="store_true", help="leave out tables, figures and the page")
    report.add_argument(
        "--report_only", action="store_true", help="run nothing; write tables, figures and the page of what is finished"
    )
    return parser


def _grid(argv: Sequence[str] | None) -> int:
    from rich.console import Console

    from rlhf.config import split_overrides
    from rlhf.errors import ConfigError
    from rlhf.files import only_one
    from rlhf.grid.cells import cells
    from rlhf.grid.conduct import refuse
    from rlhf.grid.ledger import Ledger
    from rlhf.grid.preview import lines
    from rlhf.grid.settings import load_grid

    options, rest = _parser().parse_known_args(argv)
    if distributed.launched() > 1:
        raise ConfigError("a grid is one process, which starts those of its cells; run it without a launcher")
    grid = load_grid(options.config, split_overrides(rest, vars(options)))
    grid = dataclasses.replace(grid, overrides={**grid.overrides, **dict(options.set)})
    found = cells(grid)
    console = Console(highlight=False, quiet=options.quiet)
    if options.dry_run:
        ledger = Ledger(found, overwrite=options.overwrite)
        for line in lines(grid, found, ledger):
            console.print(line, soft_wrap=True, markup=False)
        refuse({cell.name: ledger.standing(cell.name) for cell in found})
        return 0
    try:
        grid.directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"output_dir: {grid.directory} cannot be made ({error.strerror}); give another") from error
    with only_one(grid.directory):
        if options.report_only:
            return _report_only(grid, found, console)
        return _run(grid, found, console, options)


def _report(
    grid: Grid, found: Sequence[Cell], console: Console, done: Collection[str], errors: Mapping[str, str]
) -> None:
    """Writes what the finished cells came to, and says the main of it."""
    from rlhf.grid.report.write import write_report

    path, sentences = write_report(grid, found, done, errors)
    for line in (*sentences, f"report: {path}"):
        console.print(line, soft_wrap=True, markup=False)


def _report_only(grid: Grid, found: Sequence[Cell], console: Console) -> int:
    from rlhf.grid.conduct import refuse
    from rlhf.grid.ledger import Ledger

    ledger = Ledger(found)
    standing = {cell.name: ledger.standing(cell.name) for cell in found}
    refuse(standing)
    done = [name for name, one in standing.items() if one.state == "done"]
    _report(grid, found, console, done, {name: one.error for name, one in standing.items() if one.state == "failed"})
    return 0


def _run(grid: Grid, found: Sequence[Cell], console: Console, options: argparse.Namespace) -> int:
    from rlhf.config import dump
    from rlhf.errors import UserError
    from rlhf.files import atomic_text
    from rlhf.grid.conduct import Conductor
    from rlhf.grid.ledger import LOG, Ledger
    from rlhf.grid.progress import View, indented
    from rlhf.report.frame import MissingPackage

    ledger = Ledger(found, overwrite=options.overwrite)
    view = View(grid.name, len(found), console, [metric.name for metric in grid.metrics.values()])
    conductor = Conductor(found, ledger, grid.executor.open(), view, retry=options.retry)
    record = dataclasses.replace(grid, base=[str(Path(name).resolve()) for name in grid.files])
    atomic_text(grid.directory / "grid.yaml", dump(record))
    with view:
        outcome = conductor.run()
    done = [name for name, state in outcome.states.items() if state == "done"]
    if done and not options.no_report:
        try:
            _report(grid, found, console, done, outcome.errors)
        except MissingPackage as error:  # the runs are whole without it
            console.print(str(error), soft_wrap=True, markup=False)
    if outcome.errors:
        told = "\n".join(
            f"  {name} ({ledger.folder(name) / LOG}):\n{indented(error)}" for name, error in outcome.errors.items()
        )
        head = f"{len(outcome.errors)} of {len(found)} cells failed; --retry runs them again"
        raise UserError(f"{head}\n{told}")
    if stopped := [name for name, state in outcome.states.items() if state == "stopped"]:
        raise UserError(f"{', '.join(stopped)}: stopped from outside; the same command continues")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; see ``--help``.

    Args:
        argv: Arguments; those of the process where not given.

    Returns:
        Exit code: 0 all cells are done, 1 some failed, 2 wrong config, 130 Ctrl-C, 143 SIGTERM.
    """
    prepare_environment()
    return guarded(lambda: _grid(argv), "rlhf.experiment", "rlhf.config")


if __name__ == "__main__":
    sys.exit(main())

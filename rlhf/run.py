"""``python -m rlhf.run --config exp.yaml``: runs one experiment."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlhf import distributed
from rlhf.command import guarded, prepare_environment, settings_parser

if TYPE_CHECKING:
    from rlhf.experiment import Experiment

_OVERRIDES = """\
any setting can be changed by its dotted path, and a class by its name:
  --seed 2                             --stages.ppo.advantage.lam 0.9
  --stages.ppo.advantage GroupNorm     --stages.ppo.mixture null
Another class starts from its own defaults. `python -m rlhf.components` lists all classes with their settings,
`--print_config` shows every setting of the experiment and runs nothing.
"""


def _parser() -> argparse.ArgumentParser:
    from rlhf.experiment import Experiment

    parser = settings_parser(
        Experiment,
        prog="python -m rlhf.run",
        does="Runs the stages of an experiment, in order.",
        of="an experiment",
        overrides=_OVERRIDES,
    )
    parser.add_argument("--print_config", action="store_true", help="print the config with every setting, and stop")
    parser.add_argument(
        "--overwrite",
        nargs="*",
        metavar="STAGE",
        help="run stages anew whose settings or data differ from the earlier run of this name, and those that use "
        "them; stages that are named here too, changed or not",
    )
    parser.add_argument(
        "--resume",
        default="auto",
        metavar="auto|never|PATH",
        help="auto (the default) continues an interrupted stage from its newest checkpoint, never runs it anew, and "
        "the folder of a checkpoint continues the stage of its name from there",
    )
    parser.add_argument(
        "--no_report",
        action="store_true",
        help="leave out curves.png and report.html, which take seconds; python -m rlhf.report writes the latter later",
    )
    parser.add_argument(
        "--show_batch",
        action="store_true",
        help="print the rows of each stage's first batch, with the tokens that are targets marked, and stop",
    )
    return parser


def _show_batches(experiment: Experiment) -> int:
    from rich.console import Console

    from rlhf.loops.preview import show

    console = Console(highlight=False)
    for stage, found in experiment.previews():
        if isinstance(found, str):
            console.print(f"{stage}: {found}", soft_wrap=True, markup=False)
        else:
            show(stage, found, console)
    return 0


def _run(argv: Sequence[str] | None) -> int:
    from rich.console import Console

    from rlhf.config import dump, load, split_overrides
    from rlhf.report.frame import MissingPackage
    from rlhf.report.page import write_report
    from rlhf.summary import draw_curves, print_summary

    options, rest = _parser().parse_known_args(argv)
    experiment = load(options.config, split_overrides(rest, vars(options)))
    if options.print_config:
        chosen, choices = experiment.deployed()
        print("".join(f"# {line}\n" for line in choices) + dump(chosen), end="")
        return 0
    console = Console(highlight=False, quiet=options.quiet)
    if options.show_batch:
        return _show_batches(experiment)
    overwrite = False if options.overwrite is None else options.overwrite or True
    experiment.run(overwrite=overwrite, resume=options.resume, console=console)
    main = distributed.is_main()
    distributed.stop()
    if not main:
        return 0
    stages = list(experiment.stages)
    print_summary(experiment.directory, stages, console)
    if options.no_report:
        return 0
    curves = draw_curves(experiment.directory, stages)
    missing = "not drawn; pip install matplotlib (the extra rlhf[demo]) draws them"
    console.print(f"curves: {curves or missing}", soft_wrap=True, markup=False)
    try:
        told = f"report: {write_report([experiment.directory])}"
    except MissingPackage as error:  # the run is whole without it
        told = str(error)
    console.print(told, soft_wrap=True, markup=False)
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; see ``--help``.

    Args:
        argv: Arguments; those of the process where not given.

    Returns:
        Exit code: 0 done, 2 wrong config, 1 another mistake, 130 Ctrl-C, 143 SIGTERM.
    """
    prepare_environment()
    return guarded(lambda: _run(argv), "rlhf.experiment", "rlhf.config")


if __name__ == "__main__":
    sys.exit(main())

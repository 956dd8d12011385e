"""``python -m rlhf.report RUN…``: one HTML page with what a run, or several, came to; or two compared in a terminal."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from rlhf.command import guarded, import_heavy, prepare_environment


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m rlhf.report",
        description="Writes one HTML page with what a run came to: curves, answers, tokens, data, settings, and what "
        "to look at. Several runs are drawn over each other. The page opens without a network. With --compare, prints "
        "in what two runs differ, and writes nothing.",
        allow_abbrev=False,
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", type=Path, help="folder of a run, such as runs/quickstart")
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE.html",
        help="where to write; else report.html in the run's folder, or in the folder that holds all the runs",
    )
    parser.add_argument(
        "--compare",
        action="store_true",
        help="print, of exactly two runs A and B, the settings and figures that differ and where the figures part",
    )
    return parser


def _report(argv: Sequence[str] | None) -> int:
    parser = _parser()
    options = parser.parse_args(argv)
    if options.compare:
        return _compare(parser, options.runs, options.output)
    import_heavy("rlhf.report.page")
    from rlhf.report.page import write_report

    print(f"report: {write_report(options.runs, options.output)}")
    return 0


def _compare(parser: argparse.ArgumentParser, runs: list[Path], output: Path | None) -> int:
    if len(runs) != 2:
        parser.error(f"--compare takes two runs, such as --compare runs/a runs/b; {len(runs)} given")
    if output is not None:
        parser.error(
            "--compare prints and writes no page; without it, "
            f"python -m rlhf.report {shlex.join(map(str, runs))} --output page.html draws both over each other"
        )
    import_heavy("rlhf.report.compare_tables")
    from rlhf.report.compare import read_both
    from rlhf.report.compare_tables import print_comparison

    print_comparison(read_both(*runs))
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; see ``--help``.

    Args:
        argv: Arguments; those of the process where not given.

    Returns:
        Exit code: 0 done, 1 a folder is no run or a package is missing, 2 wrong arguments.
    """
    prepare_environment()
    return guarded(lambda: _report(argv))


if __name__ == "__main__":
    sys.exit(main())

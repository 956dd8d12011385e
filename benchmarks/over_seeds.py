"""What the scripts over seeds share: options, experiments, processes, and a table of means with intervals."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")


class Base(NamedTuple):
    """The experiment that a script varies.

    Attributes:
        config: Its file.
        output_dir: Folder of all runs.
        overrides: What is changed in it, key and value.
    """

    config: str
    output_dir: str
    overrides: list[tuple[str, str]]

    def load(self, **changes: str) -> Any:
        """The experiment with further changes; what the user sets wins over them."""
        from rlhf.config import load

        return load([self.config], [*changes.items(), ("output_dir", self.output_dir), *self.overrides])

    def seed(self, seed: int) -> Any:
        """The experiment of a seed."""
        return self.load(seed=str(seed), name=f"seed-{seed}")

    def run_ppo(self, whole: Any, suffix: str, stage: Any) -> Path:
        """Runs a PPO stage of its own beside the run ``whole``; its folder."""
        from rlhf.experiment import Experiment

        arm = Experiment(
            name=f"{whole.name}-{suffix}",
            output_dir=self.output_dir,
            seed=whole.seed,
            threads=whole.threads,
            stages={"ppo": stage},
        )
        arm.run()
        return arm.directory / "ppo"


def add_set(parser: argparse.ArgumentParser) -> None:
    """The option that changes the experiment."""
    parser.add_argument("--set", nargs=2, action="append", default=[], metavar=("KEY", "VALUE"), help="override")


def base(options: argparse.Namespace) -> Base:
    """The experiment that the options name."""
    return Base(options.config, options.output_dir, [(key, value) for key, value in options.set])


def in_processes(function: Callable[..., T], jobs: Sequence[tuple[Any, ...]], processes: int) -> list[T]:
    """What a function of a module answers to each job's arguments, in order, so many at once."""
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        return [job.result() for job in [pool.submit(function, *arguments) for arguments in jobs]]


def main(
    run_seed: Callable[[Base, int, int], dict[str, float]],
    text: str | None,
    *,
    config: str,
    output_dir: str,
    own: tuple[str, int, str],
) -> None:
    """A script that runs ``run_seed(base, seed, value)`` over seeds and prints the table.

    Args:
        run_seed: The figures of a seed.
        text: What the script does.
        config: Default of the option.
        output_dir: Default of the option.
        own: The script's own option, a number: its name, default and help.
    """
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default=config)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--output_dir", default=output_dir)
    parser.add_argument("--processes", type=int, default=2, help="seeds run at once")
    name, default, help = own
    parser.add_argument(f"--{name}", type=int, default=default, help=help)
    add_set(parser)
    options = parser.parse_args()
    Path(options.output_dir).mkdir(parents=True, exist_ok=True)
    jobs = [(base(options), seed, getattr(options, name)) for seed in options.seeds]
    print(table(in_processes(run_seed, jobs, options.processes), options.seeds))


def per(amount: float, unit: float) -> float:
    """The amount in units; NaN where the unit is 0, as the deviation of responses that are all alike."""
    return amount / unit if unit else float("nan")


def table(results: Sequence[dict[str, float]], seeds: Sequence[int]) -> str:
    """Markdown: mean, Student-t 95% interval and every seed's value."""
    import numpy as np
    from scipy import stats

    lines = ["| figure | mean | 95% interval | " + " | ".join(f"seed {seed}" for seed in seeds) + " |"]
    lines.append("|---|" + "---|" * (2 + len(seeds)))
    for name in results[0]:
        values = np.array([result[name] for result in results])
        interval = "n/a"
        if len(values) > 1:
            half = stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)
            interval = f"{values.mean() - half:.2f} … {values.mean() + half:.2f}"
        each = " | ".join(f"{value:.2f}" for value in values)
        lines.append(f"| {name} | {values.mean():.2f} | {interval} | {each} |")
    return "\n".join(lines)

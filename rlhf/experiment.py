"""An experiment: named stages run in order, each reusable on its own."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from rlhf import distributed
from rlhf.data.cache import AUTO
from rlhf.errors import ConfigError, telling
from rlhf.files import only_one
from rlhf.interfaces import Algorithm, Deployment, Engine, MetricSink
from rlhf.stages.settings import references, resolve
from rlhf.user_code import own_errors

if TYPE_CHECKING:
    from rlhf.loops.context import StageContext
    from rlhf.loops.preview import Preview


def _plain(name: str) -> bool:
    """Whether a name can be a folder's: of a run, or of a stage that others refer to by ``@``."""
    return name not in ("", ".", "..") and not any(character in name for character in "/\\@")


def _check_processes(algorithm: Algorithm) -> list[str]:
    """Problems of an engine that is not made for as many processes as a launcher has started."""
    engine = getattr(algorithm, "engine", None)
    return engine.check(distributed.launched()) if isinstance(engine, Engine) else []


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Stages run in order; what an earlier one leaves is ``@stage`` to the later ones.

    Args:
        name: Of the run: its folder is ``<output_dir>/<name>``.
        stages: Algorithms by stage name, run in this order.
        deployment: Chooses the stages' engines by the sizes of models and devices, and says why; null leaves those that
            the stages name.
        seed: Seed of the whole run: weights, data order, sampling.
        stage_seeds: Seeds of single stages, by name, in the place of the run's: what a repetition with another seed
            is not to make again keeps the run's, and is then taken from an earlier run.
        output_dir: Folder of all runs.
        sinks: Where figures go besides ``metrics.jsonl``.
        threads: CPU threads of torch; null leaves its own choice. Sums are cut differently by another number of
            threads, so exact repetition needs the same one.
        cache_dir: Folder in which tokenised data are kept for later runs; null keeps nothing. ``auto`` is the folder
            that the environment variable RLHF_CACHE_DIR names (empty: keeps nothing), else ``~/.cache/rlhf``.
        stage_cache: Folder in which finished stages are kept for other runs; null keeps none. ``auto`` is ``.stages``
            in ``output_dir``, or ``stages`` in the folder that RLHF_CACHE_DIR names (empty: keeps none).
        keep_checkpoints: How many checkpoints of a stage are kept.
        save_in_background: Whether checkpoints are written while the training goes on, from a copy in memory.
    """

    name: str
    stages: dict[str, Algorithm]
    deployment: Deployment | None = None
    seed: int = 1
    stage_seeds: dict[str, int] = field(default_factory=dict)
    output_dir: str = "runs"
    sinks: list[MetricSink] = field(default_factory=list)
    threads: int | None = None
    cache_dir: str | None = AUTO
    stage_cache: str | None = AUTO
    keep_checkpoints: int = 2
    save_in_background: bool = False

    @property
    def directory(self) -> Path:
        """Folder of the run."""
        return Path(self.output_dir) / self.name

    def deployed(self) -> tuple[Experiment, list[str]]:
        """The experiment with the engines that ``deployment`` chooses, and what it says of its choice.

        Raises:
            ConfigError: a stage cannot run there.
        """
        return self._deployed

    @functools.cached_property
    def _deployed(self) -> tuple[Experiment, list[str]]:
        if self.deployment is None:
            return self, []
        stages, lines = self.deployment.choose(self.stages)
        return dataclasses.replace(self, stages=stages, deployment=None), lines

    def check(self) -> list[str]:
        """Problems that can be known before a model loads, each ``"<key>: <problem>; <remedy>"``."""
        problems = self._check(launched=self.deployment is None)
        if problems or self.deployment is None:
            return problems
        try:
            return self.deployed()[0]._check(launched=False)  # it may be planned here, and run elsewhere
        except ConfigError as error:
            return [str(error)]

    @staticmethod
    def _check_launch(deployment: Deployment) -> None:
        if deployment.world != (launched := distributed.launched()):
            raise ConfigError(
                f"deployment: {type(deployment).__name__} plans for {deployment.world} devices, one process each, but "
                f"{launched} were launched; launch as many, or set how many there are (deployment.devices)"
            )

    def _check(self, *, launched: bool) -> list[str]:
        """Problems; ``launched``: also with the number of processes that there are."""
        problems = [] if self.stages else ["stages: there is none; name at least one"]
        if not _plain(self.name):
            problems.append(f"name: is {self.name!r}; must be a plain folder name")
        if self.threads is not None and self.threads < 1:
            problems.append(f"threads: is {self.threads}; must be at least 1, or null")
        if self.keep_checkpoints < 1:
            problems.append(f"keep_checkpoints: is {self.keep_checkpoints}; must be at least 1")
        for stage in self.stage_seeds:
            if stage not in self.stages:
                near = difflib.get_close_matches(stage, self.stages, 1)
                hint = f" Did you mean {near[0]}?" if near else ""
                text = f"no stage is called '{stage}'.{hint} There are: {', '.join(self.stages)}"
                problems.append(f"stage_seeds.{stage}: {text}")
        occupied = next((path for path in (self.directory, *self.directory.parents) if path.is_file()), None)
        if occupied is not None:
            problems.append(f"output_dir: {occupied} is a file, so no folder can be made there; give another")
        known: list[str] = []
        done: list[str] = []
        for stage, algorithm in self.stages.items():
            if not _plain(stage):
                problems.append(f"stages.{stage}: a stage's name must be a plain folder name")
            found = algorithm.check()
            if launched:
                found += _check_processes(algorithm)
            problems += [f"stages.{stage}.{problem}" for problem in found]
            for where, reference in references(algorithm):
                if reference not in known:
                    near = difflib.get_close_matches(reference, known, 1)
                    hint = f"did you mean {near[0]}? " if near else ""
                    if reference.removeprefix("@").split("/")[0] in [*self.stages][len(done) + 1 :]:
                        hint = "that stage comes later, and stages run in the order in which they stand. "
                    there = ", ".join(known) or "none, this is the first stage"
                    text = f"no earlier stage leaves {reference!r}; {hint}Known: {there}"
                    problems.append(f"stages.{stage}.{where}: {text}")
            done.append(stage)
            known += [f"@{stage}" if output == "model" else f"@{stage}/{output}" for output in algorithm.outputs()]
        return problems

    def folders(self) -> dict[str, str]:
        """Where each reference leads."""
        return {
            f"@{stage}" if output == "model" else f"@{stage}/{output}": str(self.directory / stage / output)
            for stage, algorithm in self.stages.items()
            for output in algorithm.outputs()
        }

    def run(
        self,
        *,
        overwrite: bool | Sequence[str] = False,
        resume: str | Path = "auto",
        console: Console | None = None,
    ) -> dict[str, dict[str, float]]:
        """Runs the stages that are not finished yet, and writes the settings to ``config.yaml``.

        A finished stage with the same settings, made from the same data and runs of earlier stages, is kept. One that
        was interrupted goes on from its newest checkpoint. One that another run has left in ``stage_cache`` is taken.

        Args:
            overwrite: Run stages anew that were made with other settings, other data or from other runs of earlier
                stages; without it that is an error. Names of stages run these anew too, whether or not they have
                changed.
            resume: ``auto`` continues an interrupted stage; ``never`` runs it anew; the folder of a checkpoint
                continues the stage of its name from there, or the first unfinished one where there is none.
            console: Where progress is shown; None for the terminal, a quiet one for nowhere.

        Returns:
            The last figures of each stage.

        Raises:
            Stopped: SIGINT or SIGTERM arrived; the stage was saved first, so that running again continues it.
            UserError: the settings have problems, or the folder holds a run of other settings.
        """
        import torch

        from rlhf.stages.run import Run, follow, leading

        if problems := self.check():
            raise ConfigError(problems)
        if self.deployment is not None:
            self._check_launch(self.deployment)
            chosen, lines = self.deployed()
            for line in lines if distributed.is_main() else ():
                (console or Console(highlight=False)).print(line, soft_wrap=True, markup=False)
            return chosen.run(overwrite=overwrite, resume=resume, console=console)
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        distributed.start()
        console = console or Console(highlight=False)
        if not distributed.is_main():
            return follow(self)
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"output_dir: {self.directory} cannot be made ({error.strerror}); give another"
            ) from error
        with only_one(self.directory), leading():
            work = Run(self, console)
            return work.stages(work.plans(overwrite, resume))

    def previews(self) -> Iterator[tuple[str, Preview | str]]:
        """The first batch of every stage, or why there is none; nothing is trained, and no run written.

        The data are prepared, and kept in ``cache_dir``, as the run itself does it.

        Raises:
            UserError: the settings have problems, or data or models cannot be loaded.
        """
        from rlhf.loops.preview import needed, preview

        if problems := self.check():
            raise ConfigError(problems)
        folders = self.folders()
        for name, algorithm in self.stages.items():
            used = [reference for _, reference in references(needed(algorithm))]
            if absent := [reference for reference in used if not Path(folders[reference]).is_dir()]:
                yield name, f"not shown, as {absent[0]} is not there yet; run the experiment up to that stage first"
                continue
            context = self.context(name)
            with telling(f"stage {name}"), own_errors():
                found = preview(resolve(algorithm, folders), context)
            yield name, found

    def context(self, stage: str, console: Console | None = None) -> StageContext:
        """What the loop of a stage is told."""
        from rlhf.loops import StageContext

        return StageContext(
            directory=self.directory / stage,
            seed=self.stage_seed(stage),
            name=stage,
            sinks=self.sinks,
            console=console,
            cache_dir=self.cache_dir,
            keep_checkpoints=self.keep_checkpoints,
            save_in_background=self.save_in_background,
        )

    def given_seed(self, stage: str) -> int:
        """The seed that the settings give a stage: its own, or the run's."""
        return self.stage_seeds.get(stage, self.seed)

    def stage_seed(self, stage: str) -> int:
        """A seed of its own for each stage, which follows from the given one and its name."""
        digest = hashlib.blake2b(f"{self.given_seed(stage)}/{stage}".encode(), digest_size=4).digest()
        return int.from_bytes(digest, "big") >> 1

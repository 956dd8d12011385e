"""Runs an experiment's stages: which are kept, continued, taken from another run or made, and why."""

from __future__ import annotations

import functools
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from rlhf import distributed
from rlhf.errors import ConfigError, UserError, telling
from rlhf.files import atomic_text, read_json
from rlhf.interruption import Stopped, StopRequest
from rlhf.stages.cache import StageCache
from rlhf.stages.feasible import infeasible
from rlhf.stages.folder import (
    DONE,
    RECORD,
    adopt,
    check_algorithm,
    check_checkpoint,
    ending_told,
    new_folder,
    origin,
    read_done,
    write_done,
    write_json,
)
from rlhf.stages.key import Inputs, changed_inputs, identity, stage_key, versions
from rlhf.stages.settings import differences, missing_inputs, resolve, used_stages
from rlhf.user_code import own_errors

if TYPE_CHECKING:
    from rich.console import Console

    from rlhf.experiment import Experiment


@dataclass(frozen=True)
class Plan:
    """What to do with a stage.

    Attributes:
        state: "keep" its folder, "continue" it, or "start" anew.
        why: Why a folder that is there does not stay, for the log.
        fresh: Whether it must be made, and not taken from another run.
        checkpoint: What to continue from, where that is not its own newest.
    """

    state: Literal["keep", "continue", "start"]
    why: tuple[str, ...] = ()
    fresh: bool = False
    checkpoint: Path | None = None


@contextmanager
def _telling(name: str) -> Iterator[None]:
    """An error inside says which stage it is of, and stays what it is."""
    try:
        with telling(f"stage {name}"), own_errors():
            yield
    except Stopped as stopped:
        stopped.args = (f"stage {name}: {stopped}", *stopped.args[1:])
        raise


@contextmanager
def leading() -> Iterator[None]:
    """Inside, the main process tells the others which stages to make; at the end it lets them go."""
    yield
    distributed.broadcast(None)  # where the block has failed they may be anywhere, and the launcher ends them


def _stop_between(experiment: Experiment, name: str, stop: StopRequest) -> None:
    """Ends the run after a stage where any process was asked to stop too late for the stage's own loop."""
    if stop.wanted(distributed.total) and name != list(experiment.stages)[-1]:
        raise stop.stopped(f"stage {name} is finished")


def follow(experiment: Experiment) -> dict[str, dict[str, float]]:
    """Makes, together with the main process, the stages that it decides to make. It alone writes, and speaks.

    Returns:
        The last figures of these stages.
    """
    from rich.console import Console

    from rlhf.loops import build_stage

    console, figures = Console(quiet=True), {}
    while (order := distributed.broadcast(None)) is not None:
        name, checkpoint = cast("tuple[str, Path | None]", order)
        context = experiment.context(name, console)
        with _telling(name):
            stage = build_stage(resolve(experiment.stages[name], experiment.folders()), context)
            if checkpoint is not None:
                stage.resume(checkpoint)
            with context.stop.listening():
                figures[name] = stage.fit()
        _stop_between(experiment, name, context.stop)
    return figures


class Run:
    """One call of an experiment's ``run``.

    Args:
        experiment: What to run; its folder is held by this process.
        console: Where to print.
        inputs: What is known of the stages' inputs; nothing yet where not given.
    """

    def __init__(self, experiment: Experiment, console: Console, inputs: Inputs | None = None) -> None:
        self.experiment, self.console = experiment, console
        self.inputs = inputs or Inputs(experiment.cache_dir)

    @functools.cached_property
    def cache(self) -> StageCache:
        """Where finished stages are kept; plans need it not."""
        return StageCache.at(self.experiment.stage_cache, Path(self.experiment.output_dir))

    def _say(self, text: str) -> None:
        self.console.print(text, soft_wrap=True, markup=False, highlight=False)

    # ---------------------------------------------------------------------------------------------------------- plans

    def plans(self, overwrite: bool | Sequence[str], resume: str | Path) -> dict[str, Plan]:
        """What to do with each stage; settled for all before the first runs.

        Raises:
            UserError: a folder holds something else, and is not to be overwritten; or there is no such stage or
                checkpoint.
        """
        stages = self.experiment.stages
        named = () if isinstance(overwrite, bool) else tuple(overwrite)
        if unknown := [name for name in named if name not in stages]:
            raise UserError(f"--overwrite: no stage is called {unknown[0]!r}; there are {', '.join(stages)}")
        plans: dict[str, Plan] = {}
        for name in stages:
            plans[name] = self._plan(name, plans, named, overwrite is not False, never=resume == "never")
        if resume not in ("auto", "never"):
            self._aim(plans, Path(resume).expanduser())
        return plans

    def _plan(self, name: str, plans: Mapping[str, Plan], named: tuple[str, ...], overwrite: bool, never: bool) -> Plan:
        directory = self.experiment.directory / name
        fresh = name in named or any(plans[used].fresh for used in used_stages(self.experiment.stages[name]))
        if not (directory / RECORD).exists():
            if any(not path.name.startswith(".") for path in directory.glob("*")):
                raise UserError(f"{directory} holds files that no run left; move them, or choose another --name")
            return Plan("start", fresh=fresh)
        changes = self._changes(name, plans)
        if changes and not overwrite:
            raise UserError(
                f"{directory} holds a stage that was run otherwise:\n  "
                + "\n  ".join(changes[:8])
                + "\nChoose another --name, or pass --overwrite to run this stage, and those that use it, anew."
            )
        if name in named:
            changes = ["--overwrite names it", *changes]
        if changes:
            return Plan("start", why=tuple(changes), fresh=fresh)
        if (directory / DONE).exists():
            read_done(directory)
            return Plan("keep")
        if never:
            return Plan("start", why=("it was interrupted, and --resume is never",))
        return Plan("continue")

    def _changes(self, name: str, plans: Mapping[str, Plan]) -> list[str]:
        """Why a stage's folder cannot be kept: other settings or data, or earlier stages that run, or ran, anew."""
        algorithm = self.experiment.stages[name]
        record = read_json(self.experiment.directory / name / RECORD)
        changes = differences(record.get("settings") or {}, self._identity(name))
        changes += changed_inputs(record.get("inputs", {}), self.inputs.of(algorithm))
        for used in used_stages(algorithm):
            if plans[used].state != "keep":
                changes.append(f"@{used}: is to be run first")
            elif (record.get("uses") or {}).get(used) != self._record_of(used).get("id"):
                changes.append(f"@{used}: has been run anew since")
        return changes

    def _aim(self, plans: dict[str, Plan], checkpoint: Path) -> None:
        """Has a stage continue from a given checkpoint: the one of its name, or else the first unfinished."""
        own = check_checkpoint(checkpoint)["stage"]
        unfinished = [name for name, plan in plans.items() if plan.state != "keep"]
        name = own if own in plans else next(iter(unfinished), None)
        if name not in unfinished:
            what = "every stage" if name is None else f"stage {name}"
            raise UserError(
                f"--resume: {what} is finished, so there is nothing to go on with from {checkpoint}; give another "
                "--name, or the stage's name after --overwrite"
            )
        check_algorithm(checkpoint, type(self.experiment.stages[name]).__qualname__)
        why = plans[name].why
        if plans[name].state == "continue":
            why = (f"it continues from {checkpoint}, and not from its own newest checkpoint",)
        plans[name] = Plan("start", why=why, fresh=True, checkpoint=checkpoint)

    def _identity(self, name: str) -> dict[str, Any]:
        experiment = self.experiment
        return identity(experiment.stages[name], seed=experiment.given_seed(name), threads=experiment.threads)

    def _record_of(self, name: str) -> dict[str, Any]:
        return read_json(self.experiment.directory / name / RECORD)

    def _new_record(self, name: str, plan: Plan) -> dict[str, Any]:
        """What is written of a stage before it starts; the stages it uses have ended."""
        algorithm, settings = self.experiment.stages[name], self._identity(name)
        inputs = self.inputs.of(algorithm)
        used = {used: self._record_of(used) for used in used_stages(algorithm)}
        keys = {stage: record.get("key") for stage, record in used.items()}
        key = stage_key(self.experiment.stage_seed(name), settings, inputs, keys)
        record = {
            "id": uuid.uuid4().hex,
            "key": key,
            "settings": settings,
            "inputs": inputs,
            "versions": versions(),
            "uses": {stage: record["id"] for stage, record in used.items()},
            "used_keys": keys,
        }
        if plan.checkpoint is not None:  # the result follows from this stage's settings only if that is of the same
            theirs = origin(plan.checkpoint) / RECORD
            same = theirs.is_file() and read_json(theirs).get("key") == key
            record |= {"continued_from": str(plan.checkpoint), "key": key if same else None}
        return record

    # ----------------------------------------------------------------------------------------------------------- runs

    def stages(self, plans: Mapping[str, Plan]) -> dict[str, dict[str, float]]:
        """Carries the plans out. Returns the last figures of each stage."""
        from rlhf.config import dump

        experiment = self.experiment
        missing = [
            problem
            for name, plan in plans.items()
            if plan.state != "keep"
            for problem in missing_inputs(experiment.stages[name], f"stages.{name}")
        ]
        made = [name for name, plan in plans.items() if plan.state != "keep"]
        if problems := missing or list(infeasible(experiment.stages, made)):
            raise ConfigError(problems)
        atomic_text(experiment.directory / "config.yaml", dump(experiment))
        figures = {name: self._stage(name, plan) for name, plan in plans.items()}
        if self.cache.kept:
            self._say(self.cache.remark())
        return figures

    def _stage(self, name: str, plan: Plan) -> dict[str, float]:
        directory = self.experiment.directory / name
        if plan.state == "keep":
            self._say(f"{name}: finished before, kept ({directory}){self._doubts(name)}")
            return read_done(directory)["figures"]
        if plan.state == "continue":
            record = self._record_of(name)
            if record.get("versions") != versions():
                self._say(f"{name}: continues{self._doubts(name)}; its numbers may differ in the last digits")
                record = {**record, "key": None}
                write_json(directory / RECORD, record)
            return self._make(name, plan, record)
        if plan.why:
            self._say(f"{name}: replaces what is in {directory} ({'; '.join(plan.why[:4])})")
        record = self._new_record(name, plan)
        wanted = None if plan.fresh else record["key"]
        waits = f"{name}: waits for another run that makes the same stage"
        with self.cache.claimed(name, wanted, lambda: self._say(waits)) as kept:
            if kept is not None and self.cache.take(kept, directory, record["uses"]):
                self._say(f"{name}: made before by another run of the same settings and data, taken from {kept}")
                return read_done(directory)["figures"]
            nearest = [] if plan.fresh or plan.why else self.cache.nearest(name, record)
            if nearest:
                self._say(f"{name}: is run, as no kept stage is the same; the nearest: {'; '.join(nearest[:3])}")
            return self._make(name, plan, record)

    def _doubts(self, name: str) -> str:
        """What cannot be vouched for in a folder that is kept, or gone on with."""
        record, doubts = self._record_of(name), ""
        others = differences(record.get("versions", {}), versions())
        if others:
            doubts += f"; made with other versions: {', '.join(others)}"
        now = self.inputs.of(self.experiment.stages[name])
        if lost := [place for place, text in now.items() if text is None]:
            doubts += f"; unchanged as far as can be seen, as {', '.join(lost)} cannot be read any more"
        return doubts

    def _make(self, name: str, plan: Plan, record: Mapping[str, Any]) -> dict[str, float]:
        from rlhf.loops import build_stage

        experiment, start = self.experiment, time.perf_counter()
        directory, context = experiment.directory / name, experiment.context(name, self.console)
        stop = context.stop
        with _telling(name), ending_told(directory, record):
            # A former run's folder goes only when this one's models, data and checkpoint are there.
            distributed.broadcast((name, plan.checkpoint))
            stage = build_stage(resolve(experiment.stages[name], experiment.folders()), context)
            if plan.state == "start":
                with new_folder(directory) as folder:
                    write_json(folder / RECORD, record)
                    if plan.checkpoint is not None:
                        adopt(plan.checkpoint, folder, directory)
                        stage.resume(plan.checkpoint)
            with stop.listening():
                figures = stage.fit()
                write_done(directory, figures, time.perf_counter() - start)
                self._keep(name, record["key"], replace=plan.fresh and plan.checkpoint is None)
        _stop_between(experiment, name, stop)
        return figures

    def _keep(self, name: str, key: str | None, *, replace: bool) -> None:
        try:
            self.cache.keep(name, key, self.experiment.directory / name, replace=replace)
        except OSError as error:
            self._say(f"{name}: is finished, but could not be kept for other runs ({error}); set stage_cache")

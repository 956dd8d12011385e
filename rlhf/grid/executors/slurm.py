"""Cells as jobs of a Slurm cluster, submitted by submitit."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import shlex
import shutil
import signal
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rlhf.errors import UserError, require
from rlhf.files import atomic_text
from rlhf.grid.executors import slurm_queue as queue
from rlhf.grid.executors.process import ASKED
from rlhf.grid.executors.slurm_cell import STOP, SlurmCell
from rlhf.interfaces import Ended, Executor, Job, LiveExecutor

RECORD = "slurm.json"
"""In a cell's folder: its job, from before it is submitted until its end is noted."""
LOOK = 1.0
"""Seconds between two looks for the results that jobs leave."""
LIST = 15.0
"""Seconds between two questions to Slurm, which others ask too."""
LIST_STOPPING = 2.0
"""The same while jobs are asked to end."""
PATIENCE = 20.0
"""Seconds from the end of a job to that of hoping for its result: it may be on its way through a shared disk."""
AGAIN = 60.0
"""Seconds before a submission that was refused is tried again."""
KILLED = 90.0
"""Seconds for jobs to be gone that were cancelled: Slurm kills those that take longer than its KillWait, mostly 30."""
OWN = {
    "array": "at_once",
    "cpus-per-task": "threads",
    "gpus-per-node": "gpus",
    "mem": "memory_gb",
    "partition": "partition",
    "time": "time_limit",
    **dict.fromkeys(("chdir", "error", "job-name", "open-mode", "output", "requeue", "no-requeue", "signal"), ""),
}
"""Options of ``sbatch`` that have a setting, or are none of the user's."""
TOLD = {
    "CANCELLED": "was cancelled",
    "TIMEOUT": "came to its time limit",
    "PREEMPTED": "had to give way to another job",
    "NODE_FAIL": "has lost its node",
    "BOOT_FAIL": "has lost its node",
    "DEADLINE": "came to its deadline",
}
"""Of a job that was ended from outside, by its last state."""


@dataclass(frozen=True, kw_only=True)
class Slurm(Executor):
    """Jobs of a Slurm cluster, each a cell; needs the extra ``rlhf[slurm]``, and a disk that all nodes share.

    Cells that are ready together are one job array. A job saves before its time limit or a preemption, is queued again
    and continues. Jobs go on without the grid: started again, it waits for those that it has left.

    Args:
        at_once: How many cells are queued or run at a time.
        threads: CPUs and CPU threads of a cell, in the place of an open ``threads`` of its experiment; figures depend
            on them in the last digits. Null leaves both to the cluster.
        gpus: GPUs of a cell; 0 hides those that its node has.
        partition: Where to submit to; null is the cluster's default.
        time_limit: Minutes of a job. A cell that takes longer is several jobs' worth.
        save_seconds: How long before the time limit a cell is asked to save.
        continuations: How often a cell may come to its time limit and be queued again.
        memory_gb: Memory of a job; null is the cluster's default.
        setup: Lines of shell before the cell starts, such as ``module load cuda``.
        sbatch: Further options of ``sbatch`` by their long names, such as ``account``.
        folder: For submitit's files and the logs of the jobs; null is ``.slurm`` in the folder of the grid.
    """

    at_once: int = 16
    threads: int | None = 1
    gpus: int = 0
    partition: str | None = None
    time_limit: int = 240
    save_seconds: int = 120
    continuations: int = 100
    memory_gb: float | None = None
    setup: list[str] = field(default_factory=list)
    sbatch: dict[str, Any] = field(default_factory=dict)
    folder: str | None = None

    def __post_init__(self) -> None:
        require(at_least=1, at_once=self.at_once, threads=self.threads, time_limit=self.time_limit)
        require(at_least=0, gpus=self.gpus, continuations=self.continuations)
        require(at_least=1, below=60 * self.time_limit, save_seconds=self.save_seconds)
        require(above=0, memory_gb=self.memory_gb)
        for name in self.sbatch:
            if (option := name.replace("_", "-")) in OWN:
                remedy = f"set {OWN[option]}" if OWN[option] else "leave it out, as the executor sets it"
                raise UserError(f"sbatch.{name} is given; {remedy}")

    @property
    def slots(self) -> int:
        return self.at_once

    def describe(self) -> str:
        gpus = f"; GPUs of each: {self.gpus}" if self.gpus else ""
        where = "" if self.partition is None else f"; partition {self.partition}"
        return f"{super().describe()}{gpus}{where}; up to {self.time_limit} minutes, and again"

    def open(self) -> LiveExecutor:
        if importlib.util.find_spec("submitit") is None:
            raise UserError("Slurm: the package submitit is missing; pip install 'rlhf[slurm]'")
        if missing := [name for name in (*queue.PROGRAMS, "srun") if shutil.which(name) is None]:
            raise UserError(
                f"Slurm: {missing[0]} is not on the PATH; start the grid on a machine that submits jobs to the "
                "cluster, such as its login node"
            )
        return Jobs(self)

    def parameters(self, name: str) -> dict[str, Any]:
        """What submitit is given for jobs of a name."""
        from submitit import JobEnvironment

        given = {
            "job_name": name,
            "partition": self.partition,
            "time": self.time_limit,
            "cpus_per_task": self.threads,
            "gpus_per_node": self.gpus or None,
            "mem": None if self.memory_gb is None else f"{round(self.memory_gb * 1024)}M",
            "array_parallelism": self.at_once,
            "setup": self.setup or None,
            "stderr_to_stdout": True,
            "use_srun": False,
            "additional_parameters": {
                "requeue": True,
                "signal": f"B:{JobEnvironment.USR_SIG}@{self.save_seconds}",  # B: to the batch script, which it is
                **self.sbatch,
            },
        }
        return {name: value for name, value in given.items() if value is not None}


class Submitted(NamedTuple):
    """A job of the cluster: the cell's, its id there, and submitit's folder."""

    job: Job
    id: str
    folder: Path


class Jobs(LiveExecutor):
    """Jobs that are queued or run. What is known of each is in its cell's folder too, for a grid that comes later."""

    def __init__(self, settings: Slurm) -> None:
        self.settings, self.slots = settings, settings.slots
        self.waiting: list[Job] = []
        """Not submitted yet."""
        self.running: dict[str, Submitted] = {}
        self.stopping = False
        self._looked = self._listed = self._refused = float("-inf")
        self._lost: dict[str, float] = {}
        """When a job was first seen to be over without a result."""

    # ---------------------------------------------------------------------------------------------------- submitting

    def start(self, job: Job) -> None:
        self.waiting.append(job)

    def flush(self) -> None:
        if not self.waiting or time.monotonic() - self._refused < AGAIN:
            return
        jobs, self.waiting = self.waiting, []
        grid = jobs[0].log.parent.parent
        name = f"rlhf-{grid.name}-{uuid.uuid4().hex[:8]}"
        folder = Path(self.settings.folder or grid / ".slurm").expanduser().resolve() / name  # ids may come again
        for index, job in enumerate(jobs):  # first, so that a grid that is killed now finds them by their name
            _note(job, name=name, index=index, job=None, folder=str(folder))
        try:
            ids = self._submit(name, folder, jobs)
        except (RuntimeError, OSError) as error:
            found = queue.named([name])[name]
            if len(found) < len(jobs):
                self._give_back(jobs, str(error).strip())
                return
            ids = [found[index] for index in range(len(jobs))]  # only the answer was lost
            for job, id_ in zip(jobs, ids, strict=True):
                self._complete(Submitted(job, id_, folder))
        for job, id_ in zip(jobs, ids, strict=True):
            self._hold(job, id_, name, folder)

    def _submit(self, name: str, folder: Path, jobs: Sequence[Job]) -> list[str]:
        executor = submitter(folder, self.settings)
        executor.update_parameters(**self.settings.parameters(name))
        with executor.batch():
            found = [executor.submit(self._cell(job)) for job in jobs]
        return [one.job_id for one in found]

    def _cell(self, job: Job) -> SlurmCell:
        return SlurmCell(job.arguments, job.log.resolve(), threads=self.settings.threads, gpus=self.settings.gpus)

    def _give_back(self, jobs: Sequence[Job], error: str) -> None:
        """Tries again later, as limits and a busy cluster pass; unless nothing else is there to be waited for."""
        for job in jobs:
            _forget(job)
        self.waiting, self._refused = [*jobs, *self.waiting], time.monotonic()
        if not self.running:
            raise UserError(f"Slurm refuses the jobs: {error}\nMend the settings of executor, its sbatch among them")

    def _hold(self, job: Job, id_: str, name: str, folder: Path) -> None:
        _note(job, name=name, index=queue.index(id_), job=id_, folder=str(folder))
        self.running[job.name] = Submitted(job, id_, folder)

    def _complete(self, one: Submitted) -> None:
        """Puts there what submitit puts there last, where that was cut short."""
        path = _paths(one).submitted_pickle
        if not path.exists():
            left = self._cell(one.job).checkpoint()
            left.set_timeout(self.settings.time_limit, self.settings.continuations)
            left.dump(path)

    # ------------------------------------------------------------------------------------------------------- adopting

    def adopt(self, jobs: Sequence[Job]) -> dict[str, str]:
        notes = {job.name: note for job in jobs if (note := _noted(job))}
        unknown = queue.named({note["name"] for note in notes.values() if note["job"] is None})
        for note in notes.values():
            note["job"] = note["job"] or unknown[note["name"]].get(note["index"])
        states = queue.states({note["job"] for note in notes.values() if note["job"]})
        for job in jobs:
            if (note := notes.get(job.name)) is None:
                continue
            if states.get(note["job"], "COMPLETED") in queue.FINAL:  # its folder says what has become of it
                _forget(job)
                continue
            self._hold(job, note["job"], note["name"], Path(note["folder"]))
            self._complete(self.running[job.name])
        return {name: f"Slurm job {one.id}" for name, one in self.running.items()}

    # --------------------------------------------------------------------------------------------------------- ending

    def ended(self) -> list[Ended]:
        now = time.monotonic()
        found: list[Ended] = []
        if self.stopping:
            found = [Ended(job.name, -signal.SIGTERM, "it was not submitted yet") for job in self.waiting]
            self.waiting = []
        if now - self._looked < LOOK or not self.running:
            return found
        self._looked = now
        left = {name: _result(one) for name, one in self.running.items()}
        for name, result in left.items():
            # one that was asked to end may have been so to run again: Slurm knows
            if result is not None and (self.stopping or result.code not in ASKED):
                if result.code in ASKED:
                    queue.cancel([self.running[name].id])
                found.append(self._let_go(name, result))
        if self.running and now - self._listed >= (LIST_STOPPING if self.stopping else LIST):
            self._listed = now
            found += self._ended_otherwise(now)
        return found

    def _ended_otherwise(self, now: float) -> list[Ended]:
        """Jobs that Slurm has ended, and that have left no result, or one that may have been void."""
        ids = {one.id for one in self.running.values()}
        try:
            states = queue.states(ids)
        except UserError:  # its controller is busy, or restarts
            return []
        over = {name: one for name, one in self.running.items() if states.get(one.id, "COMPLETED") in queue.FINAL}
        if self.stopping:  # once more: a job may just have been starting, or have been queued again
            self._ask([one.id for name, one in self.running.items() if name not in over])
        self._lost = {name: self._lost.get(name, now) for name in over}
        late = [name for name, since in self._lost.items() if self.stopping or now - since >= PATIENCE]
        states = {**(queue.recorded(ids - states.keys()) if ids - states.keys() else {}), **states}
        return [self._let_go(name, self._judged(over[name], states.get(over[name].id))) for name in late]

    def _judged(self, one: Submitted, state: str | None) -> Ended:
        """What has become of a job, by its last state where it has left no word of its own."""
        name, told, result = one.job.name, TOLD.get(state or ""), _result(one)
        if result is not None and result.code not in ASKED:
            return result
        if told is not None or result is not None or self.stopping:
            why = [f"Slurm job {one.id} {told}"] if told else []
            return Ended(name, -signal.SIGTERM, "; ".join([*why, *([result.why] if result and result.why else [])]))
        if state == "OUT_OF_MEMORY":
            return Ended(name, -signal.SIGKILL, f"Slurm job {one.id} needs more memory; raise executor.memory_gb")
        log, last = _paths(one).stdout, "" if state is None else f", {state}"
        return Ended(name, 1, f"Slurm job {one.id} has ended without a result{last}; {log} may tell why")

    def _let_go(self, name: str, result: Ended) -> Ended:
        _forget(self.running.pop(name).job)
        self._lost.pop(name, None)
        return result

    def stop(self) -> None:
        ids = [one.id for one in self.running.values()]
        if self.stopping:
            queue.cancel(ids)
            return
        self.stopping, self._listed = True, float("-inf")
        self._ask(ids)

    def _ask(self, ids: Sequence[str]) -> None:
        """Those that wait are cancelled; those that run are asked to save, and mind it only once."""
        queue.cancel(ids, "--state=PENDING")
        queue.cancel(ids, "--batch", f"--signal={STOP.name.removeprefix('SIG')}")

    def kill(self) -> None:
        queue.cancel([one.id for one in self.running.values()])
        end = time.monotonic() + KILLED
        while self.running and time.monotonic() < end:
            with contextlib.suppress(UserError):
                states = queue.states({one.id for one in self.running.values()})
                for name, one in list(self.running.items()):
                    if states.get(one.id, "COMPLETED") in queue.FINAL:
                        _forget(self.running.pop(name).job)
            time.sleep(LOOK)
        self.running.clear()


def submitter(folder: Path, settings: Slurm) -> Any:
    """Submitit's executor. The cell's process takes the place of the batch script, so that its signals come to it."""
    from submitit import SlurmExecutor

    python = f"exec {shlex.quote(sys.executable)}"
    return SlurmExecutor(folder, max_num_timeout=settings.continuations, python=python)


def _paths(one: Submitted) -> Any:
    from submitit.core.utils import JobPaths

    return JobPaths(one.folder, job_id=one.id)


def _result(one: Submitted) -> Ended | None:
    """What a job has left: the exit code of its cell, or the error that kept it from running it."""
    from submitit.core.utils import pickle_load

    try:
        kind, found = pickle_load(_paths(one).result_pickle)
    except (OSError, EOFError):  # not there yet, or gone again as the job is
        return None
    if kind == "success":
        return Ended(one.job.name, *found)
    return Ended(one.job.name, 1, f"Slurm job {one.id} could not run it: {str(found).strip().splitlines()[-1]}")


def _noted(job: Job) -> dict[str, Any] | None:
    try:
        found = json.loads((job.log.parent / RECORD).read_text(encoding="utf-8"))
        return found if found.keys() >= {"name", "index", "job", "folder"} else None
    except (OSError, ValueError, AttributeError):
        return None


def _note(of: Job, **content: Any) -> None:
    atomic_text(of.log.parent / RECORD, json.dumps(content))


def _forget(job: Job) -> None:
    (job.log.parent / RECORD).unlink(missing_ok=True)

"""Runs the cells of a grid: starts what may run, notes what has ended, and stops when it is asked to."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rlhf.errors import UserError
from rlhf.grid.cells import Cell
from rlhf.grid.ledger import LOG, Ledger, Standing, State, locked
from rlhf.grid.progress import Running, View, indented
from rlhf.grid.schedule import Needs, next_cell
from rlhf.interfaces import Ended, Job, LiveExecutor
from rlhf.interruption import StopRequest
from rlhf.stages.cache import StageCache

POLL = 0.1
"""Seconds between two looks at what runs."""
LOOK = 1.0
"""Seconds between two looks for stages that running cells have finished, which others wait for."""
GRACE = 15.0
"""Seconds that cells have to end after they were asked to end at once."""


class Outcome(NamedTuple):
    """What became of the cells: the state of each, and the errors of those that failed."""

    states: dict[str, State]
    errors: dict[str, str]


class Conductor:
    """One run of a grid.

    Args:
        cells: All of them, in their order.
        ledger: Their state on the disk.
        executor: What runs them.
        view: Where it is shown.
        retry: Whether cells that failed before are run again.
    """

    def __init__(
        self, cells: Sequence[Cell], ledger: Ledger, executor: LiveExecutor, view: View, *, retry: bool = False
    ) -> None:
        self.cells = {cell.name: cell for cell in cells}
        self.ledger, self.executor, self.view = ledger, executor, view
        experiment = cells[0].experiment
        self.cache = StageCache(StageCache.meant(experiment.stage_cache, experiment.directory))
        standing = {name: ledger.standing(name) for name in self.cells}
        refuse(standing)
        self.errors = {name: one.error for name, one in standing.items() if one.state == "failed"}
        self.states: dict[str, State] = {name: one.state for name, one in standing.items()}
        for name in list(self.errors) if retry else ():
            self.states[name] = "begun"
            del self.errors[name]
        self._finished = {name: set(ledger.finished(name)) for name in self.cells}
        self.stop = StopRequest()
        view.slots = executor.slots
        self.adopted = self._adopt()

    def run(self) -> Outcome:
        """All cells, each to its end.

        Raises:
            Stopped: somebody asked for it; the cells were saved first.
        """
        self._announce()
        try:
            with self.stop.listening():
                self._loop()
        except BaseException:
            self._end_now()
            raise
        self._count()
        if self.stop.signal is not None:
            raise self.stop.stopped(f"{self.view.summary()}; running cells were saved")
        return Outcome(self.states, self.errors)

    def _adopt(self) -> dict[str, str]:
        """Cells that an earlier grid has left with the executor, by name with what they are called there."""
        open_cells = [name for name, state in self.states.items() if state not in ("done", "failed")]
        jobs = [Job(name, self.ledger.command(name), self.ledger.folder(name) / LOG) for name in open_cells]
        found = self.executor.adopt(jobs)
        if changed := [f"{name} ({text})" for name, text in found.items() if not self.ledger.unchanged(name)]:
            raise UserError(
                f"still running or waiting with other settings: {', '.join(changed)}; cancel or await them, or run the "
                "grid with those settings"
            )
        for name in found:
            self.states[name] = "begun"
            self.view.running[name] = Running(self.cells[name].experiment, time.monotonic())
        return found

    # ------------------------------------------------------------------------------------------------------- the loop

    def _loop(self) -> None:
        asked, looked = False, -math.inf
        while True:
            for ended in self.executor.ended():
                self._ended(ended)
                looked = -math.inf
            if self.stop.signal is not None and not asked:
                asked = True
                self.executor.stop()
                self.view.say(f"{self.stop.signal.name}: {len(self.view.running)} running cells save and stop")
            if not asked and time.monotonic() - looked >= LOOK:
                self._fill()
                self.executor.flush()
                looked = time.monotonic()
            open_cells = any(state in ("waiting", "begun", "busy") for state in self.states.values())
            if not self.view.running and (asked or not open_cells):
                return
            self._count()
            self.view.update()
            time.sleep(POLL)

    def _fill(self) -> None:
        """Starts cells while there are slots, and cells that would not only wait for others."""
        while len(self.view.running) < self.executor.slots:
            self._look_at_busy()
            waiting = [
                name
                for name, state in self.states.items()
                if state in ("waiting", "begun") and name not in self.view.running
            ]
            making = {key for name in self.view.running for key in self._missing(name)}
            chosen = next_cell([Needs(name, self._missing(name)) for name in waiting], making)
            if chosen is None:
                return
            self._start(chosen)

    def _look_at_busy(self) -> None:
        """Cells that another process has let go of are looked at again."""
        for name in [name for name, state in self.states.items() if state == "busy"]:
            if locked(self.ledger.folder(name)):
                continue
            standing = self.ledger.standing(name)
            self.states[name] = standing.state if standing.state != "refused" else "failed"
            if standing.error:
                self.errors[name] = standing.error
            self.view.say(f"{name}: is let go of, and {standing.state}")

    def _missing(self, name: str) -> tuple[str, ...]:
        """Keys of the stages that a cell has to make, or makes."""
        found = []
        finished = self._finished[name]
        for stage, key in self.ledger.keys[name].items():
            if key is not None and stage not in finished and not self.cache.has(stage, key):
                found.append(f"{stage}-{key}")
        return tuple(found) if self.cache.root is not None else ()

    def _start(self, name: str) -> None:
        arguments = self.ledger.begin(name)
        self.executor.start(Job(name, arguments, self.ledger.folder(name) / LOG))
        self.view.running[name] = Running(self.cells[name].experiment, time.monotonic())
        again = "continues" if self.states[name] == "begun" else "starts"
        self._count()
        self.view.say(f"{name}: {again} ({self.view.summary()})")

    def _ended(self, ended: Ended) -> None:
        name = ended.name
        running, standing = self.view.running.pop(name), self.ledger.end(name, ended.code, ended.why)
        seconds = time.monotonic() - running.since
        whole = self.adopted.pop(name, None) is None
        self.states[name] = standing.state
        self._finished[name] = set(self.ledger.finished(name))
        self._count()
        if standing.state == "done":
            self.view.seconds += [seconds] if whole else []
            self.view.say(f"{name}: done{f' in {seconds:.0f} s' if whole else ''} ({self.view.summary()})")
        elif standing.state == "failed":
            self.errors[name] = standing.error
            log = self.ledger.folder(name) / LOG
            self.view.say(f"{name}: failed ({self.view.summary()}); {log} ends\n{indented(standing.error)}")
        else:  # it is not started again: who has stopped it, and it alone, wants that
            self.view.say(f"{name}: stopped{f' ({ended.why})' if ended.why else ''}, and can be continued")

    def _announce(self) -> None:
        """What is there already, before the first cell starts."""
        self._count()
        self.view.say(self.view.summary())
        if others := self.ledger.others():
            text = "has cells that the grid has no more, and that nothing is done with"
            self.view.say(f"{self.ledger.home} {text}: {', '.join(others)}")
        for name, text in self.adopted.items():
            self.view.say(f"{name}: was started by an earlier grid, and goes on ({text})")
        for name, error in self.errors.items():
            self.view.say(f"{name}: failed before, and is not run again without --retry\n{indented(error)}")
        for name, state in self.states.items():
            if state == "busy":
                self.view.say(f"{name}: another process runs it; it is waited for")

    def _count(self) -> None:
        running = self.view.running
        names: dict[str, list[str]] = {"done": [], "running": list(running), "failed": [], "waiting": [], "stopped": []}
        for name, state in self.states.items():
            if name not in running:
                names[{"begun": "waiting", "busy": "waiting"}.get(state, state)].append(name)
        self.view.counts = {state: len(found) for state, found in names.items()}

    def _end_now(self) -> None:
        """Ends the cells that run: at once, and whatever they do where they take their time."""
        self.executor.stop()
        self.executor.stop()
        end = time.monotonic() + GRACE
        while self.view.running and time.monotonic() < end:
            for ended in self.executor.ended():
                self._ended(ended)
            time.sleep(POLL)
        self.executor.kill()


def refuse(standing: Mapping[str, Standing]) -> None:
    """Refuses a grid with cells whose folders hold another run, or a damaged one.

    Args:
        standing: Of each cell, by name.

    Raises:
        UserError: there is such a cell.
    """
    refused = {name: one.error for name, one in standing.items() if one.state == "refused"}
    if not refused:
        return
    name, text = next(iter(refused.items()))
    several = len(refused) > 1
    head = f"{len(refused)} of {len(standing)} cells cannot be run, such as {name}:\n  " if several else f"{name}: "
    also = "\nThe others: " + ", ".join(list(refused)[1:]) if several else ""
    text = text.replace("Choose another --name, or", "Choose another name for the grid, or")
    raise UserError(f"{head}{text}{also}")

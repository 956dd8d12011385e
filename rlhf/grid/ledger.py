"""What became of the cells, on the disk: their folders say it, and a small file in each, so that any crash is survived.

A run's own files say which stages are finished, which can be continued, and which were made with other settings. What
they cannot say, that a cell failed and how, is in ``cell.json``. Whether a cell is running is asked of its lock, which
the system lets go of when its process ends.
"""

from __future__ import annotations

import fcntl
import json
import re
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from rich.console import Console

from rlhf.config import dump
from rlhf.data import fingerprint
from rlhf.errors import ConfigError, UserError
from rlhf.files import atomic_text, read_json
from rlhf.grid.cells import Cell
from rlhf.stages.folder import DONE, RECORD, STOPPED, write_json
from rlhf.stages.key import Inputs, keys_of
from rlhf.stages.run import Run

CONFIG = "cell.yaml"
"""What a cell is run with."""
STATUS = "cell.json"
"""How far a cell has come, as the grid has seen it."""
LOG = "output.log"
"""What a cell has said, all tries after one another."""
TOLD = 6
"""Lines of a failed cell's output that are kept with it: its error, or the last ones."""
_ERROR = re.compile(r"Error: |\d+ problems? in the config:")
"""How the message of a run begins that has failed."""
_TRY = re.compile(r"--- \d{4}-\d\d-\d\d \d\d:\d\d:\d\d$")
"""What stands in the log before each try."""

State = Literal["waiting", "begun", "busy", "stopped", "failed", "done", "refused"]


class Standing(NamedTuple):
    """Where a cell stands.

    Attributes:
        state: ``waiting``: nothing of it is there; ``begun``: it can be continued; ``busy``: a process of another grid,
            or of a person, runs it; ``stopped``: its process was asked to end, and not by the grid; ``refused``: its
            folder holds another run.
        error: Why it failed, or is refused.
    """

    state: State
    error: str = ""


class Ledger:
    """The cells of a grid on the disk.

    Args:
        cells: All of them.
        overwrite: Whether stages with other settings are run anew.
    """

    def __init__(self, cells: Sequence[Cell], *, overwrite: bool = False) -> None:
        self.cells = {cell.name: cell for cell in cells}
        self.overwrite = overwrite
        self.inputs = Inputs(cells[0].experiment.cache_dir)
        self.keys = {cell.name: keys_of(cell.experiment.deployed()[0], self.inputs) for cell in cells}
        self._offsets: dict[str, int] = {}

    @property
    def home(self) -> Path:
        """The folder that holds those of the cells."""
        return next(iter(self.cells.values())).experiment.directory.parent

    def others(self) -> list[str]:
        """Cells on the disk that the grid does not have, or not any more."""
        found = (path.parent.name for path in self.home.glob(f"*/{STATUS}"))
        return sorted(name for name in found if name not in self.cells)

    def folder(self, name: str) -> Path:
        """Of a cell."""
        return self.cells[name].experiment.directory

    # ------------------------------------------------------------------------------------------------------- standing

    def standing(self, name: str) -> Standing:
        """Where a cell stands."""
        folder = self.folder(name)
        if locked(folder):
            return Standing("busy")
        experiment = self.cells[name].experiment.deployed()[0]
        try:
            plans = Run(experiment, Console(quiet=True), self.inputs).plans(self.overwrite, "auto")
        except UserError as error:
            return Standing("refused", str(error))
        if all(plan.state == "keep" for plan in plans.values()):
            return Standing("done")
        if error := self._failure(name):
            return Standing("failed", error)
        return Standing("begun" if any((folder / stage).is_dir() for stage in plans) else "waiting")

    def _failure(self, name: str) -> str:
        """Why a cell failed with the settings that it has; nothing where it has not."""
        if not self.unchanged(name):
            return ""
        status = self.status(name)
        if status["state"] == "running":  # the grid was killed: the run has left word itself, if it ended later
            left = [path for stage in self.keys[name] if (path := self.folder(name) / stage / STOPPED).exists()]
            return "\n".join(error for path in left if (error := read_json(path).get("error")))
        return status["error"] if status["state"] == "failed" else ""

    def status(self, name: str) -> dict[str, Any]:
        """What the grid has noted of a cell; nothing where that is not there, or damaged."""
        try:
            found = json.loads((self.folder(name) / STATUS).read_text(encoding="utf-8"))
            return found if isinstance(found, dict) and {"state", "config", "error"} <= found.keys() else {}
        except (OSError, ValueError):
            return {}

    def finished(self, name: str) -> list[str]:
        """The stages of a cell that its folder holds, finished and as they are wanted."""
        return [stage for stage, key in self.keys[name].items() if _holds(self.folder(name) / stage, key)]

    # -------------------------------------------------------------------------------------------------------- changes

    def begin(self, name: str) -> list[str]:
        """Notes that a cell is started, and writes its settings; the arguments of its command."""
        folder, text = self.folder(name), dump(self.cells[name].experiment)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"output_dir: {folder} cannot be made ({error.strerror}); give another") from error
        atomic_text(folder / CONFIG, text)
        log = folder / LOG
        with log.open("a", encoding="utf-8") as file:
            file.write(f"--- {time.strftime('%Y-%m-%d %H:%M:%S')}\n")
        self._offsets[name] = log.stat().st_size
        former = self.status(name)
        self._write(name, state="running", config=fingerprint.of(text), error="", tries=former.get("tries", 0) + 1)
        return self.command(name)

    def command(self, name: str) -> list[str]:
        """The arguments of a cell's command."""
        command = ["-m", "rlhf.run", "--config", str(self.folder(name) / CONFIG), "--no_report"]
        return [*command, "--overwrite"] if self.overwrite else command

    def unchanged(self, name: str) -> bool:
        """Whether a cell was last started with the settings that it has."""
        return self.status(name).get("config") == fingerprint.of(dump(self.cells[name].experiment))

    def end(self, name: str, code: int, why: str = "") -> Standing:
        """Notes how a cell's process has ended; ``why`` as :class:`rlhf.interfaces.Ended` has it."""
        status = self.status(name)
        asked = code in (128 + signal.SIGINT, 128 + signal.SIGTERM, -signal.SIGINT, -signal.SIGTERM)
        if code == 0:
            found = Standing("done")
        else:
            found = Standing("stopped") if asked else Standing("failed", self._why(name, code, why))
        self._write(name, **{**status, "state": found.state, "error": found.error, "code": code})
        return found

    def _write(self, name: str, **content: Any) -> None:
        write_json(self.folder(name) / STATUS, content)

    def _why(self, name: str, code: int, why: str) -> str:
        """The last lines that a failed cell has said."""
        with (self.folder(name) / LOG).open("rb") as file:
            file.seek(self._offsets.get(name, 0))
            lines = file.read().decode(errors="replace").splitlines()
        if name not in self._offsets:  # an earlier grid has started it
            lines = lines[max((number for number, line in enumerate(lines) if _TRY.match(line)), default=-1) + 1 :]
        said = [line.rstrip() for line in lines if line.strip()]
        told = max((number for number, line in enumerate(said) if _ERROR.match(line)), default=None)
        last = said[-TOLD:] if told is None else said[told:][:TOLD]
        if code < 0:
            hint = " (by the system for want of memory, say)" if -code == signal.SIGKILL else ""
            last.append(f"its process was ended by {signal.Signals(-code).name}{hint}")
        last += [why] if why else []
        return "\n".join(last) or f"exit code {code}, and no word"


def _holds(folder: Path, key: str | None) -> bool:
    try:
        return key is not None and (folder / DONE).exists() and read_json(folder / RECORD).get("key") == key
    except (OSError, UserError):  # it is just being put in place
        return False


def locked(folder: Path) -> bool:
    """Whether a process runs in a folder."""
    try:
        with (folder / ".lock").open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False

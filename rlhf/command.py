"""What every command of the project does alike: a quiet environment, and errors a person can act on.

Imports nothing heavy, so that the environment is set before torch reads it.
"""

from __future__ import annotations

import dis
import os
import sys
from collections.abc import Callable

from rlhf.errors import ConfigError, UserError

_DEFAULTS = {
    "OMP_WAIT_POLICY": "passive",  # waiting threads give the core back: decisive where processes share cores
    "TOKENIZERS_PARALLELISM": "false",  # its threads do not survive the forks of data loading
    "TRANSFORMERS_VERBOSITY": "error",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
}


def prepare_environment() -> None:
    """Sets what third parties read at import time, where the user has not set it."""
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)


def guarded(command: Callable[[], int]) -> int:
    """Runs a command and turns what went wrong into a message and an exit code.

    Returns:
        The command's own code; 2 for a config that is wrong, 1 for a mistake met while running, 130 after Ctrl-C. Other
        exceptions are bugs and pass with their traceback, as all do where ``RLHF_TRACEBACK=1``.
    """
    try:
        return command()
    except KeyboardInterrupt:
        print("\nInterrupted.", file=sys.stderr)
        return 130
    except BrokenPipeError:  # who read the output has left, as `head` does; nothing more can be said there
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except SystemExit as end:  # argparse
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except (ValueError, OSError, FloatingPointError) as error:
        if os.environ.get("RLHF_TRACEBACK") == "1" or not _deliberate(error):
            raise
        print(_message(error), file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1


def _deliberate(error: Exception) -> bool:
    """Whether a ``raise`` in our own code made it, to tell the user something; all else needs its traceback."""
    if isinstance(error, UserError):
        return True
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None or not str(last.tb_frame.f_globals.get("__name__", "")).startswith("rlhf."):
        return False
    return dis.opname[last.tb_frame.f_code.co_code[last.tb_lasti]] == "RAISE_VARARGS"


def _message(error: Exception) -> str:
    if isinstance(error, ConfigError):
        count = len(error.problems)
        head = "1 problem in the config:" if count == 1 else f"{count} problems in the config:"
        return "\n".join([head, *(f"  {problem}" for problem in error.problems)])
    return f"Error: {error}"

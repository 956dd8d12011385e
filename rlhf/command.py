"""What every command of the project does alike: a quiet environment, and errors a person can act on.

Imports nothing heavy, so that the environment is set before torch reads it.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import logging
import os
import sys
import textwrap
import traceback
import warnings
from collections.abc import Callable

from rlhf import distributed
from rlhf.errors import ConfigError, UserError
from rlhf.interruption import Stopped, held, sigterm_raises
from rlhf.user_code import is_own, told

_DEFAULTS = {
    "OMP_WAIT_POLICY": "passive",  # waiting threads give the core back: decisive where processes share cores
    "TOKENIZERS_PARALLELISM": "false",  # its threads do not survive the forks of data loading
    "TRANSFORMERS_VERBOSITY": "error",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "DATASETS_VERBOSITY": "critical",  # it logs as an error what it then raises
    "HF_HUB_VERBOSITY": "error",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TQDM_DISABLE": "1",
}
_THIRD_PARTIES = ("torch", "transformers", "datasets", "tokenizers", "huggingface_hub", "safetensors", "matplotlib")

_LOST = (
    "another process of the run has ended without a word, killed by the system for want of memory, say; the launcher's "
    "report says which and how. The same command continues from the newest checkpoint"
)


def _worth_telling(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith("Setting accelerator to CPU")  # a run says what it computes on


def prepare_environment() -> None:
    """Sets what third parties read at import time, where the user has not set it, and hides their warnings.

    What they raise is not touched. Python's own switches (``-W``, ``PYTHONWARNINGS``) show the warnings again.
    """
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    logging.getLogger("DeepSpeed").addFilter(_worth_telling)  # it logs to the standard output, at its import
    if not sys.warnoptions:
        warnings.filterwarnings("ignore", module=rf"({'|'.join(_THIRD_PARTIES)})(\.|$)")


def settings_parser(root: type, *, prog: str, does: str, of: str, overrides: str) -> argparse.ArgumentParser:
    """The parser of a command that is given settings: ``--config``, ``--quiet``, and a help that lists all settings.

    Args:
        root: What the settings make.
        prog: The command.
        does: What it does, in a sentence.
        of: What the settings are of, with its article.
        overrides: What else there is to say of them.
    """
    from rlhf.schema import explanations, settings, spell

    texts = explanations(root)
    lines = [
        textwrap.fill(
            f"{name}: {spell(setting.annotation)}. {texts[name]}", 100, initial_indent="  ", subsequent_indent="      "
        )
        for name, setting in settings(root).items()
    ]
    parser = argparse.ArgumentParser(
        prog=prog,
        description=does,
        epilog="\n".join([f"settings of {of}:", *lines, "", overrides]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--config",
        action="append",
        metavar="FILE.yaml",
        required=True,
        help=f"the {of.split()[-1]}; given several times, files are merged key by key and the later one wins",
    )
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")
    return parser


def import_heavy(*modules: str) -> None:
    """Imports modules that take seconds; Ctrl-C acts when they are there, as in their middle it can crash them.

    Raises:
        UserError: a package is not installed; the text names the Python that lacks it.
    """
    try:
        with held():
            for name in modules:
                importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "rlhf").partition(".")[0] == "rlhf":
            raise
        raise UserError(
            f"the package {error.name} is not installed for {sys.executable}; install this project there with pip, or "
            "run the Python that it is installed for, such as .venv/bin/python after make quickstart"
        ) from error


def guarded(command: Callable[[], int], *modules: str) -> int:
    """Runs a command and turns what went wrong into a message and an exit code.

    Args:
        command: What it does.
        modules: What it needs that takes seconds to import.

    Returns:
        The command's own code; 2 for a config that is wrong, 1 for another ``UserError`` or what the system refuses
        (a full disk, a file that may not be read), 130 after Ctrl-C, 143 after SIGTERM. Other exceptions are bugs and
        pass with their traceback, as all do where ``RLHF_TRACEBACK=1``.
    """
    try:
        with sigterm_raises():
            import_heavy(*modules)
            return command()
    except KeyboardInterrupt as stop:
        if distributed.first_to_fail():
            print(str(stop) or "\nInterrupted.", file=sys.stderr)
        return stop.exit_code if isinstance(stop, Stopped) else 130
    except BrokenPipeError:  # who read the output has left, as `head` does; nothing more can be said there
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except SystemExit as end:
        if _of_argparse(end):
            return end.code if isinstance(end.code, int) else int(end.code is not None)
        print(f"Error: {told('code of your own', end)}", file=sys.stderr)
        return 1
    except (UserError, OSError) as error:
        if os.environ.get("RLHF_TRACEBACK") == "1":
            raise
        if distributed.first_to_fail():
            print(_message(error), file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    except Exception as error:
        if not distributed.first_to_fail():  # of several processes, what follows from the first one's error is not told
            return 1
        if not distributed.lost_another(error) or os.environ.get("RLHF_TRACEBACK") == "1":
            raise
        print(f"Error: {_LOST}", file=sys.stderr)
        return 1


def _of_argparse(end: SystemExit) -> bool:
    """Whether the parser of arguments asked for the end, perhaps by what a library has put in the place of its exit."""
    asked = False
    for frame, _ in traceback.walk_tb(end.__traceback__):
        if frame.f_globals.get("__name__") == "argparse":
            asked = True
        elif is_own(frame.f_code.co_filename):
            asked = False
    return asked


def _message(error: Exception) -> str:
    if isinstance(error, ConfigError):
        count = len(error.problems)
        head = "1 problem in the config:" if count == 1 else f"{count} problems in the config:"
        return "\n".join([head, *(f"  {problem}" for problem in error.problems)])
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return f"Error: {error}. Make room, and run the same command again: a run continues from its newest checkpoint"
    return f"Error: {error}"

"""Code that is the user's own, such as a reward function: found by its import path, and its errors told as such.

Such an error is one message: what was called, what it raised, and the user's own lines that led there. The lines of
this package and of libraries around them are left out; ``RLHF_TRACEBACK=1`` shows all of them.
"""

from __future__ import annotations

import importlib
import os
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from rlhf import distributed
from rlhf.errors import UserCodeError, UserError

_LINES = 5
"""Of the user's own, innermost last; a recursion has a thousand."""
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_OURS = str(Path(__file__).parent) + os.sep


def own_lines(error: BaseException) -> list[str]:
    """The user's own lines that an error came by, ``file, line 3, in name: text``, innermost last.

    Args:
        error: As it was caught: its traceback begins where it was.
    """
    found = [
        f"{_shown(frame.filename)}, line {frame.lineno}, in {frame.name}: {frame.line}"
        for frame in traceback.extract_tb(error.__traceback__)
        if is_own(frame.filename)
    ]
    if isinstance(error, SyntaxError) and error.filename and is_own(error.filename):
        found.append(f"{_shown(error.filename)}, line {error.lineno}: {(error.text or '').strip()}")
    return found[-_LINES:]


def is_own(file: str) -> bool:
    """Whether a file is the user's own: of no library and not of this package."""
    inside_library = {"site-packages", "dist-packages"} & set(Path(file).parts)
    return not (file.startswith(("<", _OURS, *_LIBRARIES)) or inside_library)


def _shown(file: str) -> str:
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file


def told(what: str, error: BaseException) -> UserCodeError:
    """The message of an error that the user's code has raised.

    Args:
        what: Which code, with the setting that names it: ``"function: my_rewards.length"``.
        error: What it raised.
    """
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    kind = type(error).__name__
    text = f"{what} raised {kind}: {text}" if text else f"{what} raised {kind}"
    if isinstance(error, SystemExit):
        text += " (it asked the program to end; let it return, or raise an error)"
    return UserCodeError("\n  ".join([text, *own_lines(error), "RLHF_TRACEBACK=1 shows the whole traceback"]))


@contextmanager
def users_code(what: str) -> Iterator[None]:
    """Inside, the user's code is called, and nothing else.

    Args:
        what: Which code, with the setting that names it.

    Raises:
        UserCodeError: it raised something, ``SystemExit`` included: no function ends the run by itself.
    """
    try:
        yield
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise told(what, error) from error


@contextmanager
def own_errors() -> Iterator[None]:
    """Inside, classes of the user's own may be at work: an error that came by their lines is told by these.

    Raises:
        UserCodeError: such an error, or ``SystemExit``. Others pass: they are bugs of this package.
    """
    try:
        yield
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        if distributed.lost_another(error) or not (own_lines(error) or isinstance(error, SystemExit)):
            raise
        raise told("code of your own", error) from error


def import_module(name: str) -> ModuleType:
    """A module that a config names.

    Raises:
        UserError: there is none of that name.
        UserCodeError: importing it raised something.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):  # it is there, and something that it imports is not
            raise told(f"importing {name}", error) from error
        raise UserError(f"there is no module '{error.name}'. Run from the folder it is in, or install it") from None
    except (Exception, SystemExit) as error:
        raise told(f"importing {name}", error) from error

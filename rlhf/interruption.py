"""Ctrl-C and SIGTERM: a run stops where it can go on from, or at once when asked twice."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from rlhf import distributed

Handler = Callable[[int, FrameType | None], Any]

HANDED_ON = 3.0
"""Seconds in which a signal is taken for the same wish, where a launcher hands on what its processes have got already
from a terminal or a batch system."""
TWICE = "RLHF_SIGNALS_TWICE"
"""Environment variable, set by what runs a process under a batch system that may signal both: a launcher of one."""


class Stopped(KeyboardInterrupt):
    """The process was asked to stop, and has.

    Attributes:
        exit_code: 130 for Ctrl-C, 143 for SIGTERM, as a shell counts.
    """

    def __init__(self, number: int, text: str = "") -> None:
        super().__init__(text)
        self.exit_code = 128 + number


@contextmanager
def _handling(handlers: dict[signal.Signals, Handler]) -> Iterator[Callable[[], None]]:
    """Handles signals inside; yields what puts the former handlers back before the end.

    Signals that are ignored, as those of a background job may be, stay so. Only the main thread can handle any.
    """
    main = threading.current_thread() is threading.main_thread()
    former = {number: signal.getsignal(number) for number in handlers if main}
    former = {number: handler for number, handler in former.items() if handler not in (signal.SIG_IGN, None)}

    def restore() -> None:
        for number, handler in former.items():
            signal.signal(number, handler)

    for number in former:
        signal.signal(number, handlers[number])
    try:
        yield restore
    finally:
        restore()


class _Wishes:
    """Tells a new wish from a signal that comes a second time."""

    def __init__(self) -> None:
        self.first: float | None = None

    def new(self) -> bool:
        """Whether a signal that has come says more than the first one did."""
        now = time.monotonic()
        if self.first is None:
            self.first = now
            return True
        alone = distributed.launched() == 1 and TWICE not in os.environ
        return alone or now - self.first >= HANDED_ON


class StopRequest:
    """A wish to stop, left for a loop to find.

    Attributes:
        signal: What asked; None while nobody has.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Inside, the first SIGINT or SIGTERM is only noted; after it each acts as it does outside."""
        wishes, speaks, noted = _Wishes(), distributed.is_main(), False

        def note(number: int, frame: FrameType | None) -> None:
            nonlocal noted
            if not wishes.new():
                return
            if noted:
                restore()
                os.kill(os.getpid(), number)
                return
            noted, self.signal = True, self.signal or signal.Signals(number)
            if speaks:  # print() may be in the middle of another print(), and then refuses
                os.write(2, b"\nStopping as soon as the run can go on from there; once more stops at once.\n")

        with _handling({signal.SIGINT: note, signal.SIGTERM: note}) as restore:
            yield

    def wanted(self, total: Callable[[float], float] = float) -> bool:
        """Whether this process, or any other of the run, was asked to stop.

        Args:
            total: Sum of a number over all processes, which all call this alike: an engine's ``total``.
        """
        wanted = total(float(self.signal is not None)) > 0
        if wanted and self.signal is None:
            self.signal = signal.SIGTERM
        return wanted

    def stopped(self, where: str) -> Stopped:
        """The error that ends the run.

        Args:
            where: What is saved, as a sentence, for the message.
        """
        assert self.signal is not None
        text = f"stopped by {self.signal.name}; {where}, and the same command continues from there"
        return Stopped(self.signal, text)


@contextmanager
def held() -> Iterator[None]:
    """SIGINT and SIGTERM that come inside act at its end: in the middle of an import some libraries crash on them."""
    came: list[int] = []
    try:
        with _handling(dict.fromkeys((signal.SIGINT, signal.SIGTERM), lambda number, _: came.append(number))):
            yield
    finally:
        for number in came[:1]:
            signal.raise_signal(number)


@contextmanager
def sigterm_raises() -> Iterator[None]:
    """SIGTERM ends the block as Ctrl-C does, so that files and folders in use are put in order."""
    wishes = _Wishes()

    def stop(number: int, frame: FrameType | None) -> None:
        if wishes.new():
            raise Stopped(number)

    with _handling({signal.SIGTERM: stop}):
        yield

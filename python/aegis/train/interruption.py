"""Signals that end a run in order: what is under way is finished, and files are closed."""

from __future__ import annotations

import os
import signal
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Stop", "interruption"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stop:
    """Whether the user wants an end, and by which signal."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def __call__(self) -> bool:
        return self.signal is not None

    @property
    def status(self) -> int:
        """What a process exits with: 128 + the signal, or 0."""
        return 0 if self.signal is None else 128 + self.signal


@contextmanager
def interruption() -> Iterator[Stop]:
    """Notes SIGINT, SIGTERM and SIGHUP; the same one again acts as if this were not there.

    SIGHUP stays ignored where it is, as under nohup. After it, what is printed to a terminal is lost: that is gone.
    Does nothing but on the main thread.
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    if before[signal.SIGHUP] == signal.SIG_IGN:
        del before[signal.SIGHUP]

    def note(number: int, frame: object) -> None:
        stop.signal = stop.signal or number
        if number == signal.SIGHUP:
            _leave_terminal()
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

    for number in before:
        signal.signal(number, note)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _leave_terminal() -> None:
    """Lets standard output and error go nowhere where they went to a terminal: writing would be an error now."""
    nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for descriptor in (1, 2):
        if stat.S_ISCHR(os.fstat(descriptor).st_mode):
            os.dup2(nowhere, descriptor)
    os.close(nowhere)

"""Ctrl-C and SIGTERM: the first drains, the second ends at once.

Before anything is read the first one ends the job, too. While code in C keeps the interpreter, no handler is called:
then the second one kills the process.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

from flamecore.cli.exits import Exit

GRACE_S: Final = 1.0
"""Longest time for a job that is to end at once to close its resources."""

BUSY_S: Final = 0.5
"""Longest wait for a busy event loop before a signal is answered in the midst of a table."""


class Stop:
    """A signal handler that counts the requests to stop.

    Args:
        drain: Asks the job to read no more, and to end when it has delivered what it has read.
        quiet: Whether to say nothing.
        begun: Says whether there is anything to drain.
        clear: Removes the drawing on the terminal, called in the event loop before anything is printed; None: nothing
            is drawn.

    Attributes:
        count: Number of requests.
        early: Whether the first one came before anything was read.
    """

    def __init__(
        self,
        drain: Callable[[], None],
        *,
        quiet: bool = False,
        begun: Callable[[], bool] = lambda: True,
        clear: Callable[[], None] | None = None,
    ) -> None:
        self.count = 0
        self.early = False
        self._drain = drain
        self._quiet = quiet
        self._begun = begun
        self._clear = clear
        self._unsaid = b""
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        """Handle a signal.

        It runs between two instructions of any code, so it only schedules work.
        """
        self.count += 1
        is_own = signal.getsignal(signum) is self
        if is_own:
            handle(signum, self)  # for the next one
        # Nothing was read, so there is nothing to drain: it ends at once.
        if self.count == 1 and not self._begun():
            self.early = True
            self._say(b"stopped before anything was read\n")
            if self._task is not None:
                self._loop.call_soon_threadsafe(self._task.cancel)
            return
        if self.count == 1:
            self._say(b"draining; once more to stop at once\n")
            self._loop.call_soon_threadsafe(self._drain)
            return
        self._say(b"stopped\n")
        if self._task is not None:
            self._loop.call_soon_threadsafe(self._task.cancel)
        # User code that never returns keeps the loop from hearing of it.
        self._later(GRACE_S, self._exit)

    def _say(self, text: bytes) -> None:
        if self._quiet:
            return
        if self._clear is None:
            os.write(2, text)  # printing is not safe in a handler
            return
        # A line in the midst of a table would leave a part of the table behind.
        self._unsaid += text
        self._loop.call_soon_threadsafe(self._say_below)
        self._later(BUSY_S, self._say_now)

    def _say_below(self) -> None:
        if self._unsaid and self._clear is not None:
            self._clear()
            self._say_now()

    def _say_now(self) -> None:
        text, self._unsaid = self._unsaid, b""
        if text:
            os.write(2, text)

    def _exit(self) -> None:
        self._say_now()
        os._exit(int(Exit.STOPPED))

    @staticmethod
    def _later(seconds: float, call: Callable[[], None]) -> None:
        timer = threading.Timer(seconds, call)
        timer.daemon = True
        timer.start()


def handle(number: int, handler: Callable[[int, FrameType | None], object]) -> Any:
    """Have a handler called for the next signal of this number, and return the one before.

    Until it is called, another such signal has its default effect: the process ends. No handler is called while code in
    C keeps the interpreter, so the kernel has to do this; where the C library has no call for it, it is not done.
    """
    before = signal.signal(number, handler)
    set_once = getattr(ctypes.CDLL(None), "sysv_signal", None) if sys.platform == "linux" else None  # of glibc
    if set_once is not None:
        set_once.argtypes, set_once.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
        # The handler of Python, which `signal.signal` has just set; a signal in between is of no effect.
        set_once(number, set_once(number, int(signal.SIG_IGN)))
    return before


@contextmanager
def stopping(
    drain: Callable[[], None],
    *,
    quiet: bool = False,
    begun: Callable[[], bool] = lambda: True,
    clear: Callable[[], None] | None = None,
) -> Iterator[Stop]:
    """Handle signals while the block runs: drain the job, or cancel the task.

    The block must run in the main task of an event loop.

    In a thread other than the main one signals cannot be handled, and stay as they are. Arguments: see `Stop`.
    """
    stop = Stop(drain, quiet=quiet, begun=begun, clear=clear)
    before: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = handle(number, stop)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

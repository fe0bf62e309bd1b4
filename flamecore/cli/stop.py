"""Ctrl-C and SIGTERM: the first drains, the second ends at once."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

from flamecore.cli.exits import Exit

GRACE_S: Final = 1.0
"""How long a job that is to end at once may take to close what it holds."""


class Stop:
    """Counts the requests to stop.

    Args:
        drain: Asks the job to read no more, and to end when it has delivered what it has read.
        quiet: Whether to say nothing.
    """

    def __init__(self, drain: Callable[[], None], *, quiet: bool = False) -> None:
        self.count = 0
        self._drain = drain
        self._quiet = quiet
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        """Handle a signal. Runs between two instructions of anything, so it only leaves word."""
        self.count += 1
        if self.count == 1:
            self._say(b"draining; once more to stop at once\n")
            self._loop.call_soon_threadsafe(self._drain)
            return
        self._say(b"stopped\n")
        if self._task is not None:
            self._loop.call_soon_threadsafe(self._task.cancel)
        # User code that never returns keeps the loop from hearing of it.
        timer = threading.Timer(GRACE_S, os._exit, (int(Exit.STOPPED),))
        timer.daemon = True
        timer.start()

    def _say(self, text: bytes) -> None:
        if not self._quiet:
            os.write(2, text)  # printing is not safe in a handler


@contextmanager
def stopping(drain: Callable[[], None], *, quiet: bool = False) -> Iterator[Stop]:
    """Within the block, which must run in the main task of an event loop, signals drain the job or cancel the task.

    In a thread other than the main one signals cannot be handled, and are left as they are.
    """
    stop = Stop(drain, quiet=quiet)
    before: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, stop)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

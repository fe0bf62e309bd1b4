"""The watch on rounds: no round of a worker's work lasts long beyond the call that is at work."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from contextvars import ContextVar
from time import monotonic
from typing import Final, Protocol
from weakref import WeakKeyDictionary

from flamecore import events
from flamecore.logs import logger
from flamecore.runtime.operators.rounds import Rounds

ROUND_S: Final = 0.05
"""Seconds after which a round ends with the call at work."""

_TOLD_S: Final = 10.0
"""Seconds that a call may last before it is told of, and between two words of it."""

_OWN: Final = ("flamecore.", "flamestream_")
"""Modules of the engine and its plugins, which call the functions of the user."""

_LOOK_S: Final = ROUND_S / 2
_IDLE: Final = 3
"""Looks in a row that find no work before the thread sleeps until there is some."""


class Watch(Protocol):
    """A watch on the rounds of the workers of one event loop, of which one has a turn at a time."""

    def begin(self, rounds: Rounds) -> None:
        """Begin a round."""

    def end(self) -> None:
        """Note that the round has ended."""

    def release(self) -> None:
        """Note that a worker needs it no longer."""


# Not a look at the clock after each call, which costs as much as a short function; and not a signal, which the program
# may use, and which comes to the main thread alone. While C code keeps the interpreter, this thread waits as well: it
# has its turn as soon as the call returns.
class ThreadWatch:
    """A watch by a thread, which runs while there is work."""

    def __init__(self) -> None:
        self.users = 0
        self._rounds: Rounds | None = None
        self._began = 0.0
        self._told = 0.0  # when the call at work was told of, or began
        self._of = threading.get_ident()
        self.asleep = True
        self._woken = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, rounds: Rounds) -> None:
        rounds.begin()
        self._began = self._told = monotonic()
        self._rounds = rounds
        if self.asleep:
            self._wake()

    def end(self) -> None:
        self._rounds = None

    def release(self) -> None:
        self.users -= 1
        if not self.users and self._thread is not None:
            self._woken.set()
            self._thread.join()

    def _wake(self) -> None:
        self.asleep = False
        if self._thread is None:
            self._thread = threading.Thread(target=self._look_on, name="flamestream-rounds", daemon=True)
            self._thread.start()
        else:
            self._woken.set()

    def _look_on(self) -> None:
        idle = 0
        while self.users:
            rounds = self._rounds
            idle = 0 if rounds is not None else idle + 1
            if rounds is not None and not rounds.is_over and monotonic() >= self._began + ROUND_S:
                rounds.end()
            if rounds is not None and monotonic() >= self._told + _TOLD_S:
                self._told = monotonic()
                tell_of_call(self._of, self._told - self._began)
            if idle > _IDLE:
                self.asleep = True
                # Once more, for work that has come since the look above has not seen a sleeper.
                if self._rounds is None:
                    self._woken.wait()
                idle, self.asleep = 0, False
            else:
                self._woken.wait(_LOOK_S)
            self._woken.clear()


def tell_of_call(thread: int, lasted_s: float) -> None:
    """Log the function of the user that a thread has long been in, if it is in one.

    Args:
        thread: Identifier of the thread.
        lasted_s: Seconds for which the thread has been at work.
    """
    frame = sys._current_frames().get(thread)
    line, user = frame, None
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith(_OWN):
            break
        user, frame = frame, frame.f_back
    if user is None or frame is None or line is None:
        return
    logger().warning(
        events.CALL_LASTED,
        function=user.f_code.co_qualname,
        at=f"{line.f_code.co_filename}:{line.f_lineno}",
        lasted_s=round(lasted_s, 1),
        pid=os.getpid(),
    )


WATCH: ContextVar[Watch | None] = ContextVar("WATCH", default=None)
"""The watch, in place of a thread: of a simulation."""

_watches: WeakKeyDictionary[asyncio.AbstractEventLoop, ThreadWatch] = WeakKeyDictionary()


def watch() -> Watch:
    """Return the watch of this event loop; the caller releases it."""
    if (given := WATCH.get()) is not None:
        return given
    loop = asyncio.get_running_loop()
    found = _watches.get(loop)
    if found is None or not found.users:
        found = _watches[loop] = ThreadWatch()
    found.users += 1
    return found

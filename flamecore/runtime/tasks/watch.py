"""The watch on rounds: no round of a worker's work lasts long beyond the call that is at work."""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from time import monotonic
from types import FrameType
from typing import Final, NamedTuple, Protocol
from weakref import WeakKeyDictionary

from flamecore import events
from flamecore.errors import CallLimitError
from flamecore.logs import logger
from flamecore.model.failure import shorten_repr
from flamecore.runtime.operators.rounds import Rounds

ROUND_S: Final = 0.05
"""Seconds after which a round ends with the call at work."""

_TOLD_S: Final = 10.0
"""Seconds that a call may last before it is told of, and between two words of it."""

_OWN: Final = ("flamecore.", "flamestream_")
"""Modules of the engine and its plugins, which call the functions of the user."""
_IMPORTS: Final = "importlib"
"""The module that stands between the engine and a module of the user."""

_LOOK_S: Final = ROUND_S / 2
_IDLE: Final = 3
"""Looks in a row that find no work before the thread sleeps until there is some."""


_GRACE_S: Final = 1.0
"""Seconds in which a call that is beyond its limit may end with the error raised in it."""


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
        self.limit: CallLimit | None = None
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
            if self.limit is not None:
                self.limit.look(at_work=rounds is not None and rounds.is_over)
            if idle > _IDLE:
                self.asleep = True
                # Once more, for work that has come since the look above has not seen a sleeper.
                if self._rounds is None:
                    self._woken.wait()
                idle, self.asleep = 0, False
            else:
                self._woken.wait(_LOOK_S)
            self._woken.clear()


class Call(NamedTuple):
    """A call of a function of the user.

    Attributes:
        function: Frame of the function that the engine has called.
        line: Frame at work, of the function or of code that it has called.
    """

    function: FrameType
    line: FrameType

    @property
    def name(self) -> str:
        """Return the name of the function."""
        return self.function.f_code.co_qualname

    @property
    def at(self) -> str:
        """Return file and line at work."""
        return f"{self.line.f_code.co_filename}:{self.line.f_lineno}"

    @property
    def record(self) -> str:
        """Return what the function was called with, in short."""
        code, values = self.function.f_code, self.function.f_locals
        names = code.co_varnames[: code.co_argcount]
        return ", ".join(shorten_repr(values[name]) for name in names if name in values)


def call_of(thread: int) -> Call | None:
    """Return the call of a user's function that a thread is in; None: it is in none."""
    frame = sys._current_frames().get(thread)
    line, user = frame, None
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.startswith(_OWN):
            break
        user, frame = user if module.startswith(_IMPORTS) else frame, frame.f_back
    return None if user is None or frame is None or line is None else Call(user, line)


def tell_of_call(thread: int, lasted_s: float) -> None:
    """Log the function of the user that a thread has long been in, if it is in one.

    Args:
        thread: Identifier of the thread.
        lasted_s: Seconds for which the thread has been at work.
    """
    if (call := call_of(thread)) is not None:
        logger().warning(
            events.CALL_LASTED, function=call.name, at=call.at, lasted_s=round(lasted_s, 1), pid=os.getpid()
        )


@contextmanager
def told_of_calls() -> Iterator[None]:
    """Log, from time to time, the user's code that this thread is in within the block, such as a module's import."""
    thread, began, over = threading.get_ident(), monotonic(), threading.Event()

    def look() -> None:
        while not over.wait(_TOLD_S):
            tell_of_call(thread, monotonic() - began)

    looking = threading.Thread(target=look, name="flamestream-calls", daemon=True)
    looking.start()
    try:
        yield
    finally:
        over.set()
        looking.join()


_end_process: Callable[[str], None] | None = None


def end_process_by(end: Callable[[str], None] | None) -> None:
    """Set how this process ends if a call is beyond its limit, and no error can be raised in it.

    Args:
        end: Called in another thread than the call, with the text of the error; None: the call is waited for, since
            others than the job use the process.
    """
    global _end_process
    _end_process = end


class CallLimit:
    """The limit of each call of a user's function in one thread: an error in the call, then the end of the process.

    Args:
        thread: Identifier of the thread.
        limit_s: Most seconds of a call.
    """

    def __init__(self, thread: int, limit_s: float) -> None:
        self._thread, self._limit_s = thread, limit_s
        self._function: FrameType | None = None
        self._since = 0.0
        self._raised = False
        what = f"the call has lasted for more than job.call_limit_s = {limit_s:g} s"

        class Raised(CallLimitError):
            def __init__(self) -> None:  # only a class can be raised in another thread
                super().__init__(what)

        Raised.__name__ = Raised.__qualname__ = CallLimitError.__name__
        self._error = Raised

    def look(self, *, at_work: bool) -> None:
        """Look at the thread; `at_work` unless it has just begun a round, or is in none."""
        call = call_of(self._thread) if at_work else None
        # The frame is kept, so that no later call has its identity.
        if call is None or call.function is not self._function:
            self._function, self._raised = None if call is None else call.function, False
            self._since = monotonic()
            return
        lasted_s = monotonic() - self._since
        if lasted_s >= self._limit_s and not self._raised:
            self._raised = True
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread), ctypes.py_object(self._error))
        elif lasted_s >= self._limit_s + _GRACE_S and _end_process is not None:
            _end_process(
                f"CallLimitError: {call.name} has lasted for more than job.call_limit_s = {self._limit_s:g} s, and "
                f"does not end\n  record    {call.record}\n  at        {call.at}"
            )


WATCH: ContextVar[Watch | None] = ContextVar("WATCH", default=None)
"""The watch, in place of a thread: of a simulation."""

_watches: WeakKeyDictionary[asyncio.AbstractEventLoop, ThreadWatch] = WeakKeyDictionary()


def watch(limit_s: float | None = None) -> Watch:
    """Return the watch of this event loop; the caller releases it.

    Args:
        limit_s: Most seconds of a call of a user's function; None: any number.
    """
    if (given := WATCH.get()) is not None:
        return given
    loop = asyncio.get_running_loop()
    found = _watches.get(loop)
    if found is None or not found.users:
        found = _watches[loop] = ThreadWatch()
        found.limit = None if limit_s is None else CallLimit(threading.get_ident(), limit_s)
    found.users += 1
    return found

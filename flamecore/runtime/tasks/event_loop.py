"""The event loop of a job: its clock, its end, and its background tasks."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from time import monotonic as _now
from typing import Final, TypeVar
from weakref import WeakSet

from flamecore import events
from flamecore.errors import ConfigError, FlameError, JobError
from flamecore.logs import logger
from flamecore.model import failure
from flamecore.runtime.tasks.leftovers import Leftovers
from flamecore.suggest import install_command
from flamecore.toolkit.closing import closings


def monotonic() -> float:
    """Return the time of the event loop in seconds: real or simulated."""
    return asyncio.get_running_loop().time()


def clock() -> Callable[[], float]:
    """Return the clock of the event loop, as `monotonic`, for a task that asks for the time with each batch."""
    return asyncio.get_running_loop().time


class BackgroundTasks:
    """Background tasks, which no other task awaits."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, task: asyncio.Task[None]) -> None:
        """Keep a task until it ends, and ignore its outcome."""
        self.keep(task)
        task.add_done_callback(ignore_outcome)

    def keep(self, task: asyncio.Task[None]) -> None:
        """Keep a task until it ends; asyncio reports its unexpected errors."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def aclose(self) -> None:
        """Cancel all tasks, and wait until they have ended."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


def ignore_outcome(done: asyncio.Future[None]) -> None:
    """Ignore the outcome of a future, so that asyncio does not report its error."""
    if not done.cancelled():
        done.exception()


def start(
    work: Coroutine[object, object, None], failed: Callable[[BaseException], None], name: str | None = None
) -> asyncio.Task[None]:
    """Start a task.

    Args:
        work: Its work.
        failed: Function called with its error, unless it is cancelled.
        name: Its name.
    """

    def ended(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            failed(error)

    task = asyncio.create_task(work, name=name)
    task.add_done_callback(ended)
    return task


_COROUTINE: Final = inspect.CO_COROUTINE | inspect.CO_ITERABLE_COROUTINE | inspect.CO_ASYNC_GENERATOR


def ending_error(error: BaseException, during: str) -> Exception:
    """Return the error that ends a job whose code has raised one; itself, if it is one that others handle.

    User code that raises what is no `Exception` would end the process or a task without a reason.

    Args:
        error: The error, with its traceback.
        during: Description of the current work.

    Raises:
        KeyboardInterrupt: As `flamecore.model.failure.ending_error`.
        CancelledError: The error itself, if the present task was told to end.
        GeneratorExit: The error itself, if it was thrown into a coroutine, which is closed.
    """
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise error
    if isinstance(error, GeneratorExit):
        *_, (innermost, _) = traceback.walk_tb(error.__traceback__)
        if innermost.f_code.co_flags & _COROUTINE:
            raise error
    return failure.ending_error(error, during)


@contextmanager
def ended_by_errors(during: str) -> Iterator[None]:
    """Have what user code raises in the block end the job, also if it is no `Exception`: see `ending_error`."""
    try:
        yield
    except BaseException as error:
        ended = ending_error(error, during)
        if ended is error:
            raise
        raise ended from error


T = TypeVar("T")

_LIMIT_S: Final = 30.0
_GRACE_S: Final = 1.0
"""Seconds that remaining tasks and threads may take to end; the second if a call has timed out already. After the
second there is a warning."""

_given_up: WeakSet[asyncio.AbstractEventLoop] = WeakSet()
_left = False


_OPEN_FILES: Final = (65_536, 10_240)
"""Limits of open files that are tried, one after the other, if the hard one is higher: what a job may need, and the
highest that macOS takes where it says that there is none. A far higher one slows down other programs, which close all
descriptors that they may have."""

_FEWEST_OPEN_FILES: Final = 16
"""The least with which a job on one worker has read and written a file, on either loop."""

CHOICE: Final = "FLAMESTREAM_EVENT_LOOP"
"""Environment variable with the name of the event loop."""


@cache
def _fast_loop() -> Callable[[], asyncio.AbstractEventLoop]:
    import uvloop

    class Loop(uvloop.Loop):
        """uvloop's event loop with a precise clock: its own counts whole milliseconds, longer than most steps."""

        time = staticmethod(_now)

    return Loop


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the function that makes the event loop of a job; None: asyncio's own.

    It is uvloop's wherever that is installed, unless the environment variable `FLAMESTREAM_EVENT_LOOP` says "asyncio".

    Raises:
        ConfigError: The variable names a loop that is unknown or not installed.
    """
    choice = os.environ.get(CHOICE, "")
    there = find_spec("uvloop") is not None
    if choice not in ("", "asyncio", "uvloop"):
        raise ConfigError(f"{CHOICE} is {choice!r}", hint='It is "asyncio" or "uvloop"; unset: uvloop if installed.')
    if choice == "uvloop" and not there:
        raise ConfigError(
            f"{CHOICE} is uvloop, which is not installed",
            hint=f"{install_command('flamestream', 'uvloop')}, or unset it.",
        )
    return _fast_loop() if there and choice != "asyncio" else None


def run(main: Coroutine[object, object, T]) -> T:
    """Run a coroutine in a loop of its own, as `asyncio.run` does.

    What it leaves open is named by a warning; see `flamecore.runtime.tasks.leftovers`.

    Raises:
        ConfigError: As `loop_factory`.
        JobError: The limit of open files is too low.
    """
    try:
        _fill_standard_descriptors()
        _allow_open_files()
        made = loop_factory()
    except FlameError:
        main.close()
        raise
    with Leftovers() as leftovers:
        return _run(main, asyncio.Runner(loop_factory=made), leftovers)


def _run(main: Coroutine[object, object, T], runner: asyncio.Runner, leftovers: Leftovers) -> T:
    # A pool of our own in the loop's place: `asyncio.run` would wait for its threads for minutes, or without a limit.
    threads = ThreadPoolExecutor(thread_name_prefix="asyncio")
    runner.get_loop().set_default_executor(threads)
    failed: BaseException | None = None
    with _woken_by_signals(runner.get_loop()):
        try:
            return runner.run(main)
        except BaseException as error:
            failed = error
            raise
        finally:
            _close(runner, threads, failed, leftovers)
            del failed  # which would hold on to this frame


@contextmanager
def _woken_by_signals(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Wake a loop of asyncio's at every signal, so that its handler is called at once.

    Python calls a handler when the main thread runs Python code again. A signal interrupts the wait of the loop only if
    it comes in the midst of it, and to this thread: one that comes just before would be handled when the next timer is
    due, which may be never. asyncio wakes its loop only for handlers that it keeps itself, and calls none of those
    while a function of the user is busy. The other loops wake themselves.
    """
    if not isinstance(loop, asyncio.SelectorEventLoop) or threading.current_thread() is not threading.main_thread():
        yield
        return
    woken, waking = socket.socketpair()
    with woken, waking:
        woken.setblocking(False)
        waking.setblocking(False)
        loop.add_reader(woken, woken.recv, 4096)
        before = signal.set_wakeup_fd(waking.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)


def _fill_standard_descriptors() -> None:
    """Open those that were closed when the process was started, as some launchers do.

    The next file or socket would get the number of one, and be taken for it; uvloop ends the process then.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # the lowest free number, as the system gives them
            os.set_inheritable(opened, True)


def _allow_open_files() -> None:
    """Raise the limit of open files that this process may raise itself, since a job may read many.

    It stays raised: other jobs may run in the process, and those that it starts inherit it.

    Raises:
        JobError: It is so low that the loop cannot end, to say what is wrong.
    """
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < _FEWEST_OPEN_FILES:
        raise JobError(
            f"this process may have {hard} files open at a time, and a job needs some {_FEWEST_OPEN_FILES} at least",
            hint="Have its limit raised: ulimit -Hn says what it is.",
        )
    for most in _OPEN_FILES:
        wanted = most if hard == resource.RLIM_INFINITY else min(most, hard)
        if soft == resource.RLIM_INFINITY or soft >= wanted:
            return
        with suppress(OSError, ValueError):  # there is another limit, of the whole system
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            return


def give_up() -> None:
    """Note that a call in this loop has timed out, and may never end."""
    _given_up.add(asyncio.get_running_loop())


def exit_without_waiting(end: object) -> None:
    """End this process, if something left behind would keep it from ending.

    Args:
        end: The exit code, as `SystemExit` has it; or the exception that ends the program, to be shown as Python does.
    """
    if _left:
        code = end.code if isinstance(end, SystemExit) else end
        if isinstance(code, BaseException):
            sys.excepthook(type(code), code, code.__traceback__)
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):  # its reader is gone
                stream.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))


def _close(
    runner: asyncio.Runner, threads: ThreadPoolExecutor, failed: BaseException | None, leftovers: Leftovers
) -> None:
    global _left
    loop = runner.get_loop()
    tasks = asyncio.all_tasks(loop)
    # Whoever has cancelled a task need not wait for it, since the end of the loop does. And an interrupt breaks off the
    # main task, which had no time to end the others.
    broken_off = isinstance(failed, KeyboardInterrupt | SystemExit)
    left = [] if broken_off else [task for task in tasks if not task.cancelling()]
    for task in tasks:
        if task not in closings:
            task.cancel()
    limit_s = _GRACE_S if loop in _given_up else _LIMIT_S
    before, _left = _left, True  # the value if a signal interrupts this
    ending = loop.create_task(_ended(tasks, threads, limit_s, failed))
    # A signal may have come between the end of the main task and the stop of the loop: then that stop is still to come,
    # and ends the first wait.
    with suppress(RuntimeError):
        loop.run_until_complete(ending)
    if loop.run_until_complete(ending):
        _left = before or loop in _given_up  # a timed out call may be in a thread unknown here
        if not _left:  # otherwise the log has told of it
            loop.run_until_complete(leftovers.look(left))
        with leftovers.silent():
            runner.close()
        return
    asyncio.set_event_loop(None)
    loop.close()


async def _ended(
    tasks: set[asyncio.Task[object]], threads: ThreadPoolExecutor, limit_s: float, failed: BaseException | None
) -> bool:
    """Wait for tasks and threads; return whether all have ended.

    Warns if they take long.
    """
    loop = asyncio.get_running_loop()
    returned = loop.create_future()

    def join() -> None:
        threads.shutdown(cancel_futures=True)
        with suppress(RuntimeError):  # the wait is over, and the loop closed
            loop.call_soon_threadsafe(returned.set_result, None)

    # In a daemon thread: the join of the pool may never return, and would keep the process from
    # ending.
    threading.Thread(target=join, name="joining", daemon=True).start()
    done, waiting = await asyncio.wait((*tasks, returned), timeout=min(limit_s, _GRACE_S))
    for late in tasks & waiting:
        if late in closings:
            late.cancel()
    if waiting and limit_s > _GRACE_S:
        what = [getattr(task.get_coro(), "__qualname__", task.get_name()) for task in tasks & waiting]
        what += ["threads"] * (returned in waiting)
        facts = {} if failed is None else {"error": traceback.format_exception_only(failed)[0].splitlines()[0]}
        logger().warning(events.REST_WAITED, waits_for=", ".join(what), limit_s=limit_s, **facts)
        done, waiting = await asyncio.wait((*tasks, returned), timeout=limit_s - _GRACE_S)
    for task in done:
        if not task.cancelled() and (error := task.exception()) is not None:
            context = {"message": "unhandled exception as the event loop ends", "exception": error, "task": task}
            loop.call_exception_handler(context)
    return not waiting

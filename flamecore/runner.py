"""Runs an event loop to its end, also where something in it never ends.

`asyncio.run` waits for every task that was cancelled and every thread that was lent out, without a limit; and when
Python ends, so it does for threads. User code and drivers may ignore that, or hang. Here they are left behind after a
while.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar
from weakref import WeakSet

T = TypeVar("T")

_LIMIT_S: Final = 300.0
_GRACE_S: Final = 1.0
"""How long what is left may take to end; and if something has been given up already."""

_given_up: WeakSet[asyncio.AbstractEventLoop] = WeakSet()
_left = False


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a loop of its own, as `asyncio.run` does."""
    runner = asyncio.Runner()
    threads = ThreadPoolExecutor(thread_name_prefix="asyncio")
    runner.get_loop().set_default_executor(threads)
    try:
        return runner.run(main)
    finally:
        _close(runner, threads)


def give_up() -> None:
    """Something that runs in the present loop has been waited for long enough."""
    _given_up.add(asyncio.get_running_loop())


def aside(function: Callable[[], T]) -> asyncio.Future[T]:
    """Call a function that may never return, in a thread of its own, which nobody waits for in the end.

    Returns:
        What it returns or raises, in the present loop.
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()

    def tell(say: Callable[[], None]) -> None:
        if not outcome.cancelled():
            say()

    def call() -> None:
        try:
            say = partial(outcome.set_result, function())
        except BaseException as error:  # noqa: BLE001 - it is whoever waits for it that is told
            say = partial(outcome.set_exception, error)
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(tell, say)

    threading.Thread(target=call, name="aside", daemon=True).start()
    return outcome


def leave(code: object) -> None:
    """Have this process end, if something was left behind in it that would keep it from that.

    Args:
        code: The exit code, as `SystemExit` has it.
    """
    if _left:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):  # whoever reads it is gone
                stream.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))


def _close(runner: asyncio.Runner, threads: ThreadPoolExecutor) -> None:
    global _left
    loop = runner.get_loop()
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    limit_s = _GRACE_S if loop in _given_up else _LIMIT_S
    if loop.run_until_complete(_ended(tasks, threads, limit_s)):
        runner.close()
        return
    _left = True
    asyncio.set_event_loop(None)
    loop.close()


async def _ended(tasks: set[asyncio.Task[Any]], threads: ThreadPoolExecutor, limit_s: float) -> bool:
    """Wait for all of them. Returns whether they have ended."""
    loop = asyncio.get_running_loop()
    returned = loop.create_future()

    def join() -> None:
        threads.shutdown(cancel_futures=True)
        with suppress(RuntimeError):  # it was not waited for any longer
            loop.call_soon_threadsafe(returned.set_result, None)

    threading.Thread(target=join, name="joining", daemon=True).start()
    done, waiting = await asyncio.wait((*tasks, returned), timeout=limit_s)
    for task in done:
        if not task.cancelled() and (error := task.exception()) is not None:
            context = {"message": "unhandled exception as the event loop ends", "exception": error, "task": task}
            loop.call_exception_handler(context)
    return not waiting

"""Threads aside: calls that may never return, which no event loop waits for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar
from weakref import WeakSet

T = TypeVar("T")

aside: Final[WeakSet[threading.Thread]] = WeakSet()
"""Threads whose call may never return. One that is left when its loop has ended is no leftover."""


def in_daemon_thread(function: Callable[[], T]) -> asyncio.Future[T]:
    """Call a function that may never return in a daemon thread.

    Returns:
        A future of the current loop with its result or exception.
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()

    def tell(say: Callable[[], None]) -> None:
        if not outcome.cancelled():
            say()

    def call() -> None:
        try:
            say = partial(outcome.set_result, function())
        except BaseException as error:  # noqa: BLE001 - the future carries it to its waiter
            say = partial(outcome.set_exception, error)
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(tell, say)

    thread = threading.Thread(target=call, name="aside", daemon=True)
    aside.add(thread)
    thread.start()
    return outcome

"""The closing of what is open, which no cancellation cuts short."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Final, TypeVar
from weakref import WeakSet

T = TypeVar("T")

closings: Final[WeakSet[asyncio.Task[Any]]] = WeakSet()
"""Tasks that close something: whoever cancels all tasks of an event loop cancels them last."""

closed_by_libraries: Final[dict[int | str, None]] = {}
"""Ports, and paths of unix sockets, at which a library has connections that it closes in its own time, such as those to
a peer that stands still. No look for what is left open can ask for more of these.
"""

_MOST_PLACES: Final = 4096


def leave_to_library(place: int | str) -> None:
    """Note a port, or the path of a unix socket, of connections that a library closes in its own time.

    The earliest ones are forgotten when there are many: a program may run jobs for ever.
    """
    closed_by_libraries.pop(place, None)
    closed_by_libraries[place] = None
    while len(closed_by_libraries) > _MOST_PLACES:
        del closed_by_libraries[next(iter(closed_by_libraries))]


async def to_its_end(closing: Coroutine[object, object, T]) -> T:
    """Await the closing of a resource to its end, also if the waiting task is cancelled meanwhile.

    A server or a connection whose closing is cut short stays open, and nobody has a way to it any more: it is left to
    the garbage collector, which may come when its event loop has gone.

    Args:
        closing: A closing that is bounded in time by itself.

    Raises:
        CancelledError: The waiting task was cancelled; the closing has ended all the same.
    """
    task: asyncio.Task[T] = asyncio.create_task(closing)
    closings.add(task)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not task.cancelled() and (failed := task.exception()) is not None:
            raise cancelled from failed
        raise cancelled
    return task.result()


class ClosingStack(AsyncExitStack):
    """An exit stack whose end no cancellation cuts short; its callbacks are bounded in time by themselves."""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return await to_its_end(super().__aexit__(kind, error, traceback))

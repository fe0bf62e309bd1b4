"""The end of a session under a flow: it is stopped, or its Java ends."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar

from flamecore.errors import JobError, SourceError
from flamestream_spark.session.messages import may_be_end
from flamestream_spark.session.session import is_gone

ENDED: Final = "Spark has ended: its session was stopped, or its Java has ended"
REMEDY: Final = (
    "All delivered outputs are right. Run the flow again on a new session: what keeps state, as a checkpoint of "
    "stream() does, goes on exactly."
)

_LOOK_S: Final = 0.3
_AGAIN_S: Final = 0.1
_SETTLE_S: Final = 3.0
"""Seconds for Spark to be gone after an error that may come of its end."""
_CLOSE_S: Final = 10.0

T = TypeVar("T")


def ended() -> JobError:
    """Return the error of a flow whose session has ended."""
    return JobError(ENDED, hint=REMEDY)


def source_ended(source: str) -> SourceError:
    """Return the error of a source whose session has ended."""
    return SourceError(f"source {source!r}: {ENDED}", hint=REMEDY, source=source, position="")


def ends_with(session: Any, error: BaseException | None) -> bool:
    """Return whether a session has ended, or is about to and has caused this error.

    Where all processes of a job are told to stop at once, tasks may end before Spark itself. Not for an event loop.
    """
    limit = time.monotonic() + _SETTLE_S
    while not is_gone(session):
        if error is None or not may_be_end(error) or time.monotonic() > limit:
            return False
        time.sleep(_AGAIN_S)
    return True


@contextmanager
def told_of_end(session: Any) -> Iterator[None]:
    """Have errors of the block that come of the session's end say so.

    Raises:
        JobError: The session has ended.
    """
    try:
        yield
    except Exception as error:
        if not ends_with(session, error):
            raise
        raise ended() from error


async def while_there(session: Any, work: Callable[[], Coroutine[object, object, T]]) -> T:
    """Do some work, and cancel it once the session has ended.

    Raises:
        JobError: The session has ended.
    """
    loop, over = asyncio.get_running_loop(), threading.Event()
    task = asyncio.create_task(work())
    gone = False

    def end() -> None:
        nonlocal gone
        gone = not task.done() and task.cancel()

    watch = threading.Thread(target=_watch, args=(session, over, loop, end), name="end of Spark", daemon=True)
    watch.start()
    try:
        return await task
    except asyncio.CancelledError as error:
        if not gone:
            raise
        raise ended() from error
    except Exception as error:
        if not await asyncio.to_thread(ends_with, session, error):
            raise
        raise ended() from error
    finally:
        over.set()
        await asyncio.to_thread(watch.join, _CLOSE_S)


def _watch(session: Any, over: threading.Event, loop: asyncio.AbstractEventLoop, end: Callable[[], None]) -> None:
    while not over.wait(_LOOK_S):
        if is_gone(session):
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(end)
            return

"""A fix for gRPC's wake-ups of the event loop, which block under load.

A thread of gRPC writes a byte into a socket pair for every event, and the event loop reads one byte a turn, in which it
handles all events there are. So bytes pile up while the loop is busy. Some 280 of them fill the socket; the thread then
waits until three quarters are gone, and for as many turns of the loop nothing is sent and nothing arrives: 100 ms and
more at a time where a user's function keeps the loop busy (grpcio 1.85; its pull request 40989 describes the same
wait). Here the bytes without an event are read as well.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

_MANY: Final = 4096
_QUEUE: Final = "PollerCompletionQueue"


# gRPC hands its reader to a loop when it first uses it, and keeps it to itself. To look for it afterwards would need
# the inside of the loop, and each kind of loop has another.
@contextmanager
def unclogged(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Make a loop read all wake-up bytes in one turn, if gRPC begins to use it meanwhile.

    A loop whose methods cannot be replaced, and one that gRPC used before, keeps gRPC's own way.
    """
    add_reader = loop.add_reader

    def add(read_end: Any, handle: Callable[..., Any], *arguments: Any) -> None:
        inner = handle.func if isinstance(handle, partial) else handle
        if type(getattr(inner, "__self__", None)).__name__ == _QUEUE and isinstance(read_end, socket.socket):
            return add_reader(read_end, _read_all, read_end, handle)
        return add_reader(read_end, handle, *arguments)

    try:
        loop.add_reader = add  # type: ignore[assignment, method-assign]
    except AttributeError:
        yield
        return
    try:
        yield
    finally:
        del loop.add_reader


def _read_all(read_end: socket.socket, handle: Callable[[], Any]) -> None:
    """Run gRPC's handler, which reads one byte; then read the other old bytes.

    If the handler fails at an event of a loop that was closed, the bytes stay: the events behind it need the next byte.
    """
    there = len(read_end.recv(_MANY, socket.MSG_PEEK))
    handle()
    if there > 1:
        read_end.recv(there - 1)

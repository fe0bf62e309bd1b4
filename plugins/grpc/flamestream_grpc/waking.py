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
from collections.abc import Callable
from functools import partial
from typing import Any, Final

_MANY: Final = 4096
_QUEUE: Final = "PollerCompletionQueue"


def unclog(loop: asyncio.AbstractEventLoop) -> bool:
    """Make a loop read all wake-up bytes in one turn; call it once gRPC uses the loop.

    Returns:
        Whether the socket was found. If not, gRPC's own way stays.
    """
    selector = getattr(loop, "_selector", None)
    if selector is None:
        return False
    for key in list(selector.get_map().values()):
        reader = key.data[0] if isinstance(key.data, tuple) else None
        handle = getattr(reader, "_callback", None)
        inner = handle.func if isinstance(handle, partial) else handle
        if handle is None or type(getattr(inner, "__self__", None)).__name__ != _QUEUE:
            continue
        if isinstance(key.fileobj, socket.socket):
            loop.add_reader(key.fileobj, partial(_read_all, key.fileobj, handle))
            return True
    return False


def _read_all(read_end: socket.socket, handle: Callable[[], Any]) -> None:
    """Run gRPC's handler, which reads one byte; then read the other old bytes.

    If the handler fails at an event of a loop that was closed, the bytes stay: the events behind it need the next byte.
    """
    there = len(read_end.recv(_MANY, socket.MSG_PEEK))
    handle()
    if there > 1:
        read_end.recv(there - 1)

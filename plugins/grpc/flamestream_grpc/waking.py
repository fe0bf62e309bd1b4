"""Keeps gRPC's way of waking the event loop from clogging.

A thread of gRPC writes a byte into a socket pair for every event, and the event loop reads one byte a turn, in which it
handles all events there are. So bytes pile up while the loop is busy. Some 280 of them fill the socket; the thread
then waits until three quarters are gone, and for as many turns of the loop nothing is sent and nothing arrives:
100 ms and more at a time where a user's function keeps the loop busy (grpcio 1.85; its pull request 40989 tells of the
same wait). Here the bytes that no event is left for are taken out as well.
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
    """See to it that all bytes are read in one turn. To be called once gRPC works on this loop.

    Returns:
        Whether the socket was found. If not, everything works as gRPC has it.
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
    """Have gRPC take one byte and handle all events; then take the bytes of those that were there before it began.

    Not if it fails at an event of a loop that is closed by now: those behind that wait for the next byte.
    """
    there = len(read_end.recv(_MANY, socket.MSG_PEEK))
    handle()
    if there > 1:
        read_end.recv(there - 1)

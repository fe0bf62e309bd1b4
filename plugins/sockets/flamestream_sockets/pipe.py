"""One end of a socket, which carries whole messages.

A message is its length in 4 bytes, its kind in one, a check of both in two, a checksum of its bytes in 8, and its
bytes. The numbers are big-endian, and the length counts the bytes only. Damage breaks the connection, which is made
anew. The checksums of frames would not do: a damaged length would be waited for, and a damaged greeting refused.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from enum import IntEnum
from socket import socket
from typing import Final, NamedTuple, cast

import xxhash

from flamecore.toolkit.closing import to_its_end
from flamecore.toolkit.links.connection import BrokenConnectionError

_HEAD: Final = struct.Struct(">IBHQ")
_MESSAGE_BYTES: Final = 64
"""Memory that a message takes besides its bytes, about: it may be of none."""
_AHEAD_BYTES: Final = 2**20
"""Most bytes that wait here to be read, or to be taken by the system; one message more may be among them."""


class Kind(IntEnum):
    """The kind of a message."""

    DATA = 0
    GREETING = 1
    ACCEPTED = 2
    REFUSED = 3
    END = 4


class Message(NamedTuple):
    """A message that has arrived."""

    kind: int
    body: bytes


def packed(kind: int, body: bytes) -> bytes:
    """Return the bytes of a message."""
    return _HEAD.pack(len(body), kind, _check(len(body), kind), xxhash.xxh3_64_intdigest(body)) + body


class Pipe(asyncio.Protocol):
    """One end of a socket.

    Args:
        most_bytes: Largest message; a larger one breaks the connection.
        made: Function called when it is connected.
    """

    def __init__(self, most_bytes: int, made: Callable[[Pipe], None] | None = None) -> None:
        self._most_bytes = most_bytes
        self._made = made
        self._transport: asyncio.Transport | None = None
        self._rest = bytearray()
        self._arrived: deque[Message] = deque()
        self._arrived_bytes = 0
        self._reader: asyncio.Future[None] | None = None
        self._writers: asyncio.Future[None] | None = None
        self._paused = False
        self._broken = ""
        self._lost = asyncio.Event()

    # -- for asyncio -------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_AHEAD_BYTES)
        if self._made is not None:
            self._made(self)

    def data_received(self, data: bytes) -> None:
        rest = self._rest
        rest += data
        at, end = 0, len(rest)
        while end - at >= _HEAD.size:
            size, kind, check, checksum = _HEAD.unpack_from(rest, at)
            if check != _check(size, kind):
                self._break("the head of a message is damaged")
                return
            if size > self._most_bytes:
                self._break(f"a message of {size} bytes is announced; {self._most_bytes} are the limit")
                return
            begin = at + _HEAD.size
            if end - begin < size:
                break
            at = begin + size
            with memoryview(rest) as view:
                body = bytes(view[begin:at])
            if checksum != xxhash.xxh3_64_intdigest(body):
                self._break("the bytes of a message are damaged")
                return
            self._arrived.append(Message(kind, body))
            self._arrived_bytes += size + _MESSAGE_BYTES
        if at:
            del rest[:at]
            _wake(self._reader)
        if self._arrived_bytes > _AHEAD_BYTES and not self._paused:
            self._paused = True
            assert self._transport is not None
            self._transport.pause_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self._broken = self._broken or (str(error) if error is not None else "the other process closed the socket")
        self._lost.set()
        _wake(self._reader)
        _wake(self._writers)

    def pause_writing(self) -> None:
        self._writers = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        _wake(self._writers)
        self._writers = None

    # -- for a connection --------------------------------------------------------------------------------------------

    @property
    def socket(self) -> socket:
        """Return the socket."""
        assert self._transport is not None
        found: socket = self._transport.get_extra_info("socket")
        return found

    async def read(self) -> Message:
        """Return the next message; wait for one. Used by one task at a time.

        Raises:
            BrokenConnectionError: None has arrived, and none can any more.
        """
        while not self._arrived:
            if self._broken:
                raise BrokenConnectionError(self._broken)
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        message = self._arrived.popleft()
        self._arrived_bytes -= len(message.body) + _MESSAGE_BYTES
        if self._paused and self._arrived_bytes <= _AHEAD_BYTES // 2:
            self._paused = False
            if not self._broken and self._transport is not None:
                self._transport.resume_reading()
        return message

    async def write(self, kind: Kind, body: bytes = b"") -> None:
        """Write a message; wait while many bytes have not been taken.

        Raises:
            BrokenConnectionError: The connection has broken.
        """
        if self._broken:
            raise BrokenConnectionError(self._broken)
        assert self._transport is not None
        self._transport.write(packed(kind, body))
        if self._writers is not None:
            await asyncio.shield(self._writers)

    def abort(self) -> None:
        """Close the socket soon; what was written and not taken is lost."""
        if self._transport is not None:
            self._transport.abort()

    async def aclose(self, limit_s: float = 0.0) -> None:
        """Close the socket, and return when it is closed.

        Args:
            limit_s: Seconds for the other process to take what was written.
        """
        if self._transport is not None:
            await to_its_end(self._close(self._transport, limit_s))

    async def _close(self, transport: asyncio.Transport, limit_s: float) -> None:
        if limit_s:
            transport.close()
            with suppress(TimeoutError):
                async with asyncio.timeout(limit_s):
                    await self._lost.wait()
        transport.abort()
        await self._lost.wait()

    def _break(self, why: str) -> None:
        self._broken = self._broken or why
        self.abort()
        _wake(self._reader)


def _check(size: int, kind: int) -> int:
    """Return a number of 16 bits that is another one if a bit of the two numbers changes."""
    return (size ^ size >> 16 ^ kind << 8) & 0xFFFF


def _wake(waiting: asyncio.Future[None] | None) -> None:
    if waiting is not None and not waiting.done():
        waiting.set_result(None)

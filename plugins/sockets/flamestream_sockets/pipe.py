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
from flamecore.toolkit.links.budget import Budget
from flamecore.toolkit.links.connection import BrokenConnectionError

_HEAD: Final = struct.Struct(">IBHQ")
_MESSAGE_BYTES: Final = 64
"""Memory that a message takes besides its bytes, about: it may be of none."""
_AHEAD_BYTES: Final = 2**20
"""Most bytes that wait here to be read, or to be taken by the system; one message more may be among them."""
GREETING_BYTES: Final = 2**16
"""Largest message before both sides have shown that they belong to the job, and most bytes that wait till then."""


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

    Messages of at most `GREETING_BYTES` may arrive before `admit`.

    Args:
        most_bytes: Largest message after that; a larger one breaks the connection.
        arriving: The budget of all pipes of the process for messages that arrive. A large one is taken from the system
            when there is room for all of it.
        made: Function called when it is connected.
    """

    def __init__(self, most_bytes: int, arriving: Budget, made: Callable[[Pipe], None] | None = None) -> None:
        self._most_bytes = min(most_bytes, GREETING_BYTES)
        self._admitted_bytes = most_bytes
        self._ahead_bytes = GREETING_BYTES
        self._arriving = arriving
        self._granted = 0  # bytes of the budget for the message that is arriving
        self._in_hand = 0  # bytes of the budget for the message that was read last
        self._waits = False  # for the budget
        self._made = made
        self._transport: asyncio.Transport | None = None
        self._rest = bytearray()
        self._arrived: deque[tuple[Message, int]] = deque()  # with the bytes of the budget that each holds
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
        self._rest += data
        self._parse()

    def _parse(self) -> None:
        """Take the whole messages among the bytes that have come."""
        rest = self._rest
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
                self._reserve(size)
                break
            at = begin + size
            with memoryview(rest) as view:
                body = bytes(view[begin:at])
            if checksum != xxhash.xxh3_64_intdigest(body):
                self._break("the bytes of a message are damaged")
                return
            self._arrived.append((Message(kind, body), self._granted))
            self._granted = 0
            self._arrived_bytes += size + _MESSAGE_BYTES
        if at:
            del rest[:at]
            _wake(self._reader)
        self._pause_or_resume()

    def _reserve(self, size: int) -> None:
        """Hold what is arriving in the budget, if it is large; wait for room before more of it is taken."""
        if size > _AHEAD_BYTES and not self._granted and not self._waits:
            self._granted = size
            self._waits = not self._arriving.grant(size, self._go_on)

    def _go_on(self) -> None:
        self._waits = False
        self._pause_or_resume()

    def _pause_or_resume(self) -> None:
        """Take bytes from the system unless much waits to be read, or a large message waits for room."""
        limit = self._ahead_bytes // 2 if self._paused else self._ahead_bytes
        paused = self._waits or self._arrived_bytes > limit
        if paused == self._paused or self._broken or self._transport is None:
            return
        self._paused = paused
        if paused:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def admit(self) -> None:
        """Allow messages of full size from now on: the other side belongs to the job."""
        self._most_bytes, self._ahead_bytes = self._admitted_bytes, _AHEAD_BYTES
        self._pause_or_resume()

    def connection_lost(self, error: Exception | None) -> None:
        self._broken = self._broken or (str(error) if error is not None else "the other process closed the socket")
        self._lost.set()
        self._rest.clear()
        if self._waits:
            self._waits = False
            self._arriving.withdraw(self._go_on)
        else:
            self._arriving.free(self._granted)
        self._granted = 0
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
        """Return the next message; wait for one. Used by one task at a time, which has done with the one before.

        Raises:
            BrokenConnectionError: None has arrived, and none can any more.
        """
        self._arriving.free(self._in_hand)
        self._in_hand = 0
        while not self._arrived:
            if self._broken:
                raise BrokenConnectionError(self._broken)
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        message, self._in_hand = self._arrived.popleft()
        self._arrived_bytes -= len(message.body) + _MESSAGE_BYTES
        self._pause_or_resume()
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
        try:
            if self._transport is not None:
                await to_its_end(self._close(self._transport, limit_s))
        finally:
            self._arriving.free(self._in_hand + sum(granted for _, granted in self._arrived))
            self._in_hand = 0
            self._arrived.clear()

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

"""The client library, with two shorter ways: what comes is handled at once, and what is published goes out at once.

The library gives what it reads to a queue and a task for each subscription, and what is published to another task.
Leaving these out takes a third off the time that a message costs both processes, and off its latency. Some methods
that the library keeps to itself are used here and nowhere else; the tests see when they change.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from nats import errors
from nats.aio.client import DEFAULT_BUFFER_SIZE, Client, Srv
from nats.aio.transport import TcpTransport

_NOBODY = b"NATS/1.0 503"
_CLOSE_S = 1.0
_CANCEL_S = 0.1


async def ended(task: asyncio.Task[Any]) -> None:
    """Cancel a task of the library until it ends. Where it waits for a connection that is refused at that very moment,
    it hears of that alone, and goes on."""
    while not task.done():
        task.cancel()
        await asyncio.wait((task,), timeout=_CANCEL_S)
    if not task.cancelled():
        task.exception()  # is of no account any more


class Heard(NamedTuple):
    """What has come. `nobody`: it is the server's word that nobody was there to get what had `subject` as way back."""

    subject: str
    reply: str
    data: bytes
    nobody: bool
    headers: bytes = b""


class _Wire(TcpTransport):
    """The library's, but that it says who we are and asks whether the server is content in one piece.

    A server that is not says why and closes. If something it has not read is on its way then, its words are lost.
    """

    _held = b""

    def write(self, payload: bytes) -> None:
        if payload.startswith(b"CONNECT "):
            self._held = payload
        else:
            held, self._held = self._held, b""
            super().write(held + payload)  # type: ignore[no-untyped-call]  # nats-py has no hints there

    def writelines(self, payload: Sequence[bytes]) -> None:
        # From Python 3.12 on asyncio's own does not look whether the connection is closed, and fails if it is.
        super().write(b"".join(payload))  # type: ignore[no-untyped-call]  # as above

    async def connect_tls(self, *arguments: Any, **named: Any) -> None:
        await super().connect_tls(*arguments, **named)
        # What the library builds does not know that it is over TLS, and asyncio warns of that when it ends.
        protocol: Any = None if self._io_writer is None else self._io_writer.transport.get_protocol()
        if protocol is not None:  # the server may have closed already, and what is next says so
            protocol._over_ssl = True

    async def wait_closed(self) -> None:
        # Over TLS a close is answered. A server that does not answer any more would be waited for half a minute.
        try:
            async with asyncio.timeout(_CLOSE_S):
                await super().wait_closed()  # type: ignore[no-untyped-call]  # nats-py has no hints there
        except TimeoutError:
            if self._io_writer is not None:
                self._io_writer.transport.abort()


class DirectClient(Client):
    """A client whose handlers are called while it reads: they must be quick, and are in nobody's way.

    Args:
        secured: Nothing, and credentials least of all, may be said to a server that does not speak TLS.
        broken: Called with what a handler raises.
    """

    def __init__(self, *, secured: bool, broken: Callable[[Exception], None]) -> None:
        super().__init__()
        self._secured = secured
        self._broken = broken
        self._handlers: dict[int, Callable[[Heard], None]] = {}

    async def hear(self, subject: str, handle: Callable[[Heard], None]) -> int:
        """Subscribe; the server knows of it after the next flush. Returns the number of the subscription."""
        subscription = await self.subscribe(subject)
        number: int = subscription._id
        self._handlers[number] = handle
        return number

    async def hear_no_more(self, number: int) -> None:
        """Unsubscribe."""
        self._handlers.pop(number, None)
        if number in self._subs:
            await self._subs[number].unsubscribe()

    def break_off(self) -> None:
        """Break the connection, as a network would."""
        wire = self._transport._io_writer if isinstance(self._transport, TcpTransport) else None
        if wire is not None:
            wire.transport.abort()

    def say(self, letters: list[tuple[str, str, bytes]]) -> None:
        """Publish (subject, way back, data), in order."""
        transport = self._transport
        if transport is None or transport.at_eof():
            return
        pieces: list[bytes] = []
        for subject, reply, data in letters:
            pieces += (f"PUB {subject} {reply} {len(data)}\r\n".encode(), data, b"\r\n")
        transport.writelines(pieces)

    def say_with_headers(self, letters: list[tuple[str, str, bytes, bytes]]) -> None:
        """Publish (subject, way back, headers, data), in order. The headers are as they go over the wire."""
        transport = self._transport
        if transport is None or transport.at_eof():
            return
        pieces: list[bytes] = []
        for subject, reply, headers, data in letters:
            size = len(headers)
            pieces += (f"HPUB {subject} {reply} {size} {size + len(data)}\r\n".encode(), headers, data, b"\r\n")
        transport.writelines(pieces)

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        handle = self._handlers.get(sid)
        if handle is None:
            return await super()._process_msg(sid, subject, reply, data, headers)
        try:
            nobody = bool(headers) and headers.startswith(_NOBODY)
            handle(Heard(subject.decode(), reply.decode(), data, nobody, headers or b""))
        except Exception as error:  # noqa: BLE001 - the library would end the connection and say nothing
            self._broken(error)
        return None

    async def close(self) -> None:
        await super().close()
        # The library tells its attempts to come back to end, and does not look whether they do.
        again = self._reconnection_task
        if again is not None and again is not asyncio.current_task():
            await ended(again)
            if not self.is_closed:  # one has got through meanwhile
                await super().close()

    async def _process_pong(self) -> None:
        # To a flush that was given up meanwhile the library would say so all the same, fail, and read nothing any more.
        if self._pongs and self._pongs[0].done():
            self._pongs[0] = asyncio.get_running_loop().create_future()
        await super()._process_pong()

    @property
    def has_jetstream(self) -> bool:
        """Whether the server says of itself that it stores; others of its cluster may."""
        return bool(self._server_info.get("jetstream"))

    async def _connect_to_server(self, s: Srv) -> None:
        s.last_attempt = time.monotonic()
        wire = self._transport = _Wire()  # type: ignore[no-untyped-call]  # nats-py has no hints there
        await wire.connect(s.uri, DEFAULT_BUFFER_SIZE, self.options["connect_timeout"])

    async def _flush_pending(self, force_flush: bool = False) -> Any:
        # The library has a task write this later, and what it writes itself overtakes it: a question whether the server
        # knows of a subscription would be answered before the server has heard of it.
        if self.is_connected and self._transport is not None and self._pending:
            pending, self._pending, self._pending_data_size = self._pending, [], 0
            self._transport.writelines(pending)
        return await super()._flush_pending(force_flush)

    def _connect_command(self) -> bytes:
        if self._secured and not self._server_info.get("tls_required"):
            raise errors.SecureConnWantedError
        return super()._connect_command()

"""The NATS client library, with direct paths for reading and publishing.

The library passes what it reads through a queue and a task for each subscription, and what is published through another
task. Skipping these saves a third of the time that a message costs both processes, and of its latency. Some private
methods of the library are used here and nowhere else; the tests notice when they change.
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
    """Cancel a task of the library until it ends.

    A task waiting for a connection that is refused at that very moment gets that error, not the cancellation, and goes
    on.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait((task,), timeout=_CANCEL_S)
    if not task.cancelled():
        task.exception()  # its error does not matter any more


def _seen(task: asyncio.Task[Any]) -> None:
    """Take note of a task's error: perhaps nobody waits for it any more."""
    if not task.cancelled():
        task.exception()


class Heard(NamedTuple):
    """A message that has arrived.

    If `nobody` is set, it is the server's notice that a message with `subject` as way back had no subscriber.
    """

    subject: str
    reply: str
    data: bytes
    nobody: bool
    headers: bytes = b""


class _Wire(TcpTransport):
    """The library's transport, which sends CONNECT and PING in one write.

    A server that refuses a client says why and closes. If it has unread input then, its words are lost.
    """

    _held = b""
    _closes: asyncio.StreamWriter | None = None
    _closing: asyncio.Task[None] | None = None

    def write(self, payload: bytes) -> None:
        if payload.startswith(b"CONNECT "):
            self._held = payload
        else:
            held, self._held = self._held, b""
            self._send(held + payload)

    def writelines(self, payload: Sequence[bytes]) -> None:
        self._send(b"".join(payload))

    def _send(self, payload: bytes) -> None:
        """Send bytes; drop them on a closed connection, whose end the library notices as it reads."""
        # Once closed, transports of uvloop raise an error, as does `writelines` of asyncio's from Python 3.12 on.
        if self._io_writer is not None and not self._io_writer.transport.is_closing():
            super().write(payload)  # type: ignore[no-untyped-call]  # nats-py has no hints there

    async def connect_tls(self, *arguments: Any, **named: Any) -> None:
        await super().connect_tls(*arguments, **named)
        # The library's protocol does not know that it is over TLS, and asyncio warns of that when it ends.
        protocol: Any = None if self._io_writer is None else self._io_writer.transport.get_protocol()
        if protocol is not None:  # the server may have closed already, and what is next says so
            protocol._over_ssl = True

    async def readline(self) -> bytes:
        line: bytes = await super().readline()  # type: ignore[no-untyped-call]  # as above
        if not line:  # the library would name the answer that it expected, and not say that the connection is gone
            raise errors.UnexpectedEOF
        return line

    async def shut(self) -> None:
        """Break the connection off, if nothing has closed it. Nobody waits for what an attempt has sent."""
        if self._io_writer is not None and not self._io_writer.transport.is_closing():
            self._io_writer.transport.abort()
        if self._closing is not None and not self._closing.done():  # who waited was cancelled
            await ended(self._closing)

    async def wait_closed(self) -> None:
        if (writer := self._io_writer) is None:
            return
        # A task for all that wait, and none of them cancels it: asyncio has one future for them, which would then be
        # cancelled for all.
        if writer is not self._closes or self._closing is None:
            self._closes, self._closing = writer, asyncio.create_task(writer.wait_closed())
            self._closing.add_done_callback(_seen)
        closing = self._closing
        # Over TLS a close is answered. Without a limit, a server that does not answer would be awaited for half a
        # minute.
        await asyncio.wait((closing,), timeout=_CLOSE_S)
        if not closing.done():
            writer.transport.abort()
            await asyncio.wait((closing,), timeout=_CLOSE_S)
        if not closing.done():
            # The handshake has failed, and nobody tells the protocol that was there before it.
            await ended(closing)
        elif not closing.cancelled():
            closing.result()


class DirectClient(Client):
    """A client that calls its handlers while it reads: they must be quick.

    Args:
        secured: Whether to refuse a server without TLS, before anything (credentials above all) is sent to it.
        broken: Called with an error raised by a handler.
    """

    def __init__(self, *, secured: bool, broken: Callable[[Exception], None]) -> None:
        super().__init__()
        self._secured = secured
        self._broken = broken
        self._handlers: dict[int, Callable[[Heard], None]] = {}

    async def hear(self, subject: str, handle: Callable[[Heard], None]) -> int:
        """Subscribe, and return the subscription's number; a flush makes it effective."""
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
        """Publish (subject, way back, data) tuples, in order."""
        transport = self._transport
        if transport is None or transport.at_eof():
            return
        pieces: list[bytes] = []
        for subject, reply, data in letters:
            pieces += (f"PUB {subject} {reply} {len(data)}\r\n".encode(), data, b"\r\n")
        transport.writelines(pieces)

    def say_with_headers(self, letters: list[tuple[str, str, bytes, bytes]]) -> None:
        """Publish (subject, way back, headers, data) tuples, in order.

        Headers are in wire format.
        """
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
        # The library tells its reconnecting task to end, and does not wait until it does.
        again = self._reconnection_task
        if again is not None and again is not asyncio.current_task():
            await ended(again)
            if not self.is_closed:  # it has reconnected meanwhile
                await super().close()
        # One that was cancelled while it closed after a time limit takes itself for closed, and leaves it at that.
        if isinstance(wire := self._transport, _Wire):
            await wire.shut()

    async def _process_pong(self) -> None:
        # The library would set the result of a flush that was given up, fail, and read nothing any more.
        if self._pongs and self._pongs[0].done():
            self._pongs[0] = asyncio.get_running_loop().create_future()
        await super()._process_pong()

    @property
    def has_jetstream(self) -> bool:
        """Return whether this server has JetStream enabled; others of its cluster may."""
        return bool(self._server_info.get("jetstream"))

    async def _connect_to_server(self, s: Srv) -> None:
        s.last_attempt = time.monotonic()
        wire = self._transport = _Wire()  # type: ignore[no-untyped-call]  # nats-py has no hints there
        await wire.connect(s.uri, DEFAULT_BUFFER_SIZE, self.options["connect_timeout"])

    async def _flush_pending(self, force_flush: bool = False) -> Any:
        # The library has a task write this later, and its own direct writes overtake it: the server would answer a PING
        # before it has received the subscription that the PING asks about.
        if self.is_connected and self._transport is not None and self._pending:
            pending, self._pending, self._pending_data_size = self._pending, [], 0
            self._transport.writelines(pending)
        return await super()._flush_pending(force_flush)

    def _connect_command(self) -> bytes:
        if self._secured and not self._server_info.get("tls_required"):
            raise errors.SecureConnWantedError
        return super()._connect_command()

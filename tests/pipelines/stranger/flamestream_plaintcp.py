"""Transport `plaintcp`: a connection of plain TCP for each channel, on this machine only. A stranger's plugin.

A connection carries length, frame, length, frame, … A length of 0 is goodbye. The receiver answers the first frame, and
says `BYE` when its address is closed. A connection that ends without goodbye is a lost process.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import struct
from collections import deque
from contextlib import suppress
from typing import Any, ClassVar

import msgspec

from flamecore.abc.hooks import hookimpl
from flamecore.abc.transport import (
    Delivery,
    Endpoint,
    JobAddress,
    Outlook,
    Transport,
    TransportCapabilities,
    TransportContext,
)
from flamecore.errors import ConfigError, FlameError, FrameError, PeerGoneError, TransportClosedError, TransportError
from flamecore.testing.progress import patience
from flamecore.toolkit.frames import HEADER_BYTES, MAX_BODY_BYTES, Frame, Framing, Sequences
from flamecore.toolkit.wait_queue import WaitQueue

ACCEPTED, NOBODY, BYE = b"+", b"-", b"."
ROOM = 64
LIMIT_S = 10.0
HELLO_BYTES = 4096
LENGTH = struct.Struct(">I")


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of the transport.

    Attributes:
        listen: "HOST:PORT" of this machine; port 0 is any that is free.
    """

    listen: str = "127.0.0.1:0"


class Box:
    """A bounded queue of (sender, bytes): what an address has received, or what a channel has to send."""

    def __init__(self) -> None:
        self.letters: deque[tuple[str, bytes]] = deque()
        self.waiting: WaitQueue[tuple[str, bytes]] = WaitQueue()
        self.changed = asyncio.Event()
        self.error: FlameError | None = None

    def put_nowait(self, letter: tuple[str, bytes]) -> bool:
        if self.error is not None:
            raise self.error
        if self.waiting or len(self.letters) >= ROOM:
            return False
        self._add(letter)
        return True

    async def put(self, letter: tuple[str, bytes]) -> None:
        if not self.put_nowait(letter):
            await self.waiting.wait(letter)

    def _add(self, letter: tuple[str, bytes]) -> None:
        self.letters.append(letter)
        self.changed.set()

    def pop(self) -> tuple[str, bytes]:
        letter = self.letters.popleft()
        self.waiting.admit(lambda: len(self.letters) < ROOM, self._add)
        return letter

    async def wait(self) -> None:
        self.changed.clear()
        if not self.letters and self.error is None:
            await self.changed.wait()

    def close(self, error: FlameError) -> None:
        if self.error is None:
            self.error = error
            if self.waiting.refuse(lambda letter: error):
                self.letters.clear()  # somebody has been told
            self.changed.set()


class Channel:
    """The way from an address of this process to one of another: a box, and the task that empties it."""

    def __init__(self, sender: str, receiver: str, location: str, transport: PlainTcp) -> None:
        self.sender, self.receiver, self.location, self.transport = sender, receiver, location, transport
        self.box = Box()
        self.closing = False
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        gone = f"{self.receiver} at {self.location} is gone"
        try:
            accepted = False
            host, _, port = self.location.rpartition(":")
            async with patience(LIMIT_S):
                reader, writer = await asyncio.open_connection(host, int(port))
            try:
                writer.transport.set_write_buffer_limits(0)  # `drain` waits until the kernel has all
                said = {"token": self.transport.context.token, "location": self.transport.location}
                writer.write(self._packed(0, json.dumps(said).encode()))
                async with patience(LIMIT_S):
                    accepted = await reader.readexactly(1) == ACCEPTED
                if not accepted:
                    gone = f"no endpoint is bound to {self.receiver} at {self.location}"
                    return
                hearing = asyncio.create_task(reader.readexactly(1))
                writing = asyncio.create_task(self._write(writer))
                await asyncio.wait((hearing, writing), return_when=asyncio.FIRST_COMPLETED)
                for task in (hearing, writing):
                    task.cancel()
                ends = await asyncio.gather(hearing, writing, return_exceptions=True)
                if ends[0] != BYE and not self.closing and accepted:
                    self.transport.lose(self.location, PeerGoneError(gone, address=self.sender, peer=self.receiver))
            finally:
                writer.close()
        except (OSError, EOFError, TimeoutError) as error:
            gone = f"{gone}: {error or type(error).__name__}"
        finally:
            self.box.close(PeerGoneError(gone, address=self.sender, peer=self.receiver))

    async def _write(self, writer: asyncio.StreamWriter) -> None:
        number = 0
        while self.box.letters or not self.closing:
            while self.box.letters:
                number += 1
                writer.write(self._packed(number, self.box.letters[0][1]))
                await writer.drain()
                self.box.pop()
            if not self.closing:
                await self.box.wait()
        writer.write(LENGTH.pack(0))
        await writer.drain()

    def _packed(self, number: int, body: bytes) -> bytes:
        data = self.transport.framing.wrap(Frame(self.sender, self.receiver, number, body))
        return LENGTH.pack(len(data)) + data

    async def aclose(self) -> None:
        self.closing = True
        self.box.waiting.refuse(lambda _: TransportClosedError("closed", address=self.sender, peer=self.receiver))
        self.box.changed.set()
        _, late = await asyncio.wait((self.task,))
        if late:
            self.task.cancel()
            raise TransportError(f"{self.receiver} takes nothing more", address=self.sender, peer=self.receiver)


class TcpEndpoint(Endpoint):
    """An address: its inbox, its channels to others, and the connections of those who send to it."""

    def __init__(self, address: str, transport: PlainTcp) -> None:
        self.address = address
        self.inbox = Box()
        self.channels: dict[str, Channel] = {}
        self.incoming: dict[asyncio.Task[Any], asyncio.StreamWriter] = {}
        self._transport = transport

    def _box(self, to: str) -> Box:
        self._check_open(to)
        if (near := self._transport.endpoints.get(to)) is not None:
            return near.inbox
        channel = self.channels.get(to)
        if channel is not None and channel.box.error is not None:
            del self.channels[to]
            if channel.box.letters:
                raise channel.box.error  # these are lost
            channel = None
        if channel is None:
            location = self._transport.context.locate(to) if self._transport.context.locate is not None else ""
            if location in ("", self._transport.location):
                raise PeerGoneError(f"no endpoint is bound to {to}", address=self.address, peer=to)
            channel = self.channels[to] = Channel(self.address, to, location, self._transport)
        return channel.box

    def _check_open(self, to: str = "") -> None:
        if isinstance(self.inbox.error, FlameError):
            raise TransportClosedError(f"{self.address} is closed", address=self.address, peer=to)

    def send_nowait(self, to: str, message: Any) -> bool:
        return self._box(to).put_nowait((self.address, self._transport.context.codec.encode(message)))

    async def send(self, to: str, message: Any) -> None:
        await self._box(to).put((self.address, self._transport.context.codec.encode(message)))

    def receive_nowait(self) -> Delivery | None:
        self._check_open()
        if not self.inbox.letters:
            return None
        sender, body = self.inbox.pop()
        return Delivery(sender, self._transport.context.codec.decode(body))

    async def receive(self) -> Delivery:
        while (delivery := self.receive_nowait()) is None:
            await self.inbox.wait()
        return delivery

    async def serve(self, hello: Frame, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take in what a channel sends. EOFError: it is gone without goodbye."""
        task = asyncio.current_task()
        assert task is not None
        self.incoming[task] = writer
        sequences = Sequences()
        try:
            while (frame := await self._transport.read(reader)) is not None:
                if (frame.sender, frame.receiver) == hello[:2] and sequences.admit(frame):
                    with suppress(PeerGoneError):  # closed: what is still on the way is discarded
                        await self.inbox.put((frame.sender, frame.body))
        except (OSError, EOFError):
            if self.inbox.error is None:
                raise
        finally:
            del self.incoming[task]

    async def aclose(self) -> None:
        if self.inbox.error is not None:
            return
        self.inbox.close(PeerGoneError(f"{self.address} was closed", address="", peer=self.address))
        del self._transport.endpoints[self.address]
        for writer in self.incoming.values():
            writer.write(BYE)
        ends = await asyncio.gather(*(each.aclose() for each in self.channels.values()), return_exceptions=True)
        if self.incoming:
            _, late = await asyncio.wait([*self.incoming])
            for task in late:
                task.cancel()
        for error in ends:
            if error is not None:
                raise error


class PlainTcp(Transport):
    """All addresses of one process."""

    name: ClassVar[str] = "plaintcp"
    Options: ClassVar[Any] = Options
    schemes: ClassVar[tuple[str, ...] | None] = ("tcp",)

    def __init__(self, options: Any, context: TransportContext) -> None:
        super().__init__(options or Options(), context)
        self.framing = Framing(context.job, context.incarnation)
        self.endpoints: dict[str, TcpEndpoint] = {}
        self.location = ""
        self._server: asyncio.Server | None = None
        self._lost: set[str] = set()

    @classmethod
    def address_of(cls, url: str) -> JobAddress:
        host, _, port = url.removeprefix("tcp://").rpartition(":")
        if not host or not port.isdecimal():
            raise ConfigError(f"{url!r} is no address", hint="Write it as tcp://HOST:PORT.", path="")
        return JobAddress(f"{host}:{port}")

    @property
    def capabilities(self) -> TransportCapabilities:
        return TransportCapabilities(multi_process=True, serialises=True)

    def outlook(self) -> Outlook:
        _, _, port = self.options.listen.rpartition(":")
        return Outlook(self.options.listen, join="" if port == "0" else f"tcp://{self.options.listen}")

    async def start(self) -> str:
        host, _, port = self.options.listen.rpartition(":")
        if not ipaddress.ip_address(host).is_loopback:
            raise TransportError(f"{host} is not of this machine, and nothing is encrypted", address="", peer="")
        try:
            self._server = await asyncio.start_server(self._serve, host, int(port))
        except OSError as error:
            raise TransportError(f"cannot listen at {self.options.listen}: {error}", address="", peer="") from error
        self.location = f"{host}:{self._server.sockets[0].getsockname()[1]}"
        return self.location

    async def bind(self, address: str) -> TcpEndpoint:
        if address in self.endpoints:
            raise TransportError(f"{address} is bound already", address=address, peer="")
        endpoint = self.endpoints[address] = TcpEndpoint(address, self)
        return endpoint

    async def read(self, reader: asyncio.StreamReader, most: int = MAX_BODY_BYTES + HELLO_BYTES) -> Frame | None:
        (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
        if length > most:
            raise FrameError(f"a frame of {length} bytes", address="", peer="", reason="oversized")
        return self.framing.unwrap(await reader.readexactly(length)) if length >= HEADER_BYTES else None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        location = ""
        try:
            async with patience(LIMIT_S):
                hello = await self.read(reader, HELLO_BYTES)
            said = json.loads(hello.body) if hello is not None else {}
            if hello is None or not hmac.compare_digest(said.get("token", ""), self.context.token):
                return
            endpoint = self.endpoints.get(hello.receiver)
            writer.write(NOBODY if endpoint is None else ACCEPTED)
            if endpoint is not None:
                location = said["location"]
                self._lost.discard(location)
                await endpoint.serve(hello, reader, writer)
        except FrameError:
            pass  # it is of another job, or of an earlier incarnation of this one
        except (OSError, EOFError) as error:
            if location:
                what = f"the process at {location} is gone: {error or type(error).__name__}"
                self.lose(location, PeerGoneError(what, address="", peer=location))
        finally:
            writer.close()

    def lose(self, location: str, error: PeerGoneError) -> None:
        """Report once that a process is gone without goodbye."""
        if self.context.lost is not None and self._server is not None and location not in self._lost:
            self._lost.add(location)
            self.context.lost(location, error)

    async def aclose(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()
        ends = await asyncio.gather(*(each.aclose() for each in [*self.endpoints.values()]), return_exceptions=True)
        for error in ends:
            if error is not None:
                raise error


@hookimpl
def flamestream_transport() -> type[Transport]:
    return PlainTcp

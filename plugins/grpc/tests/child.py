"""Another process of a job, run by tests as `python child.py FD`.

It takes requests from a socket: (id, name, *arguments). Answers are (id, "ok" | name of an error, result); unrequested
ones have id 0.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
import time
from typing import Any

from flamecore.abc.transport import Endpoint, TransportContext
from flamecore.errors import FlameError, PeerGoneError
from flamecore.runtime.codec.codec import Codec
from flamecore.testing.bench.transports import Note
from flamestream_grpc import GrpcTransport, Options

LENGTH = struct.Struct(">I")


class Child:
    """The process."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.codec = Codec([Note])
        self.homes: dict[str, str] = {}
        self.endpoints: list[Endpoint] = []
        self.transport: GrpcTransport
        self._writer = writer
        self._tasks: set[asyncio.Task[None]] = set()

    def say(self, *what: Any) -> None:
        data = self.codec.encode(what)
        self._writer.write(LENGTH.pack(len(data)) + data)

    def obey(self, request: Any) -> None:
        """Run a request: at once and in order, or as a task if it has to wait."""
        number, name, *arguments = request
        try:
            result = getattr(self, name)(*arguments)
        except FlameError as error:
            self.say(number, type(error).__name__, error.what)
            return
        if asyncio.iscoroutine(result):
            task = asyncio.create_task(self._later(number, result))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            self.say(number, "ok", result)

    async def _later(self, number: int, result: Any) -> None:
        try:
            self.say(number, "ok", await result)
        except FlameError as error:
            self.say(number, type(error).__name__, error.what)

    def locate(self, address: str) -> str:
        if address not in self.homes:
            raise PeerGoneError(f"nobody has bound {address}", address="", peer=address)
        return self.homes[address]

    # -- requests -----------------------------------------------------------------------------------------------------

    async def start(self, options: dict[str, Any], context: dict[str, Any]) -> str:
        def lost(location: str, error: Exception) -> None:
            self.say(0, "lost", (location, str(error)))

        self.transport = GrpcTransport(
            Options(**options), TransportContext(codec=self.codec, locate=self.locate, lost=lost, **context)
        )
        return await self.transport.start()

    async def bind(self, address: str) -> int:
        self.endpoints.append(await self.transport.bind(address))
        return len(self.endpoints) - 1

    def send_nowait(self, at: int, to: str, home: str, message: Any) -> bool:
        self.homes[to] = home
        return self.endpoints[at].send_nowait(to, message)

    async def send(self, at: int, to: str, home: str, message: Any) -> None:
        self.homes[to] = home
        await self.endpoints[at].send(to, message)

    async def flood(self, at: int, to: str, home: str, message: Any) -> None:
        """Send until it fails."""
        self.homes[to] = home
        while True:
            await self.endpoints[at].send(to, message)

    async def echo(self, at: int) -> None:
        """Send back each message, until it fails."""
        while True:
            sender, message = await self.endpoints[at].receive()
            await self.endpoints[at].send(sender, message)

    def home(self, address: str, location: str) -> None:
        self.homes[address] = location

    def receive_nowait(self, at: int) -> tuple[str, Any] | None:
        delivery = self.endpoints[at].receive_nowait()
        return None if delivery is None else tuple(delivery)

    async def close(self, at: int) -> None:
        await self.endpoints[at].aclose()

    async def aclose(self) -> None:
        await self.transport.aclose()

    def block(self, seconds: float) -> None:
        """Block the event loop, as a user's function may."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            pass


async def main(descriptor: int) -> None:
    reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=descriptor), limit=2**26)
    child = Child(writer)
    try:
        while True:
            (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
            child.obey(child.codec.decode(await reader.readexactly(length)))
    except asyncio.IncompleteReadError:
        writer.close()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))

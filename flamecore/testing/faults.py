"""Faults on the way: `Faulty`, a faulty transport, and `Proxy`, a bad network.

`Faulty` wraps any transport and does, by a seed, what the laws of `flamecore.abc.transport` allow at any time: it finds
no room, takes its time, and delivers messages of different channels in another order. Transports that can also
`disconnect` and `repeat` are made to. All laws that hold for the transport must hold for `Faulty` of it.

`Proxy` stands between a process and a server or another process, ignores the meaning of the data, and stalls it, passes
it in drips, flips bits in it, or cuts the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from random import Random
from types import TracebackType
from typing import Any, Final, Protocol, Self, runtime_checkable

from flamecore.abc.transport import Delivery, Endpoint, Transport, TransportCapabilities

__all__ = ["BAD_NETWORKS", "Disconnects", "Faulty", "FaultyEndpoint", "Proxy", "Repeats"]

BAD_NETWORKS: Final[Mapping[str, Callable[[Proxy], None]]] = {
    "drips": lambda proxy: proxy.drip(3000),
    "stalls": lambda proxy: proxy.stall_often(),
    "cuts": lambda proxy: proxy.cut_often(),
    "flips": lambda proxy: proxy.flip(50_000, most=3),
}
"""Networks that a transport gets along with, as what is to be done with a proxy; flips, if it notices them."""

_HELD: Final = 16
"""Most messages taken from an endpoint early, to give them in another order."""
_CHUNK_BYTES: Final = 2**16


@runtime_checkable
class Disconnects(Protocol):
    """A transport whose connections can be broken on purpose."""

    def disconnect(self) -> None:
        """Break every connection, as a network would; no message may be lost."""


@runtime_checkable
class Repeats(Protocol):
    """A transport that can send again what may have arrived already."""

    def repeat(self) -> None:
        """Send unconfirmed messages again; the receivers must see none of them twice."""


class Faulty(Transport):
    """A transport with faults.

    Args:
        transport: The transport to wrap.
        seed: Seed of the faults; the same calls in the same order have the same faults.
        delay_ms: Longest delay.
        delays: Share of sends and receives that are delayed.
        full: Share of `send_nowait` that find no room.
        disconnects: Share of sends before which all connections break.
        repeats: Share of sends before which all unconfirmed messages are sent again.

    Attributes:
        faults: How often each fault has happened, by name: delay, full, reorder, disconnect, repeat.

    Example:
        class TestMineWithBadLuck(TransportTests):
            def make(self, context: TransportContext) -> Transport:
                return Faulty(Mine(Mine.Options(), context), seed=7)
    """

    name = "faulty"

    def __init__(
        self,
        transport: Transport,
        *,
        seed: int,
        delay_ms: float = 2.0,
        delays: float = 0.02,
        full: float = 0.2,
        disconnects: float = 0.01,
        repeats: float = 0.02,
    ) -> None:
        super().__init__(transport.options, transport.context)
        self.transport = transport
        self.random = Random(seed)
        self.faults: Counter[str] = Counter()
        self.closed = False
        self._delay_ms = delay_ms
        self._shares = {"delay": delays, "full": full, "disconnect": disconnects, "repeat": repeats}

    @property
    def capabilities(self) -> TransportCapabilities:
        return self.transport.capabilities

    async def start(self) -> str:
        return await self.transport.start()

    async def bind(self, address: str) -> FaultyEndpoint:
        return FaultyEndpoint(await self.transport.bind(address), self)

    async def aclose(self) -> None:
        self.closed = True
        await self.transport.aclose()

    def strikes(self, fault: str) -> bool:
        """Return whether a fault happens now, and count it."""
        if self.random.random() >= self._shares[fault]:
            return False
        self.faults[fault] += 1
        return True

    async def dawdle(self) -> None:
        """Delay by chance."""
        if self.strikes("delay"):
            await asyncio.sleep(self.random.random() * self._delay_ms / 1000)

    def shake(self) -> None:
        """Disconnect or repeat by chance."""
        if isinstance(self.transport, Disconnects) and self.strikes("disconnect"):
            self.transport.disconnect()
        if isinstance(self.transport, Repeats) and self.strikes("repeat"):
            self.transport.repeat()


class FaultyEndpoint(Endpoint):
    """An address with faults."""

    def __init__(self, endpoint: Endpoint, faulty: Faulty) -> None:
        self.address = endpoint.address
        self._endpoint = endpoint
        self._faulty = faulty
        self._turns: dict[str, asyncio.Lock] = {}
        self._held: dict[str, deque[Delivery]] = {}
        self._closed = False

    # Delays are per channel: a message waits behind those of its own channel, and others pass it meanwhile.

    def send_nowait(self, to: str, message: Any) -> bool:
        self._faulty.shake()
        turn = self._turns.get(to)
        waited_for = turn is not None and turn.locked()
        if not (self._closed or self._faulty.closed) and (waited_for or self._faulty.strikes("full")):
            return False
        return self._endpoint.send_nowait(to, message)

    async def send(self, to: str, message: Any) -> None:
        self._faulty.shake()
        async with self._turns.setdefault(to, asyncio.Lock()):
            await self._faulty.dawdle()
            await self._endpoint.send(to, message)

    async def receive(self) -> Delivery:
        await self._faulty.dawdle()
        while (delivery := self.receive_nowait()) is None:
            self._hold(await self._endpoint.receive())
        return delivery

    def receive_nowait(self) -> Delivery | None:
        while sum(map(len, self._held.values())) < _HELD:
            delivery = self._endpoint.receive_nowait()
            if delivery is None:
                break
            self._hold(delivery)
        if not self._held:
            return None
        senders = [*self._held]
        sender = self._faulty.random.choice(senders)
        if sender != senders[0]:
            self._faulty.faults["reorder"] += 1
        held = self._held[sender]
        delivery = held.popleft()
        if not held:
            del self._held[sender]
        return delivery

    def _hold(self, delivery: Delivery) -> None:
        self._held.setdefault(delivery.sender, deque()).append(delivery)

    async def aclose(self) -> None:
        self._closed = True
        await self._endpoint.aclose()
        self._held.clear()


class Proxy:
    """A bad network in front of one location, as an async context manager.

    It runs in the event loop of its tests.

    Args:
        target: Target of connections: "HOST:PORT" or "unix:PATH".
        listen: Location to listen at, in the same format; empty: a free port of this machine, or "PATH.proxy".
        seed: Seed of the flipped bits.

    Attributes:
        location: Location it listens at.
        connections: Number of connections made through it.
        passed: Number of bytes passed, both ways.
        flips: Number of bits flipped.

    Example:
        async with Proxy("127.0.0.1:4222") as proxy:
            connect_to(proxy.location)
            proxy.cut()
    """

    def __init__(self, target: str, listen: str = "", *, seed: int = 0) -> None:
        self.target = target
        self.location = ""
        self.connections = 0
        self.passed = 0
        self.flips = 0
        self._listen = listen
        self._random = Random(seed)
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._refusing = False
        self._drip: tuple[int, float] | None = None
        self._flip_every = 0
        self._flip_in = 0
        self._flips_left = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._again: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def start(self) -> str:
        """Listen; return the location."""
        if self.target.startswith("unix:"):
            self.location = self._listen or f"{self.target}.proxy"
            path = self.location.removeprefix("unix:")
            self._server = await asyncio.start_unix_server(self._connected, path, limit=_CHUNK_BYTES)
        else:
            host, _, port = (self._listen or "127.0.0.1:0").rpartition(":")
            self._server = await asyncio.start_server(self._connected, host, int(port), limit=_CHUNK_BYTES)
            self.location = f"{host}:{self._server.sockets[0].getsockname()[1]}"
        return self.location

    # -- faults ------------------------------------------------------------------------------------------------------

    def stall(self) -> None:
        """Stop all data; connections stay."""
        self._flowing.clear()

    def resume(self) -> None:
        """Pass all data again, also the data held up."""
        self._flowing.set()

    def cut(self, *, refuse: bool = False) -> None:
        """Break all connections without notice to either side; data under way is lost.

        Args:
            refuse: Refuse new connections, too.
        """
        self._refusing = refuse
        for writer in self._writers:
            writer.transport.abort()

    def stall_often(self, lasts_s: float = 0.02) -> None:
        """Stall and resume in turn, each for `lasts_s`, until closed."""
        if self._flowing.is_set():
            self.stall()
        else:
            self.resume()
        self._again = asyncio.get_running_loop().call_later(lasts_s, self.stall_often, lasts_s)

    def cut_often(self, lasts_s: float = 0.1) -> None:
        """Break all connections again and again until closed, ever more rarely: first after `lasts_s`.

        A message crosses in one connection or not at all. At a steady pace one of 8 MiB might never cross on a machine
        too busy to transfer it between two breaks.
        """
        self.cut()
        self._again = asyncio.get_running_loop().call_later(lasts_s, self.cut_often, 1.5 * lasts_s)

    def drip(self, most_bytes: int, pause_s: float = 0.0) -> None:
        """Pass data in pieces of `most_bytes` at most, and pause after each; 0: stop that."""
        self._drip = (most_bytes, pause_s) if most_bytes else None

    def flip(self, every_bytes: int, most: int = 1_000_000) -> None:
        """Flip a bit in about `every_bytes` bytes, `most` times at most; 0: stop that."""
        self._flip_every = every_bytes
        self._flips_left = most
        self._flip_in = self._random.randint(1, 2 * every_bytes) if every_bytes else 0

    async def aclose(self) -> None:
        """Break all connections and stop listening."""
        if self._again is not None:
            self._again.cancel()
        if self._server is not None:
            self._server.close()
        self.cut(refuse=True)
        self.resume()
        if self._tasks:
            await asyncio.wait(self._tasks)

    # -- data --------------------------------------------------------------------------------------------------------

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._writers.add(writer)
        try:
            if not self._refusing:
                self.connections += 1
                await self._join(reader, writer)
        finally:
            writer.transport.abort()
            self._writers.discard(writer)

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await self._reach()
        except OSError:  # nothing listens there: the connecting side gets the same here
            return
        self._writers.add(far_writer)
        ways = [asyncio.create_task(self._pass(*way)) for way in ((reader, far_writer), (far_reader, writer))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            self._writers.discard(far_writer)
            far_writer.close()
            writer.close()
            for closing in (far_writer, writer):
                with contextlib.suppress(OSError, TimeoutError):
                    async with asyncio.timeout(0.2):  # passed data is written, unless it is not read
                        await closing.wait_closed()
            far_writer.transport.abort()

    async def _reach(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self.target.startswith("unix:"):
            return await asyncio.open_unix_connection(self.target.removeprefix("unix:"), limit=_CHUNK_BYTES)
        host, _, port = self.target.rpartition(":")
        return await asyncio.open_connection(host.strip("[]"), int(port), limit=_CHUNK_BYTES)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):  # cut
            while data := await reader.read(_CHUNK_BYTES):
                for piece in self._pieces(self._flipped(data)):
                    await self._flowing.wait()
                    writer.write(piece)
                    await writer.drain()
                    self.passed += len(piece)
                    if self._drip is not None:
                        await asyncio.sleep(self._drip[1])

    def _pieces(self, data: bytes) -> Iterator[bytes]:
        at = 0
        while at < len(data):
            size = self._drip[0] if self._drip is not None else len(data)
            yield data[at : at + size]
            at += size

    def _flipped(self, data: bytes) -> bytes:
        if not self._flip_every or not self._flips_left:
            return data
        flipped = bytearray(data)
        while self._flips_left and self._flip_in <= len(flipped):
            flipped[self._flip_in - 1] ^= 1 << self._random.randrange(8)
            self.flips += 1
            self._flips_left -= 1
            self._flip_in += self._random.randint(1, 2 * self._flip_every)
        self._flip_in -= len(flipped)
        return bytes(flipped)

"""Real processes: the whole kit, with one of its processes elsewhere; and processes killed, stopped or busy."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from flamecore import errors
from flamecore.codec import Codec
from flamecore.errors import FlameError
from flamecore.testing.faults import Proxy
from flamecore.testing.transport_bench import Note
from flamecore.testing.transports import TransportTests
from flamecore.transport import Delivery, Endpoint, Transport, TransportCapabilities, TransportContext
from flamestream_grpc import GrpcTransport, Options

CHILD = Path(__file__).with_name("child.py")
LIMIT_S = 10.0


class Wire:
    """Tells a child what to do, and hears what it says."""

    def __init__(self) -> None:
        self.lost: list[tuple[str, str]] = []
        self.loss = asyncio.Event()
        self.codec = Codec([Note])
        self._socket, theirs = socket.socketpair()
        self.process = subprocess.Popen([sys.executable, str(CHILD), str(theirs.fileno())], pass_fds=[theirs.fileno()])
        theirs.close()
        self._socket.settimeout(LIMIT_S)
        self._numbers = iter(range(1, sys.maxsize))
        self._answers: dict[int, tuple[str, Any]] = {}
        self._futures: dict[int, asyncio.Future[None]] = {}
        asyncio.get_running_loop().add_reader(self._socket, self._hear_ready)

    def close(self) -> None:
        """End the child, and wait for that. Twice is once."""
        if self._socket.fileno() == -1:
            return
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
        self.process.kill()
        self.process.wait()

    def now(self, name: str, *arguments: Any) -> Any:
        """The result of what needs no waiting."""
        number = self._tell(name, *arguments)
        while number not in self._answers:
            self._hear()
        return self._result(number)

    async def later(self, name: str, *arguments: Any) -> Any:
        """The result of what may have to wait."""
        number = self._tell(name, *arguments)
        future = self._futures[number] = asyncio.get_running_loop().create_future()
        await future
        return self._result(number)

    def _tell(self, name: str, *arguments: Any) -> int:
        number = next(self._numbers)
        data = self.codec.encode((number, name, *arguments))
        self._socket.sendall(len(data).to_bytes(4, "big") + data)
        return number

    def _hear_ready(self) -> None:
        if select.select([self._socket], [], [], 0)[0]:  # `now` may have heard it meanwhile
            self._hear()

    def _hear(self) -> None:
        size = int.from_bytes(self._read(4), "big")
        number, status, result = self.codec.decode(self._read(size))
        if number == 0:
            self.lost.append(result)
            self.loss.set()
            return
        self._answers[number] = (status, result)
        if number in self._futures:
            future = self._futures.pop(number)
            if not future.done():
                future.set_result(None)

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self._socket.recv(size - len(data))
            if not more:
                asyncio.get_running_loop().remove_reader(self._socket)
                raise EOFError("the child has ended")
            data += more
        return data

    def _result(self, number: int) -> Any:
        status, result = self._answers.pop(number)
        if status != "ok":
            kind: type[FlameError] = getattr(errors, status)
            raise kind(result)
        return result


class Remote(Transport):
    """A transport that lives in a process of its own."""

    name = "remote"
    wire: Wire

    @property
    def capabilities(self) -> TransportCapabilities:
        return TransportCapabilities(multi_process=True, serialises=True)

    async def start(self) -> str:
        self.wire = Wire()
        told = {key: getattr(self.context, key) for key in ("job", "epoch", "node", "token", "folder")}
        location: str = await self.wire.later("start", self.options, told)
        return location

    async def bind(self, address: str) -> RemoteEndpoint:
        return RemoteEndpoint(address, await self.wire.later("bind", address), self)

    async def aclose(self) -> None:
        if self.wire.process.returncode is None:
            await self.wire.later("aclose")
            self.wire.close()
            for location, error in self.wire.lost:
                assert self.context.lost is not None
                self.context.lost(location, RuntimeError(error))


class RemoteEndpoint(Endpoint):
    """An address there. Waiting to receive is asking again and again."""

    def __init__(self, address: str, at: int, transport: Remote) -> None:
        self.address = address
        self._at = at
        self._transport = transport
        self._wire = transport.wire

    def _home(self, to: str) -> str:
        assert self._transport.context.locate is not None
        return self._transport.context.locate(to)

    def _ended(self) -> bool:
        return self._wire.process.returncode is not None

    def send_nowait(self, to: str, message: Any) -> bool:
        self._wire.codec.encode(message)  # or its error would come of what is said to the child
        return bool(self._wire.now("send_nowait", self._at, to, self._home(to), message))

    async def send(self, to: str, message: Any) -> None:
        await self._wire.later("send", self._at, to, self._home(to), message)

    def receive_nowait(self) -> Delivery | None:
        if self._ended():
            raise errors.TransportClosedError("closed")
        delivery = self._wire.now("receive_nowait", self._at)
        return None if delivery is None else Delivery(*delivery)

    async def receive(self) -> Delivery:
        while (delivery := self.receive_nowait()) is None:
            await asyncio.sleep(0.001)
        return delivery

    async def aclose(self) -> None:
        await self._wire.later("close", self._at)


@pytest.mark.parametrize(("first", "listen"), [("here", "unix"), ("there", "127.0.0.1")])
class TestAcrossProcesses(TransportTests):
    """One process of the kit is this one, the other is a real one of its own."""

    most = 1000

    @pytest.fixture(autouse=True)
    def _circumstances(self, first: str, listen: str) -> None:
        self.here = first == "here"
        self.listen = listen

    def make(self, context: TransportContext) -> Transport:
        options: dict[str, Any] = {"listen": self.listen, "window_frames": 64}
        if (context.node == "node-0") == self.here:
            return GrpcTransport(Options(**options), context)
        return Remote(options, context)


# -- processes that end, or seem to ------------------------------------------------------------------------------------


@asynccontextmanager
async def pair(mesh: Any, options: dict[str, Any]) -> AsyncIterator[tuple[Any, GrpcTransport, Remote]]:
    """A process here and one there."""
    async with mesh() as made:
        here = await made.add("here", Options(**options))
        there = Remote(options, made.context("there"))
        made.locations["there"] = await there.start()
        try:
            yield made, here, there
        finally:
            there.wire.close()


async def flood(endpoint: Endpoint) -> None:
    """Send until it fails."""
    while True:
        await endpoint.send("there/0", "ours")


OPTIONS: dict[str, Any] = {"window_frames": 64, "reconnect_timeout_s": 0.3}


@pytest.mark.parametrize("listen", ["unix", "127.0.0.1"])
@pytest.mark.parametrize("sends", ["here", "there", "both"])
def test_a_killed_process_is_reported_once(mesh: Any, listen: str, sends: str) -> None:
    """Whoever of the two has sent: the one that is left hears of it, and who waits for room is told."""

    async def run() -> None:
        async with pair(mesh, OPTIONS | {"listen": listen}) as (made, here, there):
            ours, theirs = await here.bind("here/0"), await there.bind("there/0")
            floods = []
            if sends != "there":
                floods.append(asyncio.create_task(flood(ours)))
                await theirs.receive()
            if sends != "here":
                there.wire._tell("flood", 0, "here/0", made.locations["here"], "theirs")
                await ours.receive()
            there.wire.process.send_signal(signal.SIGKILL)
            async with asyncio.timeout(LIMIT_S):
                await made.loss.wait()
                for task in floods:
                    with pytest.raises(errors.PeerGoneError, match="without having closed"):
                        await task
            with pytest.raises(errors.PeerGoneError):
                ours.send_nowait("there/0", "anybody there?")
            await asyncio.sleep(2 * here.options.reconnect_timeout_s)
            ((location, error),) = made.lost["here"]
            assert location == made.locations["there"]
            assert isinstance(error, errors.PeerGoneError)

    asyncio.run(run())


def test_a_stopped_process_is_reported(mesh: Any) -> None:
    """As if its machine had vanished: connections stay, and nothing answers."""

    async def run() -> None:
        async with pair(mesh, OPTIONS | {"keepalive_s": 0.3}) as (made, here, there):
            ours, theirs = await here.bind("here/0"), await there.bind("there/0")
            await ours.send("there/0", "hello")
            await theirs.receive()
            there.wire.process.send_signal(signal.SIGSTOP)
            async with asyncio.timeout(LIMIT_S):
                await made.loss.wait()
            assert [location for location, _ in made.lost["here"]] == [made.locations["there"]]

    asyncio.run(run())


def test_a_busy_process_is_not_reported(mesh: Any) -> None:
    """A user's function may keep the event loop for longer than any answer of the connection may take."""

    async def run() -> None:
        async with pair(mesh, OPTIONS | {"keepalive_s": 0.2}) as (made, here, there):
            ours, theirs = await here.bind("here/0"), await there.bind("there/0")
            there.wire.now("home", "here/0", made.locations["here"])
            await ours.send("there/0", "hello")
            await theirs.send("here/0", "hello")
            await theirs.receive()
            there.wire._tell("block", 1.5)
            await ours.send("there/0", "busy?")
            async with asyncio.timeout(LIMIT_S):
                assert (await theirs.receive()).message == "busy?"
            assert (await ours.receive()).message == "hello"
            assert made.lost == {}
            assert there.wire.lost == []
            await there.wire.later("aclose")

    asyncio.run(run())


def test_a_busy_process_whose_connection_breaks_is_waited_for(mesh: Any) -> None:
    """It has no time to connect again, but its machine says that it is there."""

    async def run() -> None:
        async with pair(mesh, OPTIONS) as (made, here, there), Proxy(made.locations["here"]) as proxy:
            ours, theirs = await here.bind("here/0"), await there.bind("there/0")
            there.wire.now("home", "here/0", proxy.location)
            made.locations["here"] = proxy.location
            await theirs.send("here/0", "before")
            assert (await ours.receive()).message == "before"
            there.wire._tell("block", 3 * here.options.reconnect_timeout_s)
            there.wire._tell("send", 0, "here/0", proxy.location, "after")
            proxy.cut()
            async with asyncio.timeout(LIMIT_S):
                assert (await ours.receive()).message == "after"
            assert proxy.connections == 2
            assert made.lost == {}
            assert there.wire.lost == []
            await there.wire.later("aclose")

    asyncio.run(run())


def test_one_that_closes_is_not_reported(mesh: Any) -> None:
    async def run() -> None:
        async with pair(mesh, OPTIONS) as (made, here, there):
            ours, theirs = await here.bind("here/0"), await there.bind("there/0")
            await ours.send("there/0", "hello")
            await theirs.send("here/0", "hello")
            await theirs.receive()
            await there.wire.later("aclose")
            assert (await ours.receive()).message == "hello"
            there.wire.process.send_signal(signal.SIGKILL)
            with pytest.raises(errors.PeerGoneError, match="has closed"):
                await flood(ours)
            await asyncio.sleep(2 * here.options.reconnect_timeout_s)
            assert made.lost == {}

    asyncio.run(run())


@pytest.mark.parametrize("sent", ["here", "there"])
def test_a_successor_at_the_same_place_is_another(mesh: Any, sent: str) -> None:
    """A process that is started again at once, where one was killed, has not got what that one had."""
    options = {"window_frames": 64, "reconnect_timeout_s": LIMIT_S}

    async def run() -> None:
        async with pair(mesh, options) as (made, here, there):
            ours, theirs = await here.bind("here/0"), await there.bind("there/0")
            sender, receiver, to = (ours, theirs, "there/0") if sent == "here" else (theirs, ours, "here/0")
            await sender.send(to, "hello")
            await receiver.receive()
            there.wire.process.send_signal(signal.SIGKILL)
            there.wire.process.wait()
            there.wire.close()
            heir = Remote(options, made.context("there"))
            assert await heir.start() == made.locations["there"]
            try:
                heirs = await heir.bind("there/0")
                await heirs.send("here/0", "I am new")
                async with asyncio.timeout(LIMIT_S):
                    assert (await ours.receive()).message == "I am new"
                    await made.loss.wait()
                assert len(made.lost["here"]) == 1
                await ours.send("there/0", "welcome")  # it has come, so there is somebody again
                assert (await heirs.receive()).message == "welcome"
                await heir.wire.later("aclose")
            finally:
                heir.wire.close()
            assert len(made.lost["here"]) == 1

    asyncio.run(run())


def test_nothing_is_left_on_standard_error(mesh: Any, capfd: pytest.CaptureFixture[str]) -> None:
    async def run() -> None:
        async with pair(mesh, OPTIONS) as (_, here, there):
            ours, theirs = await here.bind("here/0"), await there.bind("there/0")
            await ours.send("there/0", "hello")
            await theirs.send("here/0", "hello")
            await theirs.receive()
            await there.wire.later("aclose")

    asyncio.run(run())
    assert capfd.readouterr() == ("", "")
    assert os.environ["GRPC_VERBOSITY"]

"""Trouble on purpose: it happens, it breaks no law by itself, and what cannot stand it is found."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from flamecore.abc.transport import Delivery, Transport, TransportContext
from flamecore.testing.bench.transports import Make, Note, Setup
from flamecore.testing.checks.transports import CHECKS, FaultyTransportTests, TransportTests, check_channels
from flamecore.testing.faults import BAD_NETWORKS, Disconnects, Faulty, Proxy
from flamecore.testing.laws import LawBroken
from flamecore.testing.progress import patience
from flamestream_inproc import InprocTransport, Options

LIMIT_S = 10.0

# -- a transport with bad luck -----------------------------------------------------------------------------------------


class TestFaulty(TransportTests):
    most = 300

    def make(self, context: TransportContext) -> Transport:
        return Faulty(InprocTransport(Options(room=50), context), seed=1)


class Forgetful(InprocTransport):
    """Loses what is unread when its connections break; in the open, there are none."""

    def disconnect(self) -> None:
        for endpoint in self.endpoints.values():
            endpoint._queue.clear()


class Repetitive(InprocTransport):
    """Sends again what has arrived, and gives it again."""

    def repeat(self) -> None:
        for endpoint in self.endpoints.values():
            if endpoint._queue:
                endpoint._queue.append(endpoint._queue[-1])


def broken(make: Make) -> str:
    """Return the law that the first check finds broken."""
    try:
        asyncio.run(check_channels(Setup(make, limit_s=0.5)))
    except LawBroken as error:
        return error.law
    return ""


@pytest.mark.parametrize(("wrong", "law"), [(Forgetful, "loss"), (Repetitive, "twice")])
def test_a_transport_that_breaks_under_faults_is_caught(wrong: type[InprocTransport], law: str) -> None:
    def lucky(context: TransportContext) -> Transport:
        return wrong(Options(), context)

    def unlucky(context: TransportContext) -> Transport:
        return Faulty(lucky(context), seed=1, disconnects=0.05, repeats=0.05)

    assert broken(lucky) == ""
    assert broken(unlucky) == law
    gc.collect()  # what the failed check has left waiting says so now, and not in the midst of something else


def test_the_kit_fails_if_a_fault_does_not_happen() -> None:
    class Never(FaultyTransportTests):
        most = 100
        seeds = (1,)
        faults = ("full", "disconnect")

        def make(self, context: TransportContext) -> Transport:
            return InprocTransport(Options(room=20), context)

    never = Never()
    with pytest.raises(AssertionError):
        never.test_every_fault_happened()
    assert never._missing() == {"disconnect"}


def test_the_same_seed_gives_the_same_faults() -> None:
    async def run(seed: int) -> tuple[list[Delivery], dict[str, int]]:
        faulty = Faulty(InprocTransport(Options(), TransportContext()), seed=seed, delay_ms=0)
        names = [f"worker/{number}" for number in range(4)]
        senders, rear = [await faulty.bind(name) for name in names], await faulty.bind("rear/out")
        for number in range(100):
            for sender in senders:
                if not sender.send_nowait("rear/out", Note(number)):
                    await sender.send("rear/out", Note(number))
        got = [await rear.receive() for _ in range(400)]
        for name in names:
            assert [message.number for sender, message in got if sender == name] == [*range(100)]
        return got, faulty.faults

    first, second, other = asyncio.run(run(1)), asyncio.run(run(1)), asyncio.run(run(2))
    assert first == second != other
    assert {"delay", "full", "reorder"} == set(first[1])


def test_only_transports_that_can_disconnect_are_disconnected() -> None:
    assert not isinstance(InprocTransport(Options(), TransportContext()), Disconnects)
    assert isinstance(Forgetful(Options(), TransportContext()), Disconnects)


def test_every_check_holds_under_faults() -> None:
    """Each check of the kit, with much of it."""

    async def run(check: Callable[[Setup], Awaitable[None]], setup: Setup) -> None:
        await check(setup)

    made: list[Faulty] = []

    def make(context: TransportContext) -> Transport:
        made.append(
            Faulty(InprocTransport(Options(room=20), context), seed=len(made), delays=0.1, full=0.5, delay_ms=1)
        )
        return made[-1]

    for check in CHECKS:
        asyncio.run(run(check, Setup(make, most=100)))
    assert all(sum(faulty.faults[fault] for faulty in made) > 10 for fault in ("delay", "full", "reorder"))


# -- a bad network -----------------------------------------------------------------------------------------------------


class Echo:
    """A server that says what it hears."""

    def __init__(self) -> None:
        self.heard = 0
        self._server: asyncio.Server
        self._writers: list[asyncio.StreamWriter] = []

    async def start(self, folder: str) -> str:
        if folder:
            self._server = await asyncio.start_unix_server(self._serve, Path(folder) / "echo")
            return f"unix:{folder}/echo"
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        try:
            while data := await reader.read(1000):
                self.heard += len(data)
                writer.write(data)
                await writer.drain()
        finally:
            writer.close()

    def close(self) -> None:
        self._server.close()
        for writer in self._writers:
            writer.close()


async def connect(location: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a connection."""
    if location.startswith("unix:"):
        return await asyncio.open_unix_connection(location.removeprefix("unix:"))
    host, _, port = location.rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def is_cut(reader: asyncio.StreamReader) -> bool:
    """Return whether a connection ends without another word."""
    try:
        return not await reader.read(1)
    except OSError:
        return True


@pytest.mark.parametrize("way", ["tcp", "unix"])
def test_a_proxy_damages_a_connection_in_every_way(way: str) -> None:
    """Each way in which a proxy damages a connection, one after the other."""

    async def run(folder: str) -> None:
        echo = Echo()
        async with patience(LIMIT_S), Proxy(await echo.start(folder if way == "unix" else ""), seed=1) as proxy:
            reader, writer = await connect(proxy.location)
            writer.write(b"good")
            assert await reader.readexactly(4) == b"good"
            proxy.stall()
            heard = echo.heard
            writer.write(b"stalled")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(reader.read(1), 0.05)
            assert echo.heard == heard
            proxy.resume()
            assert await reader.readexactly(7) == b"stalled"
            proxy.drip(1)
            before = proxy.passed
            writer.write(b"drip")
            assert await reader.readexactly(4) == b"drip"
            assert proxy.passed == before + 8
            proxy.drip(0)
            proxy.flip(10, most=5)
            writer.write(bytes(500))
            flipped = await reader.readexactly(500)
            assert proxy.flips == 5
            assert sum(byte.bit_count() for byte in flipped) in (3, 5)  # or one bit was flipped back
            proxy.flip(0)
            proxy.cut()
            assert await is_cut(reader)
            writer.close()
            reader, writer = await connect(proxy.location)
            writer.write(b"again")
            assert await reader.readexactly(5) == b"again"
            assert proxy.connections == 2
            proxy.cut(refuse=True)
            writer.close()
            reader, writer = await connect(proxy.location)
            assert await is_cut(reader)
            assert proxy.connections == 2
            writer.close()
        echo.close()

    with TemporaryDirectory(prefix="flame") as folder:
        asyncio.run(run(folder))


def test_a_proxy_stalls_and_cuts_again_and_again_until_it_is_closed() -> None:
    async def run() -> None:
        echo = Echo()
        location = await echo.start("")
        time = asyncio.get_running_loop().time
        async with patience(LIMIT_S), Proxy(location) as proxy:
            proxy.stall_often(0.05)
            reader, writer = await connect(proxy.location)
            held = 0
            while held < 2:
                begun = time()
                writer.write(b"a")
                assert await reader.readexactly(1) == b"a"
                held += time() - begun > 0.02
            writer.close()
        async with patience(LIMIT_S), Proxy(location) as proxy:
            proxy.cut_often(0.01)
            for _ in range(3):
                reader, writer = await connect(proxy.location)
                assert await is_cut(reader)
                writer.close()
            assert proxy.connections == 3
        echo.close()

    asyncio.run(run())


@pytest.mark.parametrize("network", BAD_NETWORKS)
def test_what_is_sent_over_a_bad_network_comes_or_is_cut_or_has_other_bits(network: str) -> None:
    async def run() -> None:
        echo, sent = Echo(), bytes(200_000)
        async with patience(LIMIT_S), Proxy(await echo.start(""), seed=1) as proxy:
            BAD_NETWORKS[network](proxy)
            while True:
                reader, writer = await connect(proxy.location)
                try:
                    writer.write(sent)
                    got = await reader.readexactly(len(sent))
                    break
                except (OSError, EOFError):
                    assert network == "cuts"
                finally:
                    writer.close()
            assert (got == sent) is (network != "flips")
        echo.close()

    asyncio.run(run())

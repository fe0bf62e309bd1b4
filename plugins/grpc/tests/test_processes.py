"""Real processes: the kit across two, and processes killed, stopped or busy."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import pytest

from flamecore import errors
from flamecore.abc.transport import Endpoint, Transport, TransportContext
from flamecore.testing.checks.transports import TransportTests
from flamecore.testing.faults import Proxy
from flamecore.testing.progress import patience
from flamestream_grpc import GrpcTransport, Options

LIMIT_S = 10.0


@pytest.mark.parametrize(("first", "listen"), [("here", "unix"), ("there", "127.0.0.1")])
class TestAcrossProcesses(TransportTests):
    """Two processes in the kit: this one, and a separate real one."""

    most = 1000

    @pytest.fixture(autouse=True)
    def _circumstances(self, first: str, listen: str, remote: Any) -> None:
        self.here = first == "here"
        self.listen = listen
        self.remote = remote

    def make(self, context: TransportContext) -> Transport:
        options: dict[str, Any] = {"listen": self.listen, "window_frames": 64}
        if (context.node == "node-0") == self.here:
            return GrpcTransport(Options(**options), context)
        made: Transport = self.remote(options, context)
        return made


# -- processes that end, or seem to ------------------------------------------------------------------------------------


async def flood(endpoint: Endpoint) -> None:
    """Send until it fails."""
    while True:
        await endpoint.send("there/0", "ours")


OPTIONS: dict[str, Any] = {"window_frames": 64, "reconnect_timeout_s": 0.3}


@pytest.mark.parametrize("listen", ["unix", "127.0.0.1"])
@pytest.mark.parametrize("sends", ["here", "there", "both"])
def test_a_killed_process_is_reported_once(pair: Any, listen: str, sends: str) -> None:
    """Whichever has sent: the survivor is told, and its waiting senders fail."""

    async def run() -> None:
        async with pair(OPTIONS | {"listen": listen}) as (made, here, there):
            ours, theirs = await here.bind("here/0"), await there.bind("there/0")
            floods = []
            if sends != "there":
                floods.append(asyncio.create_task(flood(ours)))
                await theirs.receive()
            if sends != "here":
                there.wire._tell("flood", 0, "here/0", made.locations["here"], "theirs")
                await ours.receive()
            there.wire.process.send_signal(signal.SIGKILL)
            async with patience(LIMIT_S):
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


def test_a_stopped_process_is_reported(pair: Any) -> None:
    """The machine seems to have vanished: connections stay, and nothing answers."""

    async def run() -> None:
        async with pair(OPTIONS | {"keepalive_s": 0.3}) as (made, here, there):
            ours, theirs = await here.bind("here/0"), await there.bind("there/0")
            await ours.send("there/0", "hello")
            await theirs.receive()
            there.wire.process.send_signal(signal.SIGSTOP)
            async with patience(LIMIT_S):
                await made.loss.wait()
            assert [location for location, _ in made.lost["here"]] == [made.locations["there"]]

    asyncio.run(run())


def test_a_busy_process_is_not_reported(pair: Any) -> None:
    """A user's function may block the event loop for longer than the keepalive allows."""

    async def run() -> None:
        async with pair(OPTIONS | {"keepalive_s": 0.2}) as (made, here, there):
            ours, theirs = await here.bind("here/0"), await there.bind("there/0")
            there.wire.now("home", "here/0", made.locations["here"])
            await ours.send("there/0", "hello")
            await theirs.send("here/0", "hello")
            await theirs.receive()
            there.wire._tell("block", 1.5)
            await ours.send("there/0", "busy?")
            async with patience(LIMIT_S):
                assert (await theirs.receive()).message == "busy?"
            assert (await ours.receive()).message == "hello"
            assert made.lost == {}
            assert there.wire.lost == []
            await there.wire.later("aclose")

    asyncio.run(run())


def test_a_busy_process_whose_connection_breaks_is_waited_for(pair: Any) -> None:
    """It has no time to reconnect, but its machine accepts connections."""

    async def run() -> None:
        async with pair(OPTIONS) as (made, here, there), Proxy(made.locations["here"]) as proxy:
            ours, theirs = await here.bind("here/0"), await there.bind("there/0")
            there.wire.now("home", "here/0", proxy.location)
            made.locations["here"] = proxy.location
            await theirs.send("here/0", "before")
            assert (await ours.receive()).message == "before"
            there.wire._tell("block", 3 * here.options.reconnect_timeout_s)
            there.wire._tell("send", 0, "here/0", proxy.location, "after")
            proxy.cut()
            async with patience(LIMIT_S):
                assert (await ours.receive()).message == "after"
            assert proxy.connections == 2
            assert made.lost == {}
            assert there.wire.lost == []
            await there.wire.later("aclose")

    asyncio.run(run())


def test_a_process_that_closes_is_not_reported(pair: Any) -> None:
    async def run() -> None:
        async with pair(OPTIONS) as (made, here, there):
            ours, theirs = await here.bind("here/0"), await there.bind("there/0")
            await ours.send("there/0", "hello")
            await theirs.send("here/0", "hello")
            await theirs.receive()
            await there.wire.later("aclose")
            assert (await ours.receive()).message == "hello"
            with pytest.raises(errors.PeerGoneError, match="has closed"):
                await flood(ours)
            there.wire.process.send_signal(signal.SIGKILL)  # not before it has said so
            await asyncio.sleep(2 * here.options.reconnect_timeout_s)
            assert made.lost == {}

    asyncio.run(run())


@pytest.mark.parametrize("sent", ["here", "there"])
def test_a_successor_at_the_same_address_is_another_process(pair: Any, remote: Any, sent: str) -> None:
    """A process restarted right after a kill lacks its predecessor's messages."""
    options = {"window_frames": 64, "reconnect_timeout_s": LIMIT_S}

    async def run() -> None:
        async with pair(options) as (made, here, there):
            ours, theirs = await here.bind("here/0"), await there.bind("there/0")
            sender, receiver, to = (ours, theirs, "there/0") if sent == "here" else (theirs, ours, "here/0")
            await sender.send(to, "hello")
            await receiver.receive()
            there.wire.process.send_signal(signal.SIGKILL)
            there.wire.process.wait()
            there.wire.close()
            heir = remote(options, made.context("there"))
            assert await heir.start() == made.locations["there"]
            try:
                heirs = await heir.bind("there/0")
                await heirs.send("here/0", "I am new")
                async with patience(LIMIT_S):
                    assert (await ours.receive()).message == "I am new"
                    await made.loss.wait()
                assert len(made.lost["here"]) == 1
                await ours.send("there/0", "welcome")  # it has come, so an endpoint is bound again
                assert (await heirs.receive()).message == "welcome"
                await heir.wire.later("aclose")
            finally:
                heir.wire.close()
            assert len(made.lost["here"]) == 1

    asyncio.run(run())


def test_nothing_is_left_on_standard_error(pair: Any, capfd: pytest.CaptureFixture[str]) -> None:
    async def run() -> None:
        async with pair(OPTIONS) as (_, here, there):
            ours, theirs = await here.bind("here/0"), await there.bind("there/0")
            await ours.send("there/0", "hello")
            await theirs.send("here/0", "hello")
            await theirs.receive()
            await there.wire.later("aclose")

    asyncio.run(run())
    assert capfd.readouterr() == ("", "")
    assert os.environ["GRPC_VERBOSITY"]

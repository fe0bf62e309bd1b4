"""Real processes: one sends to another that echoes, leaves, is killed or hangs."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

import pytest

from flamecore.errors import PeerGoneError
from flamecore.testing.progress import patience
from flamestream_nats.testing import NatsServer

ECHO = """
import asyncio, sys
from flamecore.runtime.codec.codec import Codec
from flamecore.abc.transport import TransportContext
from flamestream_nats import NatsTransport, Options

async def main():
    options = Options(servers=(sys.argv[1],))
    context = TransportContext(job="test", incarnation=1, codec=Codec(), token="t0ken", node="echo")
    transport = NatsTransport(options, context)
    location = await transport.start()
    endpoint = await transport.bind("worker/1")
    print(location, flush=True)
    while (delivery := await endpoint.receive()).message is not None:
        await endpoint.send(delivery.sender, delivery.message)
    await transport.aclose()

asyncio.run(main())
"""
LIMIT_S = 20.0


class Child:
    """The echoing process."""

    def __init__(self, process: asyncio.subprocess.Process, location: str) -> None:
        self.process = process
        self.location = location

    async def aclose(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()


async def start(url: str) -> Child:
    """Start the echoing process; return once it listens."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", ECHO, url),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None
    async with patience(LIMIT_S):
        location = (await process.stdout.readline()).decode().strip()
    assert location
    return Child(process, location)


def test_processes_exchange_messages_and_close(server: NatsServer, job: Any) -> None:
    async def run() -> None:
        child = await start(server.url)
        try:
            async with job(server.url) as made, patience(LIMIT_S):
                endpoint = await (await made.join("here")).bind("worker/0")
                for number in range(500):
                    await endpoint.send("worker/1", (number, "x" * 1000))
                got = [(await endpoint.receive()).message[0] for _ in range(500)]
                assert got == [*range(500)]
                await endpoint.send("worker/1", None)
                assert await child.process.wait() == 0
                with pytest.raises(PeerGoneError):
                    await _talk(endpoint)
                assert made.lost.empty()
        finally:
            await child.aclose()

    asyncio.run(run())


@pytest.mark.parametrize("busy", [True, False], ids=["in the middle of a talk", "while nothing is said"])
def test_a_killed_process_is_reported(server: NatsServer, job: Any, busy: bool) -> None:
    async def run() -> None:
        child = await start(server.url)
        try:
            async with job(server.url) as made, patience(LIMIT_S):
                endpoint = await (await made.join("here")).bind("worker/0")
                await endpoint.send("worker/1", 0)
                assert (await endpoint.receive()).message == 0
                child.process.send_signal(signal.SIGKILL)
                waits = asyncio.create_task(_talk(endpoint)) if busy else None
                where, error = await made.next_lost()
                assert where == child.location
                assert isinstance(error, PeerGoneError)
                assert "no connection to it for 1 s" in str(error)
                if waits is not None:
                    with pytest.raises(PeerGoneError):
                        await waits
                with pytest.raises(PeerGoneError):
                    endpoint.send_nowait("worker/1", 1)
                assert made.lost.empty()
        finally:
            await child.aclose()

    asyncio.run(run())


async def _talk(endpoint: Any) -> None:
    while True:
        await endpoint.send("worker/1", "x" * 1000)
        await asyncio.sleep(0)


def test_a_hanging_process_is_waited_for_and_then_reported(server: NatsServer, job: Any) -> None:
    async def run() -> None:
        child = await start(server.url)
        try:
            async with job(server.url, {"heartbeat_s": 0.05, "silence_timeout_s": 1.0}) as made:
                endpoint = await (await made.join("here")).bind("worker/0")
                async with patience(LIMIT_S):
                    await endpoint.send("worker/1", 0)
                    await endpoint.receive()
                    child.process.send_signal(signal.SIGSTOP)
                    await asyncio.sleep(0.4)  # longer than four signs of life: it may be busy
                    assert made.lost.empty()
                    child.process.send_signal(signal.SIGCONT)
                    await endpoint.send("worker/1", 1)
                    assert (await endpoint.receive()).message == 1
                    child.process.send_signal(signal.SIGSTOP)
                    where, error = await made.next_lost()
                assert where == child.location
                assert "is connected, and has said nothing for 1 s" in str(error)
        finally:
            await child.aclose()

    asyncio.run(run())


def test_one_address_cannot_be_bound_by_two_processes(server: NatsServer, job: Any) -> None:
    from flamecore.errors import TransportError

    async def run() -> None:
        child = await start(server.url)
        try:
            async with job(server.url, {"heartbeat_s": 0.1}) as made:
                here = await made.join("here")
                with pytest.raises(TransportError, match="worker/1 is bound already, by another process of job 'test'"):
                    await here.bind("worker/1")
                child.process.send_signal(signal.SIGSTOP)  # a silent process still holds its address
                with pytest.raises(TransportError, match="bound already"):
                    await here.bind("worker/1")
                await here.bind("worker/2")
        finally:
            await child.aclose()

    asyncio.run(run())

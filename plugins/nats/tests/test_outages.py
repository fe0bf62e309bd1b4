"""Servers that come back, wires that are cut or stalled: no loss, no duplicate."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from nats import errors

from flamecore.abc.transport import Endpoint
from flamecore.errors import ConnectError
from flamecore.runtime.tasks.event_loop import run
from flamecore.testing import faults
from flamecore.testing.progress import patience, patiently
from flamestream_nats.client import DirectClient
from flamestream_nats.testing import NatsServer

COUNT = 4000
LIMIT_S = 20.0


async def carried(sender: Endpoint, receiver: Endpoint, trouble: Callable[[], Awaitable[None]]) -> None:
    """Send numbers, cause trouble halfway, and check the numbers that arrive."""
    ahead = asyncio.Semaphore(COUNT // 4)

    async def talk() -> None:
        for number in range(COUNT):
            await ahead.acquire()
            if number % 2 or not sender.send_nowait(receiver.address, number):
                await sender.send(receiver.address, number)

    talking = asyncio.create_task(talk())
    got: list[int] = []
    async with patience(LIMIT_S):
        while len(got) < COUNT:
            got.append((await receiver.receive()).message)
            ahead.release()
            if len(got) == COUNT // 2:
                await trouble()
        await talking
    assert got == [*range(COUNT)]
    assert receiver.receive_nowait() is None


def test_without_trouble_nothing_is_sent_twice(server: NatsServer, job: Any) -> None:
    """A bound address receives at once; else the first messages came late."""

    async def run() -> None:
        async with job(server.url) as made, patience(LIMIT_S):
            left, right = await made.join("left"), await made.join("right")
            for number in range(50):
                a, b = await left.bind(f"worker/{2 * number}"), await right.bind(f"worker/{2 * number + 1}")
                for here, there in ((a, b), (b, a)):
                    for message in range(3):
                        assert here.send_nowait(there.address, message)
                for endpoint in (a, b):
                    assert [(await endpoint.receive()).message for _ in range(3)] == [0, 1, 2]
            assert not left.refused
            assert not right.refused

    asyncio.run(run())


def test_a_flush_that_times_out_does_not_end_reading(server: NatsServer, job: Any) -> None:
    """The server confirms a flush that was given up."""

    async def run() -> None:
        async with job(server.url) as made, patience(LIMIT_S):
            left, right = await made.join("left"), await made.join("right")
            a, b = await left.bind("worker/0"), await right.bind("worker/1")
            for number in range(20):
                c = await left.bind(f"worker/{number + 2}")
                closing = asyncio.create_task(c.aclose())
                for _ in range(number % 5 + 1):
                    await asyncio.sleep(0)  # as far as into the wait for the server
                closing.cancel()
                await asyncio.wait((closing,))
                await b.send("worker/0", number)
                assert (await a.receive()).message == number

    asyncio.run(run())


class Cutting(faults.Proxy):
    """A network that breaks the first connections before the server has said anything."""

    cuts = 6

    async def _reach(self) -> Any:
        if self.connections <= self.cuts:
            raise ConnectionResetError
        return await super()._reach()


def test_a_process_comes_in_though_its_first_connections_break(
    server: NatsServer, job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flamestream_nats.connection._START_S", LIMIT_S)  # as long as a busy machine takes

    async def run() -> None:
        async with Cutting(server.url.removeprefix("nats://")) as proxy, job(f"nats://{proxy.location}") as made:
            async with patience(LIMIT_S):
                left = await made.join("left")
                a, b = await left.bind("worker/0"), await left.bind("worker/1")
                await a.send("worker/1", "after")
                assert (await b.receive()).message == "after"
            assert proxy.connections == proxy.cuts + 1

    asyncio.run(run())


def test_a_cancelled_wait_for_the_end_of_a_connection_ends_no_other(server: NatsServer, job: Any) -> None:
    """In asyncio all wait for one future, which is cancelled with the first of them."""

    async def run() -> None:
        async with job(server.url) as made, patience(LIMIT_S):
            left = await made.join("left")
            wire = left._exchange._connection._client._transport
            for _ in range(2):
                waiting = asyncio.create_task(wire.wait_closed())
                await asyncio.sleep(0.01)
                waiting.cancel()
                await asyncio.wait((waiting,))
                assert waiting.cancelled()

    asyncio.run(run())


@pytest.mark.parametrize("how", ["the server refuses", "it is cancelled"])
def test_a_transport_that_cannot_begin_to_listen_is_disconnected(
    server: NatsServer, job: Any, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """It is connected by then, and nobody else has a way to the connection."""
    made: list[DirectClient] = []

    async def hear(client: DirectClient, *_: object) -> int:
        made.append(client)
        if how == "it is cancelled":
            await asyncio.sleep(60)
        raise errors.AuthorizationError

    async def work() -> None:
        monkeypatch.setattr(DirectClient, "hear", hear)
        async with job(server.url) as among, patience(LIMIT_S):
            joining = asyncio.create_task(among.join("left"))
            while not made:
                await asyncio.sleep(0.01)
            if how == "it is cancelled":
                joining.cancel()
            await asyncio.wait((joining,))
            assert made[0].is_closed

    run(work())


def test_a_transport_closes_while_it_reconnects(server: NatsServer, job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection is refused at the very moment at which the attempt is cancelled."""

    async def run() -> None:
        trying = asyncio.Event()

        async def refused(*_: object) -> None:
            trying.set()
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                raise ConnectionRefusedError from None

        async with job(server.url) as made, patience(LIMIT_S):
            left = await made.join("left")
            monkeypatch.setattr("flamestream_nats.client._Wire.connect", refused)
            left.disconnect()
            await trying.wait()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())


@pytest.mark.parametrize("end", [NatsServer.kill, NatsServer.stop])
def test_messages_arrive_though_the_server_restarts(job: Any, end: Callable[[NatsServer], None]) -> None:
    async def run(server: NatsServer) -> None:
        async with job(server.url) as made:
            left, right = await made.join("left"), await made.join("right")
            a, b = await left.bind("worker/0"), await right.bind("worker/1")

            async def trouble() -> None:
                end(server)
                await asyncio.sleep(0.05)
                server.start()

            await carried(a, b, trouble)
            assert made.lost.empty()

    with NatsServer() as server:
        asyncio.run(run(server))


def test_messages_arrive_both_ways_through_restarts(job: Any) -> None:
    async def run(server: NatsServer) -> None:
        async with job(server.url, {"window_frames": 50}) as made:
            left, right = await made.join("left"), await made.join("right")
            a, b = await left.bind("worker/0"), await right.bind("worker/1")

            async def trouble() -> None:
                server.kill()
                server.start()

            async def quiet() -> None:
                pass

            await asyncio.gather(carried(a, b, trouble), carried(b, a, quiet))
            assert made.lost.empty()

    with NatsServer() as server:
        asyncio.run(run(server))


def test_messages_sent_while_the_server_is_away_arrive(job: Any) -> None:
    async def run(server: NatsServer) -> None:
        async with job(server.url) as made:
            left, right = await made.join("left"), await made.join("right")
            a, b = await left.bind("worker/0"), await right.bind("worker/1")
            server.kill()
            assert all(a.send_nowait("worker/1", number) for number in range(200))
            server.start()
            async with patience(LIMIT_S):
                assert [(await b.receive()).message for _ in range(200)] == [*range(200)]

    with NatsServer() as server:
        asyncio.run(run(server))


def test_closing_waits_for_a_server_that_is_away(job: Any) -> None:
    async def run(server: NatsServer) -> None:
        async with job(server.url) as made:
            left, right = await made.join("left"), await made.join("right")
            a, b = await left.bind("worker/0"), await right.bind("worker/1")
            server.kill()
            assert a.send_nowait("worker/1", "last")
            closing = asyncio.create_task(a.aclose())
            await asyncio.sleep(0.05)
            server.start()
            async with patience(LIMIT_S):
                await closing
                assert (await b.receive()).message == "last"

    with NatsServer() as server:
        asyncio.run(run(server))


@pytest.mark.parametrize("whose", ["sender", "receiver"])
def test_messages_arrive_though_a_connection_is_cut(server: NatsServer, job: Any, proxy: Any, whose: str) -> None:
    async def run() -> None:
        async with proxy(server.port) as wire, job(server.url) as made:
            left = await made.join("left", url=wire.url if whose == "sender" else "")
            right = await made.join("right", url=wire.url if whose == "receiver" else "")
            a, b = await left.bind("worker/0"), await right.bind("worker/1")

            async def trouble() -> None:
                wire.cut()

            await carried(a, b, trouble)
            assert made.lost.empty()

    asyncio.run(run())


def test_messages_arrive_though_a_connection_stalls(server: NatsServer, job: Any, proxy: Any) -> None:
    async def run() -> None:
        async with proxy(server.port) as wire, job(server.url) as made:
            left, right = await made.join("left"), await made.join("right", url=wire.url)
            a, b = await left.bind("worker/0"), await right.bind("worker/1")

            async def trouble() -> None:
                wire.flows.clear()  # for longer than four signs of life
                asyncio.get_running_loop().call_later(1.2, wire.flows.set)

            await carried(a, b, trouble)
            assert made.lost.empty()

    asyncio.run(run())


def test_messages_arrive_over_a_slow_connection(server: NatsServer, job: Any, proxy: Any) -> None:
    async def run() -> None:
        async with proxy(server.port) as wire, job(server.url) as made:
            left, right = await made.join("left", url=wire.url), await made.join("right", url=wire.url)
            a, b = await left.bind("worker/0"), await right.bind("worker/1")
            wire.pause_s = 0.002
            body = "x" * 100_000
            async with patience(LIMIT_S):
                for _ in range(2):
                    await a.send("worker/1", body)
                assert [(await b.receive()).message for _ in range(2)] == [body] * 2
            wire.pause_s = 0.0
            assert made.lost.empty()

    asyncio.run(run())


def test_a_server_that_stays_away_ends_the_job(job: Any) -> None:
    async def run(server: NatsServer) -> None:
        async with job(server.url, {"reconnect_timeout_s": 0.3, "window_frames": 5}) as made:
            left, right = await made.join("left"), await made.join("right")
            a = await left.bind("worker/0")
            await right.bind("worker/1")
            server.kill()
            for number in range(5):
                assert a.send_nowait("worker/1", number)
            waits = asyncio.create_task(a.send("worker/1", 5))
            for _ in range(2):
                where, error = await made.next_lost()
                assert where == ""
                assert isinstance(error, ConnectError)
                assert "has been away for 0.3 s" in str(error)
            with pytest.raises(ConnectError):
                await waits
            with pytest.raises(ConnectError):
                a.send_nowait("worker/1", 6)
            with pytest.raises(ConnectError):
                await left.bind("worker/2")

    with NatsServer() as server:
        asyncio.run(run(server))


def test_a_slow_receiver_makes_its_sender_wait_and_loses_nothing(job: Any) -> None:
    """The sender sends twenty times the server's buffer to a receiver that pauses."""

    async def run(server: NatsServer) -> None:
        async with job(server.url, {"window_bytes": 500_000}) as made:
            left, right = await made.join("left"), await made.join("right")
            a, b = await left.bind("worker/0"), await right.bind("worker/1")
            sent = 0

            async def talk() -> None:
                nonlocal sent
                for number in range(400):
                    await a.send("worker/1", (number, b"x" * 50_000))
                    sent += 1

            talking = asyncio.create_task(talk())
            seen = -1
            while seen < sent:
                seen = sent
                await asyncio.wait((talking,), timeout=0.1)
            assert seen == 10
            assert not a.send_nowait("worker/1", None)
            async with patience(LIMIT_S):
                for number in range(400):
                    assert (await b.receive()).message[0] == number
                await talking
            assert made.lost.empty()
            assert not any("slow consumer" in line.lower() for line in server.lines)

    with NatsServer(max_payload=100_000, settings={"max_pending": 1_000_000}) as server:
        asyncio.run(run(server))


def test_a_receiver_that_the_server_drops_gets_everything_all_the_same(job: Any, proxy: Any) -> None:
    """The window is wider than the server's buffer for a client whose wire stalls."""

    async def run(server: NatsServer) -> None:
        async with proxy(server.port) as wire, job(server.url, {"window_bytes": 20_000_000}) as made:
            left, right = await made.join("left"), await made.join("right", url=wire.url)
            a, b = await left.bind("worker/0"), await right.bind("worker/1")
            wire.flows.clear()
            bodies = [(number, b"x" * 500_000) for number in range(30)]
            for body in bodies:
                assert a.send_nowait("worker/1", body)
            async with patience(LIMIT_S):
                while not any("slow consumer" in line.lower() for line in server.lines):
                    await asyncio.sleep(0.01)
                wire.flows.set()
                assert [(await b.receive()).message for _ in bodies] == bodies
            assert made.lost.empty()

    with NatsServer(settings={"max_pending": 1_100_000}) as server:
        asyncio.run(run(server))


def test_an_address_is_bound_while_the_server_is_away(job: Any) -> None:
    """Requests lost in the outage are made again once the server is back."""

    async def run(server: NatsServer) -> None:
        async with job(server.url) as made, patience(LIMIT_S):
            left, right = await made.join("left"), await made.join("right")
            a = await left.bind("worker/0")
            for moment in range(8):  # of binding, which asks the server for several things
                binding = asyncio.create_task(right.bind(f"worker/{moment + 1}"))
                for _ in range(moment):
                    await asyncio.sleep(0)
                server.kill()
                await asyncio.sleep(0.02)
                server.start()
                b = await binding
                await a.send(b.address, moment)
                assert (await b.receive()).message == moment

    with NatsServer() as server:
        asyncio.run(run(server))


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_messages_are_dropped_from_when_the_server_resets_the_connection(loop: str) -> None:
    """The transports of some event loops raise an error in place of it, before the library knows of the reset."""
    factory = (
        None if loop == "asyncio" else pytest.importorskip("uvloop", reason="uvloop is not installed").new_event_loop
    )
    errors: list[dict[str, Any]] = []
    raised: list[Exception] = []

    async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"max_payload": 1048576}\r\n')
        await reader.readuntil(b"PING\r\n")
        writer.write(b"PONG\r\n")
        await reader.readuntil(b"PUB")
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    async def run() -> None:
        here = asyncio.get_running_loop()
        here.set_exception_handler(lambda _, context: errors.append(context))
        async with await asyncio.start_server(reset, "127.0.0.1", 0) as listening:
            client = DirectClient(secured=False, broken=raised.append)
            await client.connect(f"nats://127.0.0.1:{listening.sockets[0].getsockname()[1]}", allow_reconnect=False)

            def talk() -> None:
                client.say([("somewhere", "", b"what nobody reads")])
                if not client.is_closed:
                    here.call_soon(talk)

            talk()
            while not client.is_closed:
                await asyncio.sleep(0)

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(patiently(run(), LIMIT_S))
    assert (errors, raised) == ([], [])

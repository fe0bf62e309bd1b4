"""A receiver that does not read makes its senders wait, and memory stays bounded."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from flamecore.errors import SendTimeout, TransportClosedError
from flamecore.testing.progress import patience
from flamestream_grpc import GrpcTransport, Options

LIMIT_S = 10.0


def kept_bytes(transport: GrpcTransport) -> int:
    """Return the bytes that a process keeps in order to send them, or send them again."""
    links = transport._links.values()
    return sum(len(data) for link in links for channel in link.channels.values() for data in channel.kept)


def unread(transport: GrpcTransport) -> tuple[int, int]:
    """Return the number and bytes of messages that wait to be read at a process."""
    arrived = [one for endpoint in transport.endpoints.values() for one in endpoint._arrived]
    return len(arrived), sum(one.size for one in arrived)


@pytest.mark.parametrize(
    ("options", "frames", "size"),
    [(Options(window_frames=50), 50, 50 * 1100), (Options(window_bytes=20_000), 20, 22_000)],
)
def test_a_sender_waits_and_memory_is_bounded(mesh: Any, options: Options, frames: int, size: int) -> None:
    async def run() -> None:
        async with mesh() as made:
            a, b = await made.add("a", options), await made.add("b", options)
            senders = [await a.bind(f"a/{number}") for number in range(3)]
            slow, quick = await b.bind("b/slow"), await b.bind("b/quick")
            sent = 0

            async def flood(number: int) -> None:
                nonlocal sent
                for _ in range(500):
                    await senders[number].send("b/slow", "x" * 1000)
                    sent += 1

            floods = [asyncio.create_task(flood(number)) for number in range(3)]
            seen = -1
            while seen < sent:
                seen = sent
                await asyncio.sleep(0.1)
            assert sent == unread(b)[0] <= 3 * frames
            assert unread(b)[1] <= 3 * size
            assert kept_bytes(a) == 0
            assert not senders[0].send_nowait("b/slow", "no room")
            # Receivers that read are not blocked by one that does not.
            for number in range(2 * frames):
                await senders[0].send("b/quick", number)
                async with patience(LIMIT_S):
                    assert (await quick.receive()).message == number
            for _ in range(3 * 500):
                async with patience(LIMIT_S):
                    await slow.receive()
            await asyncio.gather(*floods)

    asyncio.run(run())


def test_a_stalled_network_bounds_what_is_kept(mesh: Any) -> None:
    async def run() -> None:
        from flamecore.testing.faults import Proxy

        async with mesh() as made:
            options = Options(window_frames=50)
            a, b = await made.add("a", options), await made.add("b", options)
            async with Proxy(made.locations["b"]) as proxy:
                made.locations["b"] = proxy.location
                sender, receiver = await a.bind("a/0"), await b.bind("b/0")
                await sender.send("b/0", "first")
                await receiver.receive()
                proxy.stall()
                sent = 0
                while sent < 1000 and sender.send_nowait("b/0", "x" * 1000):
                    sent += 1
                assert sent in (49, 50)  # the acknowledgement of the first may be late
                assert 49_000 < kept_bytes(a) < 60_000
                proxy.resume()
                for _ in range(sent):
                    async with patience(LIMIT_S):
                        await receiver.receive()
                await a.aclose()

    asyncio.run(run())


def test_a_sender_waits_for_room_up_to_its_limit(mesh: Any) -> None:
    async def run() -> None:
        async with mesh() as made:
            options = Options(window_frames=2, send_timeout_s=0.1)
            a, b = await made.add("a", options), await made.add("b", options)
            sender, receiver = await a.bind("a/0"), await b.bind("b/0")
            near = await b.bind("b/1")
            for endpoint in (sender, near):
                for number in range(2):
                    await endpoint.send("b/0", number)
                if endpoint is sender:
                    with pytest.raises(SendTimeout, match=r"b/0 has given a/0 no room for 0.1 s: 2 messages") as caught:
                        await endpoint.send("b/0", "one too many")
                    assert (caught.value.timeout_s, caught.value.peer) == (0.1, "b/0")
                    for _ in range(2):
                        await receiver.receive()
            with pytest.raises(SendTimeout, match=r"b/0 has given b/1 no room for 0.1 s: 2 messages are unread"):
                await near.send("b/0", "one too many")
            assert [(await receiver.receive()).message for _ in range(2)] == [0, 1]
            await sender.send("b/0", "on it goes")
            assert (await receiver.receive()).message == "on it goes"

    asyncio.run(run())


@pytest.mark.parametrize("home", ["a", "b"])
def test_a_sender_waiting_for_room_hears_when_its_own_end_closes(mesh: Any, home: str) -> None:
    async def run() -> None:
        async with mesh() as made:
            options = Options(window_frames=1)
            a, b = await made.add("a", options), await made.add("b", options)
            sender = await {"a": a, "b": b}[home].bind(f"{home}/0")
            receiver = await b.bind("b/9")
            await sender.send("b/9", "one")
            waits = asyncio.create_task(sender.send("b/9", "two"))
            await asyncio.wait((waits,), timeout=0.05)
            await sender.aclose()
            with pytest.raises(TransportClosedError):
                await waits
            assert (await receiver.receive()).message == "one"
            await asyncio.sleep(0)
            assert receiver.receive_nowait() is None

    asyncio.run(run())


def test_a_cancelled_send_is_not_sent(mesh: Any) -> None:
    async def run() -> None:
        async with mesh() as made:
            options = Options(window_frames=1)
            a, b = await made.add("a", options), await made.add("b", options)
            sender, receiver = await a.bind("a/0"), await b.bind("b/0")
            await sender.send("b/0", 0)
            waiting = [asyncio.create_task(sender.send("b/0", number)) for number in (1, 2, 3)]
            await asyncio.wait(waiting, timeout=0.05)
            waiting[1].cancel()
            await asyncio.wait((waiting[1],))
            async with patience(LIMIT_S):
                assert [(await receiver.receive()).message for _ in range(3)] == [0, 1, 3]
            await asyncio.gather(waiting[0], waiting[2])

    asyncio.run(run())


def test_closing_delivers_first(mesh: Any) -> None:
    """Messages sent before the process closes arrive, though they are read later."""

    async def run() -> None:
        async with mesh() as made:
            a, b = await made.add("a"), await made.add("b")
            sender, receiver = await a.bind("a/0"), await b.bind("b/0")
            await sender.send("b/0", 0)
            sent = [0, *(number for number in range(1, 500) if sender.send_nowait("b/0", number))]
            await a.aclose()
            assert len(sent) == 500
            assert [(await receiver.receive()).message for _ in sent] == sent
            assert made.lost == {}

    asyncio.run(run())


def test_closing_names_messages_that_could_not_be_delivered(mesh: Any) -> None:
    async def run() -> None:
        from flamecore.testing.faults import Proxy

        async with mesh() as made:
            a, b = await made.add("a", Options(send_timeout_s=0.2)), await made.add("b")
            async with Proxy(made.locations["b"]) as proxy:
                made.locations["b"] = proxy.location
                sender = await a.bind("a/0")
                await b.bind("b/0")
                await sender.send("b/0", 0)
                await b.endpoints["b/0"].receive()
                proxy.stall()
                await sender.send("b/0", 1)
                with pytest.raises(SendTimeout, match=r"a/0 closes, and b/0 has not taken its last \d messages"):
                    await a.aclose()
                await a.aclose()

    asyncio.run(run())

"""Messages of strangers on the server: they are refused and counted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nats.aio.client import Client
from structlog.testing import capture_logs

from flamecore.errors import FrameError
from flamecore.events import MESSAGE_REFUSED
from flamecore.runtime.codec.codec import Codec
from flamecore.testing.draws import seeds
from flamecore.testing.progress import patience
from flamecore.toolkit.frames import Frame, Framing
from flamestream_nats import NatsTransport
from flamestream_nats.channels.envelope import Envelope, Kind
from flamestream_nats.channels.subjects import Subjects
from flamestream_nats.testing import NatsServer

SUBJECTS = Subjects("flamestream", "test", 1)
AT = SUBJECTS.at("worker/1")
BACK = SUBJECTS.node("stranger-1", "c1")
BODY = Codec().encode("hi")


def sealed(
    kind: Kind = Kind.DATA,
    *,
    job: str = "test",
    incarnation: int = 1,
    token: str = "t0ken",
    sequence: int = 1,
    sender: str = "worker/7",
    receiver: str = "worker/1",
    body: bytes = BODY,
    subject: str = AT,
    reply: str = BACK,
) -> bytes:
    envelope = Envelope(Framing(job, incarnation), token)
    return envelope.seal(kind, 0, 5, Frame(sender, receiver, sequence, body), subject, reply)


def flipped(data: bytes, at: int = -1) -> bytes:
    changed = bytearray(data)
    changed[at] ^= 1
    return bytes(changed)


def untokened(kind: Kind = Kind.DATA, **fields: Any) -> bytes:
    return sealed(kind, token="", **fields)


class Stranger(Client):
    """Another client of the server."""

    async def flush(self, timeout: int = 10) -> None:
        """Wait until the server has what was published.

        The library asks the server before a task of its own has written that, and the server may answer first.
        """
        await super().flush(timeout)
        await super().flush(timeout)


@asynccontextmanager
async def a_stranger(server: NatsServer) -> AsyncIterator[Any]:
    """Connect a stranger to the server."""
    async with Stranger() as made:
        await made.connect(server.url)
        yield made


LONE = {
    "other token": ("token", sealed(token="guess"), BACK),
    "no token": ("token", untokened(), BACK),
    "damaged": ("token", flipped(sealed()), BACK),
    "nothing": ("token", b"", BACK),
    "random": ("token", bytes(range(256)), BACK),
    "another way back": ("token", sealed(), SUBJECTS.node("other", "c1")),
    "copied from another address": ("token", sealed(subject=SUBJECTS.at("worker/2")), BACK),
    "other job": ("job", sealed(job="other"), BACK),
    "earlier incarnation": ("incarnation", sealed(incarnation=0), BACK),
    "other address inside": ("address", sealed(receiver="worker/2"), BACK),
    "no way back": ("origin", sealed(reply=""), ""),
    "a wrong way back": ("origin", sealed(reply="elsewhere.1"), "elsewhere.1"),
    "not for an address": ("kind", sealed(Kind.STATE), BACK),
    "undecodable": ("undecodable", sealed(body=b"\xc1"), BACK),
    "a gap": ("gap", sealed(sequence=3), BACK),
    "a broken probe": ("body", sealed(Kind.PROBE, body=b"x"), BACK),
}


@pytest.mark.parametrize("what", LONE)
def test_foreign_messages_are_refused_and_counted(server: NatsServer, job: Any, what: str) -> None:
    reason, data, reply = LONE[what]

    async def run() -> None:
        async with job(server.url) as made, a_stranger(server) as stranger, patience(10):
            left, right = await made.join("left"), await made.join("right")
            a, b = await left.bind("worker/0"), await right.bind("worker/1")
            await a.send("worker/1", "before")
            assert (await b.receive()).message == "before"
            with capture_logs() as logs:
                await stranger.publish(AT, data, reply)
                await stranger.flush()
                while not right.refused:
                    await asyncio.sleep(0.005)
            told = [(log["event"], log["address"], log["sender"]) for log in logs]
            assert told == [(MESSAGE_REFUSED, "worker/1", "worker/7")] * (reason == "undecodable")
            await a.send("worker/1", "after")
            assert (await b.receive()).message == "after"
            assert right.refused == {reason: 1}
            assert b.receive_nowait() is None
            right.refused.clear()
            b.incoming.pop("worker/7", None)  # it never says farewell

    asyncio.run(run())


def test_without_a_token_damage_and_strangers_are_still_seen(server: NatsServer, job: Any) -> None:
    wrong = [
        ("short", b"\0"),
        ("short", untokened()[:30]),
        ("magic", bytes(100)),
        ("length", untokened() + b"\0"),
        ("damaged", flipped(untokened())),
        ("job", untokened(job="other")),
        ("incarnation", untokened(incarnation=2)),
        ("kind", b"\x63" + untokened()[1:]),
    ]

    async def run() -> None:
        async with job(server.url, token="") as made, a_stranger(server) as stranger, patience(10):
            left, right = await made.join("left"), await made.join("right")
            a, b = await left.bind("worker/0"), await right.bind("worker/1")
            for _, data in wrong:
                await stranger.publish(AT, data, BACK)
            await stranger.flush()
            while right.refused.total() < len(wrong):
                await asyncio.sleep(0.005)
            assert sorted(right.refused.elements()) == sorted(reason for reason, _ in wrong)
            await a.send("worker/1", "after")
            assert (await b.receive()).message == "after"

    asyncio.run(run())


def test_replayed_messages_change_nothing(server: NatsServer, job: Any) -> None:
    """A client that may listen on the server records the job, and plays it back."""

    async def run() -> None:
        async with job(server.url, {"heartbeat_s": 0.1}) as made, a_stranger(server) as stranger, patience(10):
            left, right = await made.join("left"), await made.join("right")
            heard = []

            async def listen(message: Any) -> None:
                if not message.headers:
                    heard.append(message)

            recording = await stranger.subscribe("flamestream.>", cb=listen)
            await stranger.flush()
            a, b = await left.bind("worker/0"), await right.bind("worker/1")
            for number in range(20):
                await a.send("worker/1", number)
                await b.send("worker/0", number)
            assert [(await b.receive()).message for _ in range(20)] == [*range(20)]
            assert [(await a.receive()).message for _ in range(20)] == [*range(20)]
            await stranger.flush()
            await recording.unsubscribe()
            for message in heard:
                await stranger.publish(message.subject, message.data, message.reply)
            await stranger.flush()
            await a.send("worker/1", "after")
            await b.send("worker/0", "after")
            assert (await b.receive()).message == "after"
            assert (await a.receive()).message == "after"
            assert left.refused["duplicate"] == right.refused["duplicate"] == 20
            assert made.lost.empty()

    asyncio.run(run())


def test_forged_messages_of_the_server_are_refused(server: NatsServer, job: Any) -> None:
    """A stranger forges notices of missing subscribers, and writes to a process."""

    async def run() -> None:
        async with job(server.url, {"heartbeat_s": 0.02}) as made, a_stranger(server) as stranger, patience(10):
            left, right = await made.join("left"), await made.join("right")
            a, b = await left.bind("worker/0"), await right.bind("worker/1")
            await a.send("worker/1", 0)
            await b.receive()
            for _ in range(30):
                for key in ("p0", "p1", "c1", "c2", "w1", "-"):
                    subject = SUBJECTS.node(made.locations["left"], key)
                    stranger._transport.write(f"HPUB {subject} 16 16\r\nNATS/1.0 503\r\n\r\n\r\n".encode())
                await asyncio.sleep(0.01)
            subject = SUBJECTS.node(made.locations["left"], "c1")
            home = SUBJECTS.node("stranger-1", "-")
            for kind, reply in ((Kind.DATA, home), (Kind.BEAT, "elsewhere")):
                await stranger.publish(subject, sealed(kind, subject=subject, reply=reply), reply)
            await stranger.publish(subject, b"noise")
            while left.refused.total() < 3:
                await asyncio.sleep(0.005)
            assert left.refused == {"kind": 1, "origin": 1, "token": 1}
            await a.send("worker/1", 1)
            assert (await b.receive()).message == 1
            assert made.lost.empty()

    asyncio.run(run())


def test_another_process_cannot_speak_for_an_address_that_is_connected(server: NatsServer, job: Any) -> None:
    async def run() -> None:
        async with job(server.url) as made, a_stranger(server) as stranger, patience(10):
            left, right = await made.join("left"), await made.join("right")
            a, b = await left.bind("worker/0"), await right.bind("worker/1")
            await a.send("worker/1", 0)
            await b.receive()
            await stranger.publish(AT, sealed(sender="worker/0", sequence=2), BACK)
            await stranger.flush()
            while not right.refused:
                await asyncio.sleep(0.005)
            assert right.refused == {"taken": 1}
            await a.send("worker/1", 1)
            assert (await b.receive()).message == 1

    asyncio.run(run())


@settings(max_examples=len(seeds(300)), deadline=None)
@given(st.binary(max_size=200), st.text(max_size=20), st.text(max_size=20), st.sampled_from(["", "t0ken"]))
def test_random_bytes_open_no_envelope(data: bytes, subject: str, reply: str, token: str) -> None:
    with pytest.raises(FrameError):
        Envelope(Framing("test", 1), token).open(data, subject, reply)


@settings(max_examples=len(seeds(300)), deadline=None)
@given(st.data())
def test_any_changed_byte_is_noticed(data: st.DataObject) -> None:
    token = data.draw(st.sampled_from(["", "t0ken"]))
    good = sealed(token=token)
    # Kind, flags and birth are covered by the proof alone; the checksum covers the frame.
    at = data.draw(st.integers(0 if token else 10, len(good) - 1))
    bad = bytearray(good)
    bad[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(FrameError):
        Envelope(Framing("test", 1), token).open(bytes(bad), AT, BACK)


@settings(max_examples=len(seeds(200)), deadline=None)
@given(
    st.sampled_from(Kind),
    st.integers(0, 255),
    st.integers(0, 2**64 - 1),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=10),
    st.integers(0, 2**64 - 1),
    st.binary(max_size=100),
)
def test_envelopes_open_as_they_were_sealed(
    kind: Kind, flags: int, birth: int, name: str, sequence: int, body: bytes
) -> None:
    envelope = Envelope(Framing("test", 1), "t0ken")
    frame = Frame(name, name, sequence, body)
    data = envelope.seal(kind, flags, birth, frame, AT, BACK)
    assert envelope.open(data, AT, BACK) == (kind, flags, birth, frame)
    assert len(data) == len(body) + envelope.overhead(name, name)


def test_a_flood_of_senders_is_refused(server: NatsServer, job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flamestream_nats.channels.endpoint._MOST_SENDERS", 2)

    async def run() -> None:
        async with job(server.url) as made:
            right: NatsTransport = await made.join("right")
            b = await right.bind("worker/1")
            for number in range(4):
                letter = Envelope(Framing("test", 1), "t0ken").open(sealed(sender=f"s/{number}"), AT, BACK)
                try:
                    b.letter(letter, SUBJECTS.node(f"stranger-{number}", "c1"))
                except FrameError as error:
                    right.refused[error.reason] += 1
            assert right.refused == {"flood": 2}
            b.incoming.clear()

    asyncio.run(run())


def test_a_sender_that_does_not_wait_for_room_is_refused(
    server: NatsServer, job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flamestream_nats.channels.incoming.MOST_FRAMES", 5)

    async def run() -> None:
        async with job(server.url, {"window_frames": 100}) as made, patience(10):
            left, right = await made.join("left"), await made.join("right")
            a, b = await left.bind("worker/0"), await right.bind("worker/1")
            for number in range(8):
                assert a.send_nowait("worker/1", number)
            while not right.refused["flood"]:
                await asyncio.sleep(0.005)
            assert [(await b.receive()).message for _ in range(8)] == [*range(8)]  # sent again once there is room

    asyncio.run(run())

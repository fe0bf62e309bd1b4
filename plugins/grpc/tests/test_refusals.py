"""Messages that do not belong to a job are refused and counted; it goes on.

`raw` speaks to a transport as any client that can connect may: gRPC, and then arbitrary bytes.
"""

from __future__ import annotations

import asyncio
import gc
import secrets
from dataclasses import dataclass
from random import Random
from typing import Any

import grpc
import pytest
from grpc import aio
from structlog.testing import capture_logs

from flamecore.abc.transport import Endpoint
from flamecore.errors import CodecError, ConnectError, FrameError, PeerGoneError
from flamecore.events import MESSAGE_REFUSED
from flamecore.runtime.codec.codec import Codec
from flamecore.testing.progress import patience
from flamecore.toolkit.frames import HEADER_BYTES, Frame, Framing
from flamestream_grpc import GrpcTransport, Options
from flamestream_grpc.calls import HELLO, INSTANCE, LOCATION, METHOD, TOKEN

LIMIT_S = 10.0
SECRET = "secret of the tests"
LARGEST = 2**16


async def raw(
    location: str,
    *messages: bytes,
    token: str = SECRET,
    instance: str | None = None,
    hello: bytes | None = None,
    until: int | None = None,
    impatient: bool = False,
    location_shown: bytes = b"unix:/nowhere",
) -> tuple[grpc.StatusCode, str]:
    """Connect, send messages once admitted, and return how the call ends.

    With `until`, break it off when so many frames have arrived.
    """
    metadata = (
        (TOKEN, token.encode()),
        (HELLO, frame(sequence=0) if hello is None else hello),
        (LOCATION, location_shown),
        (INSTANCE, secrets.token_hex(16) if instance is None else instance),
    )
    async with aio.insecure_channel(location, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        call = channel.stream_stream(METHOD)(metadata=aio.Metadata(*metadata))
        try:
            async with patience(LIMIT_S):
                if not impatient and not await call.initial_metadata():
                    return await call.code(), await call.details()
                for message in messages:
                    await call.write(message)
                while (data := await call.read()) is not aio.EOF:
                    for answer in Framing("tests", 1).unwrap_all(data):
                        if answer.sequence == until:
                            call.cancel()
                            return grpc.StatusCode.CANCELLED, ""
                        if not answer.sender:  # it is refused
                            await call.done_writing()
        except asyncio.InvalidStateError:
            pass  # it ended while it was written to
        except aio.AioRpcError as error:
            return error.code(), error.details() or ""
        return await call.code(), await call.details()


def frame(
    body: bytes = b"", *, sequence: int = 1, receiver: str = "b/0", job: str = "tests", incarnation: int = 1
) -> bytes:
    """Return a frame, correct in everything that is not given otherwise."""
    return Framing(job, incarnation).wrap(Frame("x/0", receiver, sequence, body or Codec().encode("a message")))


@dataclass(frozen=True)
class Unknown:
    """A class that some processes know, and others do not."""

    number: int


async def flood(endpoint: Endpoint, message: Any) -> None:
    """Send until it fails."""
    while True:
        await endpoint.send("b/0", message)


def flipped(data: bytes, bit: int) -> bytes:
    """Return data with one bit changed."""
    wrong = bytearray(data)
    wrong[bit // 8] ^= 1 << bit % 8
    return bytes(wrong)


WRONG: dict[str, tuple[bytes, str, grpc.StatusCode]] = {
    "version": (frame()[:4] + b"\x09" + frame()[5:], "version", grpc.StatusCode.FAILED_PRECONDITION),
    "job": (frame(job="another"), "job", grpc.StatusCode.FAILED_PRECONDITION),
    "incarnation": (frame(incarnation=0), "incarnation", grpc.StatusCode.FAILED_PRECONDITION),
    "truncated head": (frame()[: HEADER_BYTES - 1], "short", grpc.StatusCode.DATA_LOSS),
    "truncated body": (frame()[:-1], "length", grpc.StatusCode.DATA_LOSS),
    "oversized": (frame(bytes(LARGEST + 1)), "oversized", grpc.StatusCode.DATA_LOSS),
    "much too large": (frame(bytes(LARGEST + 2**21)), "broken", grpc.StatusCode.RESOURCE_EXHAUSTED),
    "flipped": (flipped(frame(), 8 * HEADER_BYTES + 3), "damaged", grpc.StatusCode.DATA_LOSS),
    "random": (Random(1).randbytes(200), "magic", grpc.StatusCode.DATA_LOSS),
    "no codec": (frame(b"\xc1"), "codec", grpc.StatusCode.FAILED_PRECONDITION),
}


@pytest.mark.parametrize("wrong", [wrong for wrong, *_ in WRONG.values()], ids=WRONG)
def test_a_refused_frame_is_not_kept(mesh: Any, wrong: bytes) -> None:
    """Its memory is free at once: a job runs the garbage collector rarely."""

    async def run() -> None:
        async with mesh() as made:
            b = await made.add("b", Options(max_frame_bytes=LARGEST))
            await b.bind("b/0")
            gc.collect()
            gc.disable()
            try:
                await raw(made.locations["b"], wrong)
                async with patience(LIMIT_S):
                    while b.server._calls:
                        await asyncio.sleep(0.001)
                await asyncio.sleep(0)
                kept = [error for error in gc.get_objects() if isinstance(error, FrameError | CodecError)]
                assert not [error for error in kept if error.__traceback__ or error.__context__]
            finally:
                gc.enable()

    asyncio.run(run())


@pytest.mark.parametrize(("wrong", "reason", "status"), WRONG.values(), ids=WRONG)
def test_a_wrong_frame_is_refused_and_the_good_peer_goes_on(
    mesh: Any, wrong: bytes, reason: str, status: grpc.StatusCode
) -> None:
    async def run() -> None:
        async with mesh() as made:
            options = Options(max_frame_bytes=LARGEST)
            a, b = await made.add("a", options), await made.add("b", options)
            good, target = await a.bind("a/0"), await b.bind("b/0")
            await good.send("b/0", "before")
            with capture_logs() as logs:
                code, details = await raw(made.locations["b"], wrong)
            assert code == status, details
            told = [(log["event"], log["address"]) for log in logs]
            assert told == [(MESSAGE_REFUSED, "b/0")] * (reason == "codec")
            assert b.refused == {reason: 1} if reason == "broken" else b.refused[reason] == 1
            await good.send("b/0", "after")
            async with patience(LIMIT_S):
                got = [(await target.receive()).message for _ in range(2)]
            assert got == ["before", "after"]
            assert target.receive_nowait() is None
            await asyncio.sleep(0)
            assert made.lost == {}

    asyncio.run(run())


def test_good_frames_before_a_wrong_one_count(mesh: Any) -> None:
    """A peer known by them that does not come back is lost."""

    async def run() -> None:
        async with mesh() as made:
            b = await made.add("b")
            target = await b.bind("b/0")
            await raw(made.locations["b"], frame() + frame(sequence=2) + frame(sequence=3)[:-1])
            assert [(await target.receive()).message for _ in range(2)] == ["a message"] * 2
            assert b.refused["length"] == 1
            async with patience(LIMIT_S):
                await made.loss.wait()
            assert [location for location, _ in made.lost["b"]] == ["unix:/nowhere"]

    asyncio.run(run())


def test_random_and_flipped_bytes_are_refused(mesh: Any) -> None:
    """They come over the same and over new connections."""

    async def run() -> None:
        random = Random(7)
        async with mesh() as made:
            a, b = await made.add("a"), await made.add("b")
            good, target = await a.bind("a/0"), await b.bind("b/0")
            for number in range(60):
                data = random.randbytes(random.randrange(1, 400))
                if number % 3:
                    data = flipped(frame(), random.randrange(8 * len(frame())))
                code, _ = await raw(made.locations["b"], data)
                assert code in (grpc.StatusCode.DATA_LOSS, grpc.StatusCode.FAILED_PRECONDITION)
                await good.send("b/0", number)
                async with patience(LIMIT_S):
                    assert (await target.receive()).message == number
            assert b.refused.total() == 60
            assert set(b.refused) <= {"short", "magic", "version", "oversized", "length", "damaged"}
            assert made.lost == {}

    asyncio.run(run())


@pytest.mark.parametrize(
    ("shown", "reason"),
    [
        ({"hello": b""}, "short"),
        ({"hello": frame(job="another")}, "job"),
        ({"hello": frame(incarnation=2)}, "incarnation"),
        ({"hello": WRONG["version"][0]}, "version"),
        ({"instance": ""}, "unnamed"),
        *(
            ({"location_shown": location}, "unnamed")
            for location in (
                b"",
                b"\xff\0",
                b"host",
                b"host:0",
                b"unix:relative",
                b"unix:/" + b"x" * 200,
                b"dns:///a:1",
            )
        ),
    ],
)
def test_a_peer_without_the_right_greeting_is_refused(mesh: Any, shown: dict[str, Any], reason: str) -> None:
    async def run() -> None:
        async with mesh() as made:
            b = await made.add("b")
            target = await b.bind("b/0")
            code, _ = await raw(made.locations["b"], frame(), **shown)
            assert code == grpc.StatusCode.FAILED_PRECONDITION
            assert b.refused == {reason: 1}
            assert target.receive_nowait() is None

    asyncio.run(run())


def test_a_refused_peer_that_sends_early_is_refused_too(mesh: Any) -> None:
    """It may not get the reason: gRPC has its own status for a writing client."""

    async def run() -> None:
        async with mesh() as made:
            b = await made.add("b")
            target = await b.bind("b/0")
            for number in range(1, 20):
                code, _ = await raw(
                    made.locations["b"], *(frame() for _ in range(5)), hello=frame(incarnation=2), impatient=True
                )
                assert code in (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INTERNAL)
                assert b.refused == {"incarnation": number}
            assert target.receive_nowait() is None

    asyncio.run(run())


def test_a_refused_peer_that_does_not_read_is_cut_off(mesh: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flamecore.toolkit.links.server._LAST_WORD_S", 0.2)

    async def run() -> None:
        async with mesh() as made:
            b = await made.add("b")
            await b.bind("b/0")
            async with aio.insecure_channel(made.locations["b"]) as channel:
                metadata = aio.Metadata(
                    (TOKEN, SECRET.encode()), (HELLO, frame(sequence=0)), (LOCATION, b"unix:/nowhere"), (INSTANCE, "x")
                )
                call = channel.stream_stream(METHOD)(metadata=metadata)
                await call.initial_metadata()

                async def chatter() -> None:
                    while True:
                        await call.write(b"nonsense")

                async with patience(LIMIT_S):
                    with pytest.raises((aio.AioRpcError, asyncio.InvalidStateError)):
                        await chatter()
            assert b.refused == {"short": 1}

    asyncio.run(run())


def test_a_sender_of_an_unknown_class_hears_of_it(mesh: Any) -> None:
    """It gets the error however much it is sending at that moment."""

    async def run() -> None:
        async with mesh() as made:
            a, b = await made.add("a", codec=Codec([Unknown])), await made.add("b")
            endpoint, target = await a.bind("a/0"), await b.bind("b/0")
            await endpoint.send("b/0", "known")
            async with patience(LIMIT_S):
                with pytest.raises(PeerGoneError, match=r"Unknown.* was not declared"):
                    await flood(endpoint, Unknown(1))
            assert "was not declared" in str(made.lost["a"][0][1])
            assert b.refused["codec"] == 1
            assert (await target.receive()).message == "known"

    asyncio.run(run())


@pytest.mark.parametrize("token", ["", "wrong", SECRET + "x", "\xff"])
def test_without_the_token_nothing_is_read(mesh: Any, token: str) -> None:
    async def run() -> None:
        async with mesh() as made:
            b = await made.add("b")
            target = await b.bind("b/0")
            code, details = await raw(made.locations["b"], frame(), token=token)
            assert code == grpc.StatusCode.UNAUTHENTICATED
            assert SECRET not in details
            assert b.refused == {"token": 1}
            assert target.receive_nowait() is None

    asyncio.run(run())


def test_a_process_with_another_token_hears_of_it(mesh: Any) -> None:
    async def run() -> None:
        async with mesh() as made:
            a, b = await made.add("a", token="another"), await made.add("b")
            await b.bind("b/0")
            endpoint = await a.bind("a/0")
            async with patience(LIMIT_S):
                with pytest.raises(ConnectError, match=r"does not let this process in.*token") as caught:
                    await endpoint.send("b/0", "hello")
            assert caught.value.location == made.locations["b"]
            assert b.refused == {"token": 1}
            assert made.lost == {}

    asyncio.run(run())


@pytest.mark.parametrize(
    ("change", "text"),
    [({"job": "another"}, "refused a frame of another job"), ({"incarnation": 2}, "refused a frame of incarnation 2")],
)
def test_a_process_of_another_job_hears_of_it(mesh: Any, change: dict[str, Any], text: str) -> None:
    async def run() -> None:
        async with mesh() as made:
            a, b = await made.add("a", **change), await made.add("b")
            await b.bind("b/0")
            endpoint = await a.bind("a/0")
            async with patience(LIMIT_S):
                with pytest.raises(ConnectError, match=text):
                    await endpoint.send("b/0", "hello")
            assert b.refused == {next(iter(change)): 1}
            assert made.lost == {}

    asyncio.run(run())


def test_a_gap_is_a_loss(mesh: Any) -> None:
    async def run() -> None:
        async with mesh() as made:
            b = await made.add("b")
            await b.bind("b/0")
            code, _ = await raw(made.locations["b"], frame(), frame(sequence=3), instance="one")
            assert code == grpc.StatusCode.FAILED_PRECONDITION
            ((location, error),) = made.lost["b"]
            assert location == "unix:/nowhere"
            assert "1 frames from x/0 to b/0 were lost before number 3" in str(error)
            assert b.refused == {"gap": 1}
            code, _ = await raw(made.locations["b"], frame(sequence=2), instance="one")
            assert code == grpc.StatusCode.FAILED_PRECONDITION
            assert b.refused["lost"] == 1

    asyncio.run(run())


def test_repeated_frames_are_dropped(mesh: Any) -> None:
    async def run() -> None:
        async with mesh() as made:
            b = await made.add("b")
            target = await b.bind("b/0")
            await raw(made.locations["b"], frame(), frame(), frame(), frame(sequence=2), instance="one", until=2)
            await raw(made.locations["b"], frame(sequence=2), frame(sequence=3), instance="one", until=3)
            assert [target.receive_nowait() is None for _ in range(4)] == [False] * 3 + [True]
            assert b.refused["repeated"] == 3

    asyncio.run(run())


def test_a_peer_that_does_not_wait_for_room_is_refused(mesh: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flamecore.toolkit.links.incoming.MOST_FRAMES", 10)

    async def run() -> None:
        async with mesh() as made:
            b = await made.add("b")
            await b.bind("b/0")
            await raw(made.locations["b"], *(frame(sequence=number) for number in range(1, 20)))
            assert b.refused["window"] == 1

    asyncio.run(run())


def test_a_peer_with_too_many_channels_is_refused(mesh: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flamecore.toolkit.links.incoming._CHANNELS", 10)

    async def run() -> None:
        async with mesh() as made:
            b = await made.add("b")
            await raw(made.locations["b"], *(frame(receiver=f"b/{number}") for number in range(20)))
            assert b.refused["channels"] == 1

    asyncio.run(run())


def test_a_peer_that_sends_nonsense_is_refused(mesh: Any) -> None:
    """Replies from a process that this one sends to are checked too."""

    async def lies(answer: bytes) -> tuple[GrpcTransport, str]:
        async with mesh() as made:

            async def link(_: Any, call: Any) -> None:
                await call.send_initial_metadata(((INSTANCE, "liar"),))
                await call.read()
                await call.write(answer)
                await call.read()

            server = aio.server()
            handler = grpc.stream_stream_rpc_method_handler(link)
            service, name = METHOD.strip("/").split("/")
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {name: handler}),))
            port = server.add_insecure_port("127.0.0.1:0")
            await server.start()
            made.locations["b"] = f"127.0.0.1:{port}"
            a = await made.add("a")
            endpoint = await a.bind("a/0")
            await endpoint.send("b/0", "hello")
            async with patience(LIMIT_S):
                await made.loss.wait()
            await server.stop(0)
            return a, str(made.lost["a"][0][1])

    framing = Framing("tests", 1)
    for answer, reason in (
        (b"nonsense", "short"),
        (framing.wrap(Frame("a/0", "b/0", 1, b"?")), "told"),
        (framing.wrap(Frame("a/0", "c/0", 1, bytes(16))), "told"),
    ):
        a, text = asyncio.run(lies(answer))
        assert a.refused[reason] >= 1
        assert "without having closed: refused" in text


def test_too_large_a_message_is_refused_where_it_is_sent(mesh: Any) -> None:
    async def run() -> None:
        async with mesh() as made:
            options = Options(max_frame_bytes=LARGEST)
            a, b = await made.add("a", options), await made.add("b", options)
            endpoint, target = await a.bind("a/0"), await b.bind("b/0")
            with pytest.raises(FrameError, match="larger than 65536") as caught:
                await endpoint.send("b/0", bytes(LARGEST + 1))
            assert caught.value.reason == "oversized"
            await endpoint.send("b/0", "small")
            assert (await target.receive()).message == "small"

    asyncio.run(run())

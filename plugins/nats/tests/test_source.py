"""Source `nats` against the kit's laws: restarts, and streams that change."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import nats
import pytest
from nats.js import JetStreamContext
from nats.js.api import RetentionPolicy

from flamecore.abc.source import EdgeContext, Reader, Source
from flamecore.errors import ConfigError, SourceError
from flamecore.testing.checks.edges import SourceTests
from flamecore.testing.checks.sources import check_changed, check_grown, check_live
from flamecore.testing.progress import patience
from flamestream_nats.source import NatsSource
from flamestream_nats.testing import NatsServer

LIMIT_S = 20.0


class Count(NamedTuple):
    word: str
    number: int


@asynccontextmanager
async def jetstream(url: str) -> AsyncIterator[JetStreamContext]:
    connection = await nats.connect(url)
    try:
        yield connection.jetstream()
    finally:
        await connection.close()


async def fill(url: str, stream: str, messages: Sequence[tuple[str, bytes]], **config: Any) -> None:
    """Publish (subject, data) pairs into a stream; create it if necessary."""
    async with jetstream(url) as stored:
        await stored.add_stream(name=stream, subjects=[f"{stream}.>"], **config)
        for subject, data in messages:
            await stored.publish(f"{stream}.{subject}", data)


def aside(work: Any) -> Any:
    """Run a coroutine, from inside an event loop too."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


def source(url: str, stream: str, type_: Any = int, **options: Any) -> NatsSource:
    return NatsSource(NatsSource.Options(servers=(url,), stream=stream, **options), EdgeContext("in", type_))


async def read(made: Source, count: int, position: Any = None) -> tuple[list[Any], list[Any]]:
    """Return `count` values and their positions, or all up to the end."""
    reader = await made.open("", position)
    try:
        return await take(reader, count)
    finally:
        await reader.aclose()


async def take(reader: Reader, count: int) -> tuple[list[Any], list[Any]]:
    values: list[Any] = []
    positions: list[Any] = []
    async with patience(LIMIT_S):
        while len(values) < count and (batch := await reader.read(count - len(values))) is not None:
            values += batch.values
            positions += batch.positions
    return values, positions


class TestNatsSource(SourceTests):
    expected = tuple(Count(f"word {number}", number) for number in range(1300))  # more than are asked for at once
    rejected = 2

    @pytest.fixture(autouse=True)
    def server_url(self, storing: NatsServer, tmp_path: Path) -> None:
        self.url = storing.url
        lines = [json.dumps(count._asdict()).encode() for count in self.expected]
        lines[10:10] = [b"{", b'{"word": "x"}']
        asyncio.run(fill(self.url, tmp_path.name, [("all", line) for line in lines]))

    def make(self, folder: Path) -> Source:
        return source(self.url, folder.name, Count, end="last")


def test_messages_are_delivered_as_they_come(storing: NatsServer) -> None:
    asyncio.run(fill(storing.url, "live", []))

    async def run() -> None:
        async with jetstream(storing.url) as stored:

            async def feed(value: str) -> None:
                await stored.publish("live.x", value.encode())

            await check_live(lambda: source(storing.url, "live", str), feed, ["one", "", "три"])

    asyncio.run(run())
    assert not source(storing.url, "live", str).capabilities.bounded


@pytest.mark.parametrize("consumer", ["", "mine"])
def test_a_stream_that_has_grown_goes_on_and_one_made_anew_is_refused(storing: NatsServer, consumer: str) -> None:
    stream = f"grown{consumer}"
    asyncio.run(fill(storing.url, stream, [("x", b"1"), ("x", b"2"), ("x", b"3")]))

    async def anew() -> None:
        async with jetstream(storing.url) as stored:
            await stored.delete_stream(stream)
        await fill(storing.url, stream, [("x", b"%d" % number) for number in range(7)])

    def make() -> Source:
        return source(storing.url, stream, end="last", consumer=consumer)

    more = [("x", b"4"), ("x", b"5")]
    asyncio.run(check_grown(make, lambda: aside(fill(storing.url, stream, more)), [4, 5]))
    asyncio.run(check_changed(make, lambda: aside(anew())))


def test_an_open_reader_ends_with_the_last_message_of_then(storing: NatsServer) -> None:
    async def run() -> None:
        await fill(storing.url, "ends", [("x", b"%d" % number) for number in range(10)])
        reader = await source(storing.url, "ends", end="last").open("")
        values, positions = await take(reader, 4)
        await fill(storing.url, "ends", [("x", b"%d" % number) for number in range(10, 20)])
        assert (await take(reader, 100))[0] == [*range(4, 10)]
        await reader.aclose()
        assert values == [*range(4)]
        # Positions of older versions had the end of their run, too, which its successors do not keep to.
        for position in (positions[-1], (*positions[-1], 10)):
            assert (await read(source(storing.url, "ends", end="last"), 100, position))[0] == [*range(4, 20)]
        assert (await read(source(storing.url, "ends"), 16, positions[-1]))[0] == [*range(4, 20)]

    asyncio.run(run())


def test_an_end_holds_in_its_own_stream_and_while_the_options_want_one(storing: NatsServer) -> None:
    async def run() -> None:
        await fill(storing.url, "kept", [("x", b"%d" % number) for number in range(3)])
        bounded = source(storing.url, "kept", end="last")
        end = await bounded.find_end("")
        assert await source(storing.url, "kept").find_end("") is None
        await fill(storing.url, "kept", [("x", b"3")])
        live = await source(storing.url, "kept").open_until("", None, end)
        assert (await take(live, 4))[0] == [0, 1, 2, 3]  # it no longer ends
        await live.aclose()
        async with jetstream(storing.url) as stored:
            await stored.delete_stream("kept")
        await fill(storing.url, "kept", [("x", b"7")])
        with pytest.raises(SourceError, match="made anew"):
            await bounded.open_until("", None, end)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("subject", "expected"), [("", [0, 1, 2, 3, 4, 5]), ("some.a", [0, 3]), ("some.*", [0, 2, 3, 5]), ("none", [])]
)
def test_subjects_select_messages(storing: NatsServer, subject: str, expected: list[int]) -> None:
    async def run() -> None:
        stream = f"subjects-{subject.replace('.', '').replace('*', 'all')}"
        subjects = ["some.a", "other", "some.b"] * 2
        await fill(storing.url, stream, [(name, b"%d" % number) for number, name in enumerate(subjects)])
        made = source(storing.url, stream, subject=f"{stream}.{subject}" if subject else "", end="last")
        values, positions = await read(made, 100)
        assert values == expected
        for place, position in enumerate(positions):
            assert (await read(made, 100, position))[0] == expected[place + 1 :]
        if subject:
            found = NatsSource(
                NatsSource.Options(servers=(storing.url,), subject=f"{stream}.{subject}", end="last"),
                EdgeContext("in", int),
            )
            assert (await read(found, 100))[0] == expected

    asyncio.run(run())


@pytest.mark.parametrize(
    ("type_", "format_", "data", "expected"),
    [
        (str, "auto", "три".encode(), "три"),
        (bytes, "auto", b"\xff", b"\xff"),
        (object, "auto", b'{"a": [1]}', {"a": [1]}),
        (object, "text", b"7", "7"),
        (object, "bytes", b"7", b"7"),
        (str, "json", b'"a"', "a"),
        (Count, "auto", b'{"word": "a", "number": 1}', Count("a", 1)),
    ],
)
def test_payloads_are_read_in_the_chosen_format(
    storing: NatsServer, type_: Any, format_: Any, data: bytes, expected: Any
) -> None:
    stream = f"format-{getattr(type_, '__name__', type_)}-{format_}"
    asyncio.run(fill(storing.url, stream, [("x", data)]))
    assert asyncio.run(read(source(storing.url, stream, type_, format=format_), 1))[0] == [expected]


@pytest.mark.parametrize("end", [NatsServer.kill, NatsServer.stop])
@pytest.mark.parametrize("retention", ["limits", "workqueue"])
def test_reading_goes_on_when_the_server_is_back(end: Any, retention: str) -> None:
    async def run(server: NatsServer) -> None:
        everything = [("x", b"%d" % number) for number in range(3000)]
        await fill(server.url, "in", everything[:2000], retention=RetentionPolicy(retention))
        reader = await source(server.url, "in").open("")
        values, positions = await take(reader, 700)
        for count in (300, 1000):
            end(server)
            taking = asyncio.create_task(take(reader, count))
            await asyncio.sleep(0.05)
            server.start()
            more, places = await taking
            values += more
            positions += places
            await reader.acknowledge(positions[-100])
        await fill(server.url, "in", everything[2000:], retention=RetentionPolicy(retention))
        values += (await take(reader, 1000))[0]
        assert values == [*range(3000)]
        await reader.aclose()
        assert (await read(source(server.url, "in"), 1099, positions[-100]))[0] == [*range(1901, 3000)]

    with NatsServer(jetstream=True) as server:
        asyncio.run(run(server))


async def left(url: str, stream: str) -> int:
    async with jetstream(url) as stored:
        return (await stored.stream_info(stream)).state.messages


def test_a_work_queue_loses_only_messages_no_snapshot_needs(storing: NatsServer) -> None:
    async def run() -> None:
        messages = [("x", b"%d" % number) for number in range(20)]
        await fill(storing.url, "queue", messages, retention=RetentionPolicy.WORK_QUEUE)
        made = source(storing.url, "queue", end="last")
        reader = await made.open("")
        _, positions = await take(reader, 100)
        assert await left(storing.url, "queue") == 20
        await reader.acknowledge(positions[4])
        await reader.acknowledge(positions[9])
        await reader.aclose()
        assert await left(storing.url, "queue") == 10
        # It goes on at the position it has stored, though only an earlier one was acknowledged.
        reader = await made.open("", positions[14])
        assert (await take(reader, 100))[0] == [15, 16, 17, 18, 19]
        assert await left(storing.url, "queue") == 10
        await reader.acknowledge(positions[17])
        await reader.aclose()
        assert await left(storing.url, "queue") == 2
        assert (await read(made, 100, positions[17]))[0] == [18, 19]

    asyncio.run(run())


def test_a_consumer_shows_how_far_it_is(storing: NatsServer) -> None:
    async def run() -> None:
        await fill(storing.url, "shown", [("x", b"%d" % number) for number in range(20)])
        reader = await source(storing.url, "shown", consumer="job").open("")
        _, positions = await take(reader, 20)
        await reader.acknowledge(positions[11])
        await reader.aclose()
        async with jetstream(storing.url) as stored:
            info = await stored.consumer_info("shown", "job")
            assert info.ack_floor is not None
            assert info.ack_floor.stream_seq == 12
        assert await left(storing.url, "shown") == 20

    asyncio.run(run())


def test_deleted_messages_are_an_error(storing: NatsServer) -> None:
    async def run() -> None:
        await fill(storing.url, "gone", [("x", b"%d" % number) for number in range(20)])
        _, positions = await read(source(storing.url, "gone"), 20)
        async with jetstream(storing.url) as stored:
            await stored.purge_stream("gone", seq=16)
        with pytest.raises(SourceError, match="messages 11 to 15 of stream gone are gone") as caught:
            await read(source(storing.url, "gone"), 1, positions[9])
        assert "raise max_age" in caught.value.hint
        assert (await read(source(storing.url, "gone"), 1, positions[14]))[0] == [15]
        with pytest.raises(SourceError, match="ends at message 20, and has been read up to 21"):
            await read(source(storing.url, "gone"), 1, (21, *positions[0][1:]))

    asyncio.run(run())


def test_a_stream_deleted_while_it_is_read_is_an_error(storing: NatsServer) -> None:
    async def run() -> None:
        await fill(storing.url, "deleted", [("x", b"1")])
        reader = await source(storing.url, "deleted").open("")
        await take(reader, 1)
        async with jetstream(storing.url) as stored:
            await stored.delete_stream("deleted")
        with pytest.raises(SourceError, match="stream not found"):
            await take(reader, 1)
        await reader.aclose()

    asyncio.run(run())


def test_another_run_takes_over_a_consumer(storing: NatsServer) -> None:
    async def run() -> None:
        messages = [("x", b"%d" % number) for number in range(5)]
        await fill(storing.url, "taken", messages, retention=RetentionPolicy.WORK_QUEUE)
        older = await source(storing.url, "taken").open("")
        assert (await take(older, 5))[0] == [*range(5)]
        newer = await source(storing.url, "taken").open("")
        with pytest.raises(SourceError, match="another run has taken over consumer flamestream-in of stream taken"):
            await take(older, 1)
        assert (await take(newer, 5))[0] == [*range(5)]
        await older.aclose()
        await newer.aclose()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({}, "source.in.stream"),
        ({"stream": "a.b"}, "source.in.stream"),
        ({"subject": "a..b"}, "source.in.subject"),
        ({"subject": "a b"}, "source.in.subject"),
        ({"stream": "x", "servers": ("http://x",)}, "source.in.servers"),
        ({"stream": "x", "user": "u"}, "source.in.user"),
    ],
)
def test_impossible_options_are_refused(options: Any, path: str) -> None:
    with pytest.raises(ConfigError) as caught:
        NatsSource(NatsSource.Options(**options), EdgeContext("in", int))
    assert caught.value.path == path


def test_a_missing_stream_or_subject_is_an_error(storing: NatsServer) -> None:
    async def run() -> None:
        with pytest.raises(SourceError, match="there is no stream nowhere"):
            await source(storing.url, "nowhere").open("")
        made = NatsSource(NatsSource.Options(servers=(storing.url,), subject="nobody.knows"), EdgeContext("in", int))
        with pytest.raises(SourceError, match=r"subject nobody\.knows is in no single stream: none"):
            await made.open("")
        await fill(storing.url, "interest", [], retention=RetentionPolicy.INTEREST)
        with pytest.raises(SourceError, match="retention = interest"):
            await source(storing.url, "interest").open("")
        await fill(storing.url, "there", [])
        for position in (1, "x", (1,), (1, 2, "x"), (True, 1), (1, 2, 3, 4)):
            with pytest.raises(SourceError, match="is no position in a stream"):
                await source(storing.url, "there").open("", position)
        with pytest.raises(SourceError, match="nothing listens at"):
            await source("nats://127.0.0.1:1", "x").open("")

    asyncio.run(run())


def test_a_server_without_jetstream_is_refused(server: NatsServer) -> None:
    async def run() -> None:
        with pytest.raises(SourceError, match="it runs without JetStream") as caught:
            await source(server.url, "x").open("")
        assert "nats-server -js" in caught.value.hint

    asyncio.run(run())

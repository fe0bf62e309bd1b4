"""Sink `nats` against the kit's laws: servers and processes end in mid-batch."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import nats
import pytest
from nats.js.api import AckPolicy, ConsumerConfig, DiscardPolicy

from flamecore.abc.sink import Sink
from flamecore.abc.source import EdgeContext
from flamecore.errors import ConfigError, SinkError, TimeRegressionError
from flamecore.model.meta import MIN_TIME
from flamecore.testing.checks.edges import SinkTests
from flamecore.testing.progress import patience
from flamestream_nats.jetstream.outstream import MARK, Mark
from flamestream_nats.sink import NatsSink
from flamestream_nats.testing import NatsServer

LIMIT_S = 20.0


class Count(NamedTuple):
    word: str
    number: int


def sink(
    url: str, stream: str = "out", type_: Any = int, *, kept: str = "", continued: bool = False, **more: Any
) -> Any:
    options = NatsSink.Options(servers=(url,), stream=stream, **more)
    made = NatsSink(options, EdgeContext("out", type_, fingerprint="f"))
    if kept:
        made.continues(kept, continued=continued)
    return made


async def stored(url: str, stream: str, subject: str = "") -> list[bytes]:
    """Return all outputs in a stream, in order, read by the client library."""
    connection = await nats.connect(url)
    try:
        jetstream = connection.jetstream()
        found: list[bytes] = []
        source = await jetstream.pull_subscribe(
            subject or stream, stream=stream, config=ConsumerConfig(ack_policy=AckPolicy.NONE)
        )
        count = (await source.consumer_info()).num_pending or 0
        while len(found) < count:
            found += [message.data for message in await source.fetch(min(count - len(found), 1000), timeout=5)]
        return found
    finally:
        await connection.close()


def read_aside(url: str, stream: str) -> list[bytes]:
    """Call `stored` from inside an event loop."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, stored(url, stream)).result()


class TestNatsSink(SinkTests):
    payloads = (*(Count(word, len(word)) for word in ("a", "b c", "три", "", "two\nlines")), {"a": [1, None]}, "text")
    url: str

    @pytest.fixture(autouse=True)
    def server_url(self, storing: NatsServer) -> None:
        self.url = storing.url

    def make(self, folder: Path, *, resume: bool, fingerprint: str) -> Sink:
        options = NatsSink.Options(servers=(self.url,), stream=folder.name, mode="resume" if resume else "replace")
        return NatsSink(options, EdgeContext("out", fingerprint=fingerprint))

    def read_back(self, folder: Path) -> Sequence[Any]:
        found = [json.loads(data) for data in read_aside(self.url, folder.name)]
        return [Count(**value) if isinstance(value, dict) and "word" in value else value for value in found]


async def numbers(url: str, stream: str = "out") -> list[int]:
    return [int(data) for data in await stored(url, stream)]


async def deliver(made: Any, batches: Sequence[tuple[int, Sequence[Any]]]) -> int:
    """Deliver batches as a rear does; return the time held before."""
    held: int = await made.open()
    try:
        for time, payloads in batches:
            if time > held:
                await made.write(time, payloads)
    finally:
        await made.aclose()
    return held


BATCHES = [(10 * number, [*range(number * number, (number + 1) * (number + 1))]) for number in range(1, 8)]
ALL = [*range(1, 64)]


@pytest.mark.parametrize("end", [NatsServer.kill, NatsServer.stop])
def test_the_server_ends_and_comes_back_while_it_is_written_to(end: Any) -> None:
    async def run(server: NatsServer) -> None:
        made = sink(server.url, "out")
        await made.open()

        async def write() -> None:
            for number in range(60):
                await made.write(10 * number, range(100 * number, 100 * number + 100))

        writing = asyncio.create_task(write())
        for _ in range(3):
            while (await numbers(server.url))[-1:] < [500]:
                await asyncio.sleep(0)
            end(server)
            await asyncio.sleep(0.05)
            server.start()
        async with patience(LIMIT_S):
            await writing
        assert await numbers(server.url) == [*range(6000)]
        await made.aclose()

    with NatsServer(jetstream=True) as server:
        asyncio.run(run(server))


def test_a_batch_that_is_there_in_part_is_completed(storing: NatsServer) -> None:
    """The batches may be cut differently when they come again."""

    async def run() -> None:
        for there in range(len(ALL) + 1):
            stream = f"part-{there}"
            first = sink(storing.url, stream, kept="a")
            await first.open()
            left = there
            for time, payloads in BATCHES:
                letters = first._letters(time, payloads, 0)[:left]
                if letters:
                    await first._store_all(letters)
                left -= len(letters)
            await first.aclose()
            again = sink(storing.url, stream, kept="a", continued=True)
            held = await again.open()
            assert held == max([time for time, payloads in BATCHES if payloads[-1] <= there], default=MIN_TIME)
            rest = [number for time, payloads in BATCHES if time > held for number in payloads]
            size = there % 5 + 1
            for place in range(0, len(rest), size):
                await again.write(max(held, 0) + place + 1, rest[place : place + size])
                if place % 2:  # and it ends again
                    await again.aclose()
                    again = sink(storing.url, stream, kept="a", continued=True)
                    assert await again.open() == max(held, 0) + place + 1
            assert await numbers(storing.url, stream) == ALL
            await again.aclose()

    asyncio.run(run())


def test_a_message_of_another_publisher_is_noticed(storing: NatsServer) -> None:
    async def run() -> None:
        made = sink(storing.url, "shared")
        await made.open()
        await made.write(10, [1])
        connection = await nats.connect(storing.url)
        await connection.jetstream().publish("shared", b"2")
        await connection.close()
        for _ in range(2):
            with pytest.raises(SinkError, match="message 3 of stream shared is another writer's"):
                await made.write(20, [3])
        await made.aclose()
        with pytest.raises(SinkError, match="its writer and its last time are not recorded"):
            await sink(storing.url, "shared", mode="resume").open()
        assert await numbers(storing.url, "shared") == [1, 2]
        assert await deliver(sink(storing.url, "shared", mode="append"), [(10, [3])]) == MIN_TIME
        assert await numbers(storing.url, "shared") == [1, 2, 3]
        assert await deliver(sink(storing.url, "shared"), [(10, [4])]) == MIN_TIME
        assert await numbers(storing.url, "shared") == [4]

    asyncio.run(run())


def test_two_sinks_open_at_once_and_one_writes(storing: NatsServer) -> None:
    async def run() -> None:
        for turn in range(20):
            made = [sink(storing.url, f"both-{turn}", kept="a") for _ in range(turn % 3 + 2)]
            await asyncio.gather(*(one.open() for one in made))
            batch = [*range(turn % 4 + 2)]  # more than one: a window must not be stored without its beginning
            said = await asyncio.gather(*(one.write(10, batch) for one in made), return_exceptions=True)
            assert [type(answer) for answer in said if answer] == [SinkError] * (len(made) - 1)
            assert await numbers(storing.url, f"both-{turn}") == batch
            for one in made:
                await one.aclose()

    asyncio.run(run())


def test_a_batch_goes_on_where_a_full_stream_stopped_it(storing: NatsServer) -> None:
    async def run() -> None:
        connection = await nats.connect(storing.url)
        jetstream = connection.jetstream()
        config: dict[str, Any] = {"name": "full", "subjects": ["full", "full.position"], "allow_rollup_hdrs": True}
        await jetstream.add_stream(**config, max_msgs=6, discard=DiscardPolicy.NEW)
        made = sink(storing.url, "full", kept="a")
        await made.open()
        await made.write(10, [1, 2])
        for _ in range(2):  # what is stored is unknown now, so the sink stays broken
            with pytest.raises(SinkError, match=r"refuses: .*maximum messages exceeded"):
                await made.write(20, [3, 4, 5, 6, 7])
        await made.aclose()
        assert await numbers(storing.url, "full") == [1, 2, 3, 4, 5]
        await jetstream.update_stream(**config, max_msgs=-1)
        assert await deliver(sink(storing.url, "full", kept="a"), [(10, [1, 2]), (20, [3, 4]), (30, [5, 6, 7])]) == 10
        assert await numbers(storing.url, "full") == [1, 2, 3, 4, 5, 6, 7]
        await connection.close()

    asyncio.run(run())


def test_deleted_messages_are_noticed(storing: NatsServer) -> None:
    async def run() -> None:
        made = sink(storing.url, "gone", kept="a")
        await made.open()
        await made.write(10, [1, 2, 3])
        connection = await nats.connect(storing.url)
        jetstream = connection.jetstream()
        await jetstream.purge_stream("gone", subject="gone")
        await jetstream.publish("gone.position", b"")
        with pytest.raises(SinkError, match="message 5 of stream gone is another writer's"):
            await made.write(20, [4])
        await made.aclose()
        await connection.close()

    asyncio.run(run())


def test_each_message_has_headers_that_describe_it(storing: NatsServer) -> None:
    async def run() -> None:
        await deliver(sink(storing.url, "marked", kept="a"), [(10, [7, 8]), (20, [9])])
        connection = await nats.connect(storing.url)
        jetstream = connection.jetstream()
        found = [await jetstream.get_msg("marked", number) for number in (2, 3, 4)]
        headers = [message.headers or {} for message in found]
        assert [message.data for message in found] == [b"7", b"8", b"9"]
        assert len({header["Nats-Msg-Id"] for header in headers}) == 3
        marks = [Mark(*json.loads(header[MARK])) for header in headers]
        assert [(mark.of, mark.number, mark.held) for mark in marks] == [("a", 1, MIN_TIME), ("a", 2, 10), ("a", 3, 20)]
        await connection.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("config", "what"),
    [
        ({"subjects": ["other.>"]}, "does not take subject STREAM"),
        ({"subjects": ["STREAM"]}, "does not take subject STREAM.position"),
        ({"subjects": ["STREAM", "STREAM.>"]}, "has allow_rollup_hdrs = False"),
        (
            {"subjects": ["STREAM", "STREAM.*"], "allow_rollup_hdrs": True, "retention": "workqueue"},
            "retention = 'work",
        ),
    ],
)
def test_unsuitable_streams_are_refused(storing: NatsServer, config: dict[str, Any], what: str) -> None:
    async def run() -> None:
        stream = f"unfit-{len(what)}"
        connection = await nats.connect(storing.url)
        jetstream = connection.jetstream()
        own = {**config, "subjects": [subject.replace("STREAM", stream) for subject in config["subjects"]]}
        await jetstream.add_stream(name=stream, **own)
        with pytest.raises(SinkError, match=what.replace("STREAM", stream)) as caught:
            await sink(storing.url, stream).open()
        assert "Give another stream" in caught.value.hint
        await jetstream.delete_stream(stream)
        await connection.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("type_", "format_", "payload", "expected"),
    [
        (str, "auto", "три", "три".encode()),
        (str, "json", "a", b'"a"'),
        (bytes, "auto", b"\xff", b"\xff"),
        (object, "auto", {"a": {2, 1}}, b'{"a":[1,2]}'),
        (Count, "auto", Count("a", 1), b'{"word":"a","number":1}'),
        (object, "text", "7", b"7"),
    ],
)
def test_payloads_are_written_in_the_chosen_format(
    storing: NatsServer, type_: Any, format_: str, payload: Any, expected: bytes
) -> None:
    stream = f"format-{getattr(type_, '__name__', '')}-{format_}"
    asyncio.run(deliver(sink(storing.url, stream, type_, format=format_), [(1, [payload])]))
    assert asyncio.run(stored(storing.url, stream)) == [expected]


@pytest.mark.parametrize(("format_", "payload"), [("auto", object()), ("text", 7), ("text", "\ud800"), ("bytes", "x")])
def test_a_payload_that_is_no_message_leaves_nothing_of_its_batch(
    storing: NatsServer, format_: str, payload: Any
) -> None:
    async def run() -> None:
        made = sink(storing.url, "wrong", object, format=format_)
        good = {"text": "a", "bytes": b"a"}.get(format_, "a")
        await made.open()
        with pytest.raises(SinkError, match="cannot be written"):
            await made.write(1, [good, payload])
        await made.write(2, [good])
        with pytest.raises(TimeRegressionError):
            await made.write(1, [good])
        await made.aclose()
        assert len(await stored(storing.url, "wrong")) == 1

    asyncio.run(run())


def test_a_payload_too_large_for_the_server_is_refused() -> None:
    async def run(server: NatsServer) -> None:
        made = sink(server.url, "large", str)
        await made.open()
        with pytest.raises(SinkError, match=r"a payload has 5,000 bytes, and .* takes no more than 3,"):
            await made.write(1, ["x", "x" * 5000])
        await made.write(1, ["x" * 3500])
        await made.aclose()
        assert await stored(server.url, "large") == [b"x" * 3500]

    with NatsServer(jetstream=True, max_payload=4096) as server:
        asyncio.run(run(server))


def test_a_server_that_stays_away_is_an_error() -> None:
    async def run(server: NatsServer) -> None:
        made = sink(server.url, "away", request_timeout_s=0.3)
        await made.open()
        server.kill()
        with pytest.raises(SinkError, match=r"gives no answer within 0.3 s|has been away for"):
            await made.write(1, [1])
        await made.aclose()
        with pytest.raises(SinkError, match="nothing listens at"):
            await sink(server.url, "away").open()

    with NatsServer(jetstream=True) as server:
        asyncio.run(run(server))


def test_a_server_without_jetstream_is_refused(server: NatsServer) -> None:
    async def run() -> None:
        with pytest.raises(SinkError, match="it runs without JetStream") as caught:
            await sink(server.url).open()
        assert "nats-server -js" in caught.value.hint

    asyncio.run(run())


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({"stream": "a.b"}, "sink.out.stream"),
        ({"subject": "a.*"}, "sink.out.subject"),
        ({"servers": ()}, "sink.out.servers"),
    ],
)
def test_impossible_options_are_refused(options: Any, path: str) -> None:
    with pytest.raises(ConfigError) as caught:
        NatsSink(NatsSink.Options(**options), EdgeContext("out", int))
    assert caught.value.path == path

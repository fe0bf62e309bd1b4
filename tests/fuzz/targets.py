"""The targets of the fuzzer: each takes any bytes, and has to end in time, with one of its errors if any.

A target is a function that makes a function of bytes, and imports what it needs only then. The bytes are read as a
script (`Script`): a fuzzer that had to guess checksums and proofs would see nothing of what is behind them.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache
from itertools import count
from typing import Any, Final, NamedTuple

import msgspec

Target = Callable[[bytes], None]

ADDRESSES: Final = ("a/0", "b/0", "b/1", "", "b", "node/x", "a/0\0b/0", "ü/€")
MOST_STEPS: Final = 64
MAKE: Final = b"\xff"
"""Bytes of the target `codec` that begin with it are a script of which bytes of values are made."""


TABLES: Final = (
    "job",
    "source.lines",
    "source.other",
    "sink.counts",
    "dead_letter",
    "state",
    "registry",
    "transport",
    "transport.grpc",
    "transport.nats",
    "transport.socket",
    "acker",
    "acker.sharded",
    "acker.local",
    "deploy",
    "processes",
    "placement",
    "hooks",
    "job.job",
    '"\\u001b[31m"',
)
KEYS: Final = (
    "use",
    "path",
    "name",
    "flow",
    "workers",
    "guarantee",
    "clock",
    "max_in_flight",
    "on",
    "on_error",
    "start",
    "end",
    "poll_s",
    "mode",
    "format",
    "listen",
    "url",
    "subject",
    "lease_s",
    "interval_s",
    "timeout_s",
    "restarts",
    "shards",
    "early",
    "unknown",
    '"a\\nb"',
)
VALUES: Final = (
    '"lines"',
    '"jsonl"',
    '"csv"',
    '"sqlite"',
    '"stdout"',
    '"memory"',
    '"directory"',
    '"nats"',
    '"grpc"',
    '"socket"',
    '"sharded"',
    '"here"',
    '"processes"',
    '"exactly_once"',
    '"in/*.txt"',
    '"/proc/self/mem"',
    '"${HOME}"',
    '"${"',
    '"~nobody/x"',
    '"\\u0000"',
    '"\\u001b]0;x\\u0007"',
    '"\\u202e"',
    '"nats://host:99999"',
    '"127.0.0.1:0"',
    '""',
    "0",
    "1",
    "-1",
    "99999999999999999999",
    "1e400",
    "nan",
    "true",
    "[]",
    '["a", 1]',
    "{}",
    '{ a = { use = "b" } }',
    "1979-05-27T07:32:00Z",
)


class Colour(enum.Enum):
    """A declared enum."""

    RED = 1
    BLUE = "blue"


class Point(NamedTuple):
    """A declared NamedTuple."""

    x: int
    y: float = 0.0


@dataclass(frozen=True)
class Place:
    """A declared dataclass."""

    name: str
    at: Point | None = None
    tags: list[str] = field(default_factory=list)


DECLARED: Final = (Colour, Place)


class Script:
    """Reads bytes as numbers and pieces; at their end everything is zero and empty."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def __bool__(self) -> bool:
        return self._at < len(self._data)

    def piece(self, size: int) -> bytes:
        """Return the next bytes."""
        self._at, start = self._at + size, self._at
        return self._data[start : self._at]

    def number(self, size: int = 1) -> int:
        """Return the next number of `size` bytes."""
        return int.from_bytes(self.piece(size), "big")

    def some(self) -> bytes:
        """Return a piece that begins with its own length."""
        return self.piece(self.number(2) % 4096)

    def body(self) -> bytes:
        """Return the body of a frame: as often as not the bytes of a value."""
        kind = self.number()
        return self.some() if kind < 128 else encoded()[kind % len(encoded())]

    def address(self) -> str:
        """Return one of a few addresses, good and bad."""
        return ADDRESSES[self.number() % len(ADDRESSES)]


@cache
def encoded() -> list[bytes]:
    """Return the bytes of some values."""
    from flamecore.model.messages import Ack, Delivered, MinTimes, Released, Report
    from flamecore.runtime.codec.codec import Codec

    values: list[Any] = [
        None,
        [1, 2.5, "text", b"bytes", True, None, 2**70],
        [(number, str(number)) for number in range(20)],
        {"a": [{"b": 1}] * 5, "c": {1, 2, 3}, "d": frozenset({("x", 1)})},
        [Place("p", Point(number), ["t"] * number) for number in range(5)],
        [Colour.RED, Colour.BLUE],
        (datetime(2020, 1, 2, tzinfo=UTC), Decimal("1.5"), 1 + 2j, bytearray(b"x")),
        Delivered("counts", 7),
        Released(1, 7, [b"order"], ["payload"], []),
        Report(1, 2, (Ack(0, 1, 2),), ((1, 5),), (2,)),
        MinTimes((0, 5), (1, 2)),
    ]
    return list(map(Codec(DECLARED).encode, values))


def wrapped(script: Script, framing: Any, numbers: Iterator[int]) -> bytes:
    """Return a frame that is whole, or nearly.

    It has numbers, addresses and a body of the script, and maybe a damaged place.
    """
    from flamecore.toolkit.frames import Frame

    kind = script.number()
    if kind % 8 == 0:
        return script.some()
    if kind >= 128:  # as it should be: the next of its channel
        return bytes(framing.wrap(Frame("a/0", "b/0", next(numbers), script.body())))
    sequence = script.number() if kind & 64 else script.number(8)
    data = framing.wrap(Frame(script.address(), script.address(), sequence, script.body()))
    if kind % 8 == 1 and data:
        place = script.number(2) % len(data)
        data = data[:place] + bytes([data[place] ^ (script.number() or 1)]) + data[place + 1 :]
    elif kind % 8 == 2:
        data = data[: script.number(2)]
    return bytes(data)


def messages(script: Script, framing: Any) -> Iterator[bytes]:
    """Bytes as they might come over a connection: some frames each."""
    numbers = count(1)
    for _ in range(MOST_STEPS):
        if not script:
            return
        yield b"".join(wrapped(script, framing, numbers) for _ in range(1 + script.number() % 3))


def frames() -> Target:
    """Bytes, frames, sequences, payloads, as every transport takes them. Only FrameError and CodecError may come."""
    from flamecore.errors import CodecError, FrameError
    from flamecore.runtime.codec.codec import Codec
    from flamecore.toolkit.frames import Framing, Sequences

    framing, codec = Framing("fuzz", 1, max_body_bytes=4096), Codec(DECLARED)

    def run(data: bytes) -> None:
        sequences = Sequences()
        for message in (data, *messages(Script(data), framing)):
            try:
                for frame in framing.unwrap_all(message):
                    if sequences.admit(frame):
                        codec.decode(frame.body)
            except (FrameError, CodecError):
                continue

    return run


def codec() -> Target:
    """Bytes of values. Only CodecError may come, and what is made of them can be written, and read again as it is."""
    from flamecore.errors import CodecError
    from flamecore.runtime.codec.classes import FieldCodec
    from flamecore.runtime.codec.codec import Codec
    from tests.fuzz.schemas import Maker

    codec = Codec(DECLARED)
    entries = codec._types._by_name
    names = {name: entry.fields if isinstance(entry, FieldCodec) else () for name, entry in entries.items()}
    names["nobody:Knows"] = ()

    def run(data: bytes) -> None:
        if data[:1] == MAKE:
            data = Maker(Script(data[1:]), names).bytes()
        try:
            value = codec.decode(data)
            # The engine's own messages are written as their hints say, whatever was read into their fields.
            written = b"!" if type(value).__module__.startswith("flamecore") else codec.encode(value)
        except CodecError:
            return
        if b"!" in written:
            return
        again = codec.encode(codec.decode(written))
        assert again == written, (written, again)

    return run


def sockets() -> Target:
    """Return a target for both ends of connections of the transport `socket`.

    Only BrokenConnectionError may come, and messages do not depend on the pieces in which their bytes arrive.
    """
    from flamecore.toolkit.links.budget import Budget
    from flamecore.toolkit.links.connection import BrokenConnectionError, Greeting
    from flamestream_sockets.connections import SocketCall, SocketConnection
    from flamestream_sockets.pipe import Pipe

    most = 4096

    class Line(asyncio.Transport):
        """A way that takes everything; nothing comes over it once it is paused or closed."""

        def __init__(self) -> None:
            super().__init__()
            self.open, self.paused = True, False

        def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
            """Set nothing."""

        def write(self, data: Any) -> None:
            """Write nothing."""

        def pause_reading(self) -> None:
            self.paused = True

        def resume_reading(self) -> None:
            self.paused = False

        def close(self) -> None:
            self.open = False

        def abort(self) -> None:
            self.open = False

    async def read(pipe: Pipe, *, calling: bool, got: list[bytes]) -> None:
        end: SocketCall | SocketConnection
        if calling:
            end = SocketConnection(pipe, 3600.0)
            await end.greet(Greeting(b"token", b"hello", "unix:/nowhere", "one"), 3600.0)
        else:
            end = await SocketCall.taken(pipe)
        while (body := await end.read()) is not None:
            got.append(body)

    async def heard(data: bytes, size: int, *, calling: bool) -> list[bytes]:
        """Return what an end reads of bytes that come in pieces of a size."""
        line, pipe, got = Line(), Pipe(most, Budget(most)), list[bytes]()
        pipe.connection_made(line)
        pipe.admit()
        reading = asyncio.create_task(read(pipe, calling=calling, got=got))
        for start in range(0, len(data), size):
            await asyncio.sleep(0)
            assert not line.paused, "it reads all the time"
            if not line.open:
                break
            pipe.data_received(data[start : start + size])
        pipe.connection_lost(None)
        with contextlib.suppress(BrokenConnectionError):
            await reading
        assert all(len(body) <= most for body in got)
        return got

    async def both(data: bytes) -> None:
        calling, size = data[:1] > b"\x7f", 1 + int.from_bytes(data[1:2], "big")
        some = await heard(data[2:], size, calling=calling)
        assert some == await heard(data[2:], max(len(data), 1), calling=calling)

    def run(data: bytes) -> None:
        asyncio.run(both(data))

    return run


def grpc() -> Target:
    """Return a target for both ends of connections of the transport `grpc`."""
    from flamecore.abc.transport import TransportContext
    from flamecore.errors import FrameError
    from flamecore.runtime.codec.codec import Codec
    from flamecore.toolkit.frames import Framing
    from flamecore.toolkit.links.budget import Budget
    from flamecore.toolkit.links.connection import Role
    from flamecore.toolkit.links.incoming import Peer, told
    from flamecore.toolkit.links.options import LinkOptions
    from flamecore.toolkit.links.outgoing import Outgoing
    from flamestream_grpc import GrpcTransport, Options

    options: LinkOptions = Options(max_frame_bytes=4096, window_frames=8)
    framing, codec = Framing("fuzz", 1, max_body_bytes=4096), Codec(DECLARED)

    class Call:
        """A connection that ends."""

        def __init__(self, script: Script) -> None:
            self._messages = messages(script, framing)

        async def read(self) -> Any:
            return next(self._messages, None)

    class Line:
        """The way of a channel, which goes nowhere."""

        def __init__(self) -> None:
            self.options = options
            self.framing = framing
            self.carries = True
            self.send_timeout_s: float | None = None

        def post(self, data: bytes) -> None:
            """Write nothing."""

    async def listening(script: Script) -> None:
        """Frames of a peer, over some connections."""
        transport = GrpcTransport(options, TransportContext(job="fuzz", incarnation=1, codec=codec))
        endpoint = await transport.bind("b/0")
        peer = Peer("unix:/nowhere", "one", options, Budget(2**20), (Role("some", ("a/", "b/")),))
        for _ in range(3):
            call: Any = Call(script)
            if isinstance(outcome := await transport.server._read(peer, call), FrameError):
                transport.count_refused(outcome)
            if script.number() % 2:
                while endpoint.receive_nowait() is not None:
                    pass
            told_back = list(framing.unwrap_all(peer.take_news(framing)))
            assert len(told_back) <= len(peer.channels)
        peer.rest()
        await transport.aclose()

    def sending(script: Script) -> None:
        """Run replies to channels on which messages were sent."""
        channels = {(one, "b/0"): Outgoing(one, "b/0", Line()) for one in ("a/0", "b/1")}
        for message in messages(script, framing):
            try:
                for frame in framing.unwrap_all(message):
                    news = told(frame)
                    channel = channels.get((news.sender, news.receiver))
                    if channel is not None:
                        channel.told(news.arrived, news.read, news.nobody)
            except FrameError:
                continue
            for channel in channels.values():
                try:
                    if channel.has_room():
                        channel.push(b"body")
                except Exception as error:
                    if "no endpoint is bound" not in str(error):
                        raise
                assert len(channel.kept) <= channel._sent
                assert channel._unread_bytes >= 0

    async def both(data: bytes) -> None:
        script = Script(data)
        if script.number() % 2:
            await listening(script)
        else:
            sending(script)

    def run(data: bytes) -> None:
        asyncio.run(both(data))

    return run


def nats() -> Target:
    """Return a target for the client of the transport `nats`.

    The server sends letters, answers, and notices of missing subscribers.
    """
    from flamecore.abc.transport import TransportContext
    from flamecore.errors import CodecError, FrameError
    from flamecore.runtime.codec.codec import Codec
    from flamecore.toolkit.frames import Frame, Framing
    from flamestream_nats.channels.endpoint import NatsEndpoint
    from flamestream_nats.channels.envelope import Envelope, Kind
    from flamestream_nats.channels.exchange import Exchange
    from flamestream_nats.client import Heard
    from flamestream_nats.options import Options

    options, codec, framing = Options(), Codec(DECLARED), Framing("fuzz", 1)
    kinds = list(Kind)

    async def go(data: bytes) -> None:
        script = Script(data)
        token = "" if script.number() % 4 == 0 else "secret"
        lost: list[str] = []
        context = TransportContext(
            job="fuzz", incarnation=1, codec=codec, token=token, lost=lambda location, _: lost.append(location)
        )
        exchange = Exchange(options, context)
        endpoint = exchange.endpoints["b/0"] = NatsEndpoint("b/0", exchange)
        sealing = Envelope(framing, token)
        at = exchange._subjects.at("b/0")
        ways = [exchange._subjects.node(place, key) for place in ("x", "y") for key in ("c1", "c2", "-", "p0", "w1")]
        ways += ["", "elsewhere", at, exchange.home]
        exchange.connect(endpoint, "a/0")
        good = 0
        for _ in range(MOST_STEPS):
            if not script:
                break
            if script.number() >= 128:  # as it should be: the next part of a message, or a whole one
                good += 1
                frame = Frame("a/0", "b/0", good, script.body())
                letter = sealing.seal(Kind.DATA, script.number(), 0, frame, at, ways[0])
                exchange._on_letter(endpoint, Heard(at, ways[0], letter, nobody=False))
                continue
            kind, reply = script.number(), ways[script.number() % len(ways)]
            subject = at if kind & 1 else ways[script.number() % len(ways)]
            if kind & 2:
                letter = script.some()
            else:
                head = kinds[script.number() % len(kinds)], script.number(), script.number()
                frame = Frame(script.address(), script.address(), script.number(1 if kind & 8 else 8), script.body())
                letter = sealing.seal(*head, frame, subject, reply)
            heard = Heard(subject, reply, letter, nobody=bool(kind & 16))
            if kind & 1:
                exchange._on_letter(endpoint, heard)
            else:
                exchange._on_answer(heard)
            if kind & 32:
                while endpoint.receive_nowait() is not None:
                    pass
            if kind & 64:
                exchange._peers.tick()
        assert exchange.error is None, exchange.error

    def run(data: bytes) -> None:
        try:
            asyncio.run(go(data))
        except (FrameError, CodecError) as error:
            raise AssertionError("it is the transport's to count what it refuses") from error

    return run


def jobfile() -> Target:
    """Return a target for job files: what `flamestream check` does with one, and how it would show what is wrong."""
    from pathlib import Path
    from tempfile import TemporaryDirectory

    import flamecore as fc
    from flamecore.cli.output import error_lines
    from flamecore.runtime.cluster.dry_run import dry_run
    from flamecore.runtime.config.plugins import PluginRegistry
    from flamecore.runtime.config.read import read_config
    from flamecore.runtime.config.resolve import resolve
    from flamecore.runtime.config.validate import Problems

    flow, plugins = fc.Flow("fuzz"), PluginRegistry()
    flow.source("lines", str).key_by(str).count().sink("counts")

    def text(script: Script) -> str:
        """Return a file of tables, keys and values that a job file may have, in combinations that it may not."""
        rows = ["schema = 1"]
        while script and len(rows) < MOST_STEPS:
            table, key, value = (some[script.number() % len(some)] for some in (TABLES, KEYS, VALUES))
            if script.number() % 4 == 0:
                rows.append(f"[{table}]")
            rows.append(f"{key} = {value}")
        return "\n".join(rows)

    def run(data: bytes) -> None:
        problems = Problems()
        # A new folder each time: nothing of one file may be there for the next.
        with TemporaryDirectory(prefix="fuzz-") as folder:
            path = Path(folder) / "job.toml"
            path.write_bytes(data[1:] if data[:1] < b"\x40" else text(Script(data)).encode())
            with problems.noted():
                config = read_config(path, environ={}, problems=problems)
                spec = resolve(config, flow, plugins=plugins, problems=problems)
                spec.described()
                if not problems:
                    dry_run(spec)
            assert [each.name for each in Path(folder).iterdir()] == ["job.toml"], "it starts and opens nothing"
        for problem in problems:
            assert all(row.isprintable() for row in error_lines(str(problem), problem)), problem

    return run


def names() -> Target:
    """Return a target for names of jobs, sources, operations and sinks, in whatever they become a part of."""
    from pathlib import Path
    from tempfile import TemporaryDirectory

    import flamecore as fc
    from flamecore.abc.store import StoreContext
    from flamecore.cli.output import error_lines
    from flamecore.errors import FlameError
    from flamecore.runtime.cluster.job_record import key_of
    from flamestream_stores.directory import Directory, DirectoryOptions
    from flamestream_stores.sqlite import Sqlite, SqliteOptions

    def outputs(job: str, name: str) -> list[Any]:
        flow = fc.Flow(job)
        flow.source(name, int).map(str, name=f"{name}'").key_by(len).count(name=f"{name}''").sink(f"{name}!")
        return list(flow.run({name: [1, 2, 3]}, workers=2)[f"{name}!"])

    async def keep(store: Any) -> None:
        await store.open()
        try:
            assert await store.create("epoch/00000001", b"text")
            assert await store.names("epoch/") == ["epoch/00000001"]
        finally:
            await store.aclose()

    def run(data: bytes) -> None:
        name, _, job = data[:400].decode("utf-8", "surrogateescape").partition("\0")
        raised: list[FlameError] = []

        def attempt(call: Callable[[], object]) -> None:
            try:
                call()
            except FlameError as error:
                raised.append(error)

        attempt(lambda: fc.Flow(job))
        if raised:  # it is the name of no job
            job = "job"
        attempt(lambda: outputs(job, name))
        attempt(lambda: key_of(job))
        with TemporaryDirectory(prefix="fuzz-") as folder:
            inside = Path(folder, "inside")
            context = StoreContext(job, inside)
            inside.mkdir()
            attempt(lambda: asyncio.run(keep(Directory(DirectoryOptions(path=f"{inside}/blobs"), context))))
            attempt(lambda: asyncio.run(keep(Sqlite(SqliteOptions(path=f"{inside}/blobs.db"), context))))
            assert [each.name for each in Path(folder).iterdir()] == ["inside"]
            assert {each.name.partition(".")[0] for each in inside.iterdir()} <= {"blobs"}
        for error in raised:
            assert all(row.isprintable() for row in error_lines(str(error), error)), error

    return run


TARGETS: Final[dict[str, Callable[[], Target]]] = {
    "frames": frames,
    "codec": codec,
    "sockets": sockets,
    "grpc": grpc,
    "nats": nats,
    "jobfile": jobfile,
    "names": names,
}


def examples() -> Iterator[bytes]:
    """Bytes to begin with: values of many types, frames of them, and scripts."""
    from flamecore.toolkit.frames import Frame, Framing

    for number in range(24):
        yield MAKE + bytes([number * 11, number]) * 40
    for body in encoded():
        yield body
        yield Framing("fuzz", 1).wrap(Frame("a/0", "b/0", 1, body))
        size = len(body).to_bytes(2, "big")
        # Frames in the order in which they should come, to each end, as the scripts of `wrapped` and `nats` say it.
        for first in (0, 1):
            yield bytes([first]) + b"".join(bytes([0, 200, 5]) + size + body for _ in range(3))
            yield bytes([first]) + b"".join(bytes([200, 5]) + size + body + bytes([part]) for part in (1, 0, 2))
        yield bytes([0, 0, 67, 0, 1, 1, 5]) + size + body
    # Messages of a socket, for each of its ends: what it has to hear first, and data.
    greeting = msgspec.msgpack.encode((b"token", b"hello", "unix:/x", "one"))
    for first, kind, opening in ((0, 1, greeting), (200, 2, b"one")):
        for rest in (b"", _message(0, b"some") + _message(4, b""), _message(3, msgspec.msgpack.encode((True, "no")))):
            yield bytes([first, 6]) + _message(kind, opening) + _message(0, b"") + rest


def _message(kind: int, body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + bytes([kind]) + body

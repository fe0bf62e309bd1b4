"""Reader of a stream of JetStream, in order.

It uses a consumer that is asked for some messages at a time. If anything goes wrong, a new consumer begins after the
last message that arrived.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from datetime import datetime
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec
from nats import errors

from flamecore.abc.source import Batch, Reader, Rejected
from flamecore.errors import FlameError, SourceError
from flamecore.toolkit.records.parse import Decode
from flamestream_nats.client import Heard
from flamestream_nats.connection import Connection
from flamestream_nats.explain import reason
from flamestream_nats.jetstream.edge_options import SourceOptions
from flamestream_nats.jetstream.stream import Refused, Requests

Position = tuple[int, int]
"""(number of the message, when its stream was made, in microseconds)."""

_AT_ONCE: Final = 512
_BYTES: Final = 8 * 2**20
_EXPIRES_S: Final = 60
_HEARTBEAT_S: Final = 5.0
_SECOND: Final = 1_000_000_000
_MOST_RAW: Final = 64 * 1024
_OVER: Final = frozenset({b"404", b"408"})  # the request has ended, and is made again


class StreamFacts(NamedTuple):
    """Facts of a stream: name, creation time, first and last message, retention."""

    name: str
    made: int
    first: int
    last: int
    retention: str

    @classmethod
    async def ask(cls, requests: Requests, name: str) -> StreamFacts:
        """Ask the server for the facts of a stream. Raises `Refused`."""
        info = await requests.ask(f"STREAM.INFO.{name}")
        made = int(datetime.fromisoformat(info["created"]).timestamp() * 1_000_000)
        state = info["state"]
        return cls(name, made, state["first_seq"], state["last_seq"], info["config"].get("retention", "limits"))


class StreamReader(Reader):
    """Messages of one stream.

    Args:
        source: Name of the source.
        options: The source's options.
        decode: Function that makes records of messages.

    Attributes:
        connection: Connection to the server; the caller opens it.
        requests: Requests over that connection.
    """

    def __init__(self, source: str, options: SourceOptions, decode: Decode) -> None:
        self._source = source
        self._options = options
        self._decode = decode
        self.connection = Connection(options, f"source {source}"[:200], up=self._came_back, failed=self._given_up)
        self.requests = Requests(self.connection, options.request_timeout_s)
        self._inbox = f"_INBOX.{secrets.token_hex(12)}"
        self._stream = StreamFacts("", 0, 0, 0, "")
        self._consumer = ""
        self._generation = 0  # number of the consumer, counted here
        self._ear = 0  # number of the subscription to its messages
        self._expected = 0  # number of the next message, as the consumer counts
        self._asked = 0  # messages still to come of the last request
        self._seen = 0  # number of the last message that arrived
        self._acknowledged = 0
        self._end: int | None = None  # number of the last message to be read; None: no limit
        self._complete = False
        self._arrived: deque[tuple[int, bytes]] = deque()
        self._ready = asyncio.Event()
        self._replies: deque[tuple[int, str]] = deque()  # subjects by which messages are acknowledged
        self._amiss = asyncio.Event()
        self._heard_of = False
        self._keeper: asyncio.Task[None] | None = None
        self._error: SourceError | None = None

    async def begin(self, stream: StreamFacts, after: int, end: int | None) -> None:
        """Begin to read, once the connection is open.

        Args:
            stream: Facts of the stream.
            after: Number of the message to read on after.
            end: Number of the last message to be read; None: no end.

        Raises:
            Refused, nats.errors.Error: The server does not allow it.
        """
        self._stream, self._seen, self._acknowledged, self._end = stream, after, after, end
        self._complete = end is not None and end <= after
        if not self._complete:
            await self._consume()
            self._keeper = asyncio.create_task(self._keep(), name=f"source {self._source}")

    @property
    def _acknowledges(self) -> bool:
        return bool(self._options.consumer) or self._stream.retention == "workqueue"

    async def read(self, limit: int) -> Batch | None:
        while not self._arrived:
            if self._error is not None:
                raise self._error
            if self._complete:
                return None
            self._ready.clear()
            await self._ready.wait()
        found = [self._arrived.popleft() for _ in range(min(limit, len(self._arrived)))]
        self._pull()
        made, decode = self._stream.made, self._decode
        values: list[Any] = []
        positions: list[Position] = []
        bad: list[Rejected] = []
        for number, data in found:
            try:
                values.append(decode(data))
            except (ValueError, RecursionError) as error:
                bad.append(Rejected((number, made), str(error), _readable(data)))
            else:
                positions.append((number, made))
        return Batch(values, positions, bad, fresh=True)

    async def acknowledge(self, position: Any) -> None:
        number = self._acknowledged = position[0]
        replies = self._replies
        while replies and replies[0][0] <= number:
            self.connection.post(replies.popleft()[1], "", b"+ACK")

    def describe(self, position: Any) -> str:
        return f"stream {self._stream.name} message {position[0]}"

    async def aclose(self) -> None:
        keeper, self._keeper = self._keeper, None
        try:
            if keeper is not None:
                keeper.cancel()
                await asyncio.wait((keeper,))
                if self.connection.is_up:
                    await self.connection.flush(self._options.request_timeout_s)
        finally:
            await self.connection.aclose()

    # -- the consumer ------------------------------------------------------------------------------------------------

    async def _consume(self) -> None:
        """Create a consumer that begins after the last message that arrived."""
        stream = await StreamFacts.ask(self.requests, self._stream.name)
        if problem := missed(stream, self._stream.made, self._seen, self._options.subject):
            raise SourceError(
                f"source {self._source!r}: {problem[0]}", hint=problem[1], source=self._source, position=""
            )
        await self._listen()
        self._replies.clear()
        config: dict[str, Any] = {"replay_policy": "instant", "filter_subject": self._options.subject or None}
        what = f"CONSUMER.CREATE.{stream.name}"
        if self._acknowledges:
            name = config["durable_name"] = self._options.consumer or f"flamestream-{self._source}"
            config |= {"ack_policy": "explicit", "ack_wait": 24 * 3600 * _SECOND, "max_ack_pending": -1}
            what = f"CONSUMER.DURABLE.CREATE.{stream.name}.{name}"
            await self._delete(name)  # messages it has delivered without acknowledgement come again
        else:
            config |= {"ack_policy": "none", "mem_storage": True, "num_replicas": 1}
            config["inactive_threshold"] = 2 * _EXPIRES_S * _SECOND
            if self._consumer:
                await self._delete(self._consumer)
        if stream.retention != "workqueue":
            after = self._acknowledged if self._acknowledges else self._seen
            config |= {"deliver_policy": "by_start_sequence", "opt_start_seq": after + 1}
        config = {key: value for key, value in config.items() if value is not None}
        info = await self.requests.ask(what, {"stream_name": stream.name, "config": config})
        self._consumer, self._expected, self._asked = info["name"], 1, 0
        if self._end is not None and not info["num_pending"]:
            self._finish()
        self._pull()

    async def _listen(self) -> None:
        """Subscribe to the next consumer's messages, and unsubscribe from the last one's."""
        self._generation += 1
        if self._ear:
            await self.connection.unsubscribe(self._ear)
        handle = partial(self._heard, self._generation)
        self._ear = await self.connection.subscribe(f"{self._inbox}.{self._generation}", handle)

    async def _delete(self, consumer: str) -> None:
        try:
            await self.requests.ask(f"CONSUMER.DELETE.{self._stream.name}.{consumer}")
        except Refused:
            return  # it is not there

    async def _keep(self) -> None:
        """Create a new consumer whenever something goes wrong, until cancelled."""
        while True:
            try:
                async with asyncio.timeout(3 * _HEARTBEAT_S):
                    await self._amiss.wait()
            except TimeoutError:
                heard, self._heard_of = self._heard_of, False
                if heard or not self._asked:
                    continue
            self._amiss.clear()
            if self._complete:
                return
            try:
                await self._consume()
            except SourceError as error:
                self._fail(error)
                return
            except (Refused, errors.Error, OSError, TimeoutError) as error:
                if not self._amiss.is_set() or self._error is not None:
                    self._fail(self._failed(reason(error)))
                    return

    def _pull(self) -> None:
        """Request more messages, if there is room."""
        if self._asked or self._complete or len(self._arrived) > _AT_ONCE // 2:
            return
        self._asked = _AT_ONCE
        wanted = {
            "batch": _AT_ONCE,
            "max_bytes": _BYTES + self.connection.max_payload,
            "expires": _EXPIRES_S * _SECOND,
            "idle_heartbeat": int(_HEARTBEAT_S * _SECOND),
        }
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._stream.name}.{self._consumer}"
        self.connection.post(subject, f"{self._inbox}.{self._generation}", msgspec.json.encode(wanted))

    def _heard(self, generation: int, heard: Heard) -> None:
        if generation != self._generation:
            return
        self._heard_of = True
        if heard.headers[8:9] == b" ":
            self._status(heard.headers[9:12], heard.headers[12:].partition(b"\r\n")[0].strip().decode())
            return
        _, _, number, mine, _, pending = _reply_facts(heard.reply)
        if mine != self._expected:
            self._amiss.set()  # something was lost on the way
            return
        self._expected += 1
        self._asked -= 1
        if self._acknowledges:
            self._replies.append((number, heard.reply))
        if number > self._seen:
            self._seen = number
            if self._end is None or number <= self._end:
                self._arrived.append((number, heard.data))
                self._ready.set()
        if self._end is not None and (number >= self._end or not pending):
            self._finish()
        else:
            self._pull()

    def _status(self, code: bytes, text: str) -> None:
        """Handle the server's status message on a request for messages."""
        if code == b"100":
            return  # a heartbeat
        if code in _OVER or "maxbytes" in text.lower() or "batch completed" in text.lower():
            self._asked = 0
            self._pull()
        elif self._acknowledges and "consumer deleted" in text.lower():
            name = self._options.consumer or f"flamestream-{self._source}"
            what = f"another run has taken over consumer {name} of stream {self._stream.name}"
            self._fail(
                SourceError(f"source {self._source!r}: {what}", hint="End it.", source=self._source, position="")
            )
        else:
            self._amiss.set()

    def _finish(self) -> None:
        self._complete = True
        self._ready.set()
        self._amiss.set()

    # -- the connection ----------------------------------------------------------------------------------------------

    def _came_back(self) -> None:
        self.requests.renew()
        self._amiss.set()

    def _given_up(self, error: FlameError) -> None:
        self.requests.give_up()
        self._fail(self._failed(error.what, error.hint))

    def _failed(self, what: str, hint: str = "Look into the server's log.") -> SourceError:
        where = f"stream {self._stream.name} of {self._options.shown}"
        return SourceError(f"source {self._source!r}: {where}: {what}", hint=hint, source=self._source, position=where)

    def _fail(self, error: SourceError) -> None:
        self._error = self._error or error
        self._ready.set()


def missed(stream: StreamFacts, made: int, after: int, subject: str) -> tuple[str, str] | None:
    """Return why a stream cannot be read on after a message, as (what, hint), or None.

    Args:
        stream: Facts of the stream as it is now.
        made: Its creation time when it was read, in microseconds.
        after: Number of the last message read.
        subject: Subject that is read.
    """
    start = "To start afresh, take away the job's state and its output."
    if stream.made != made:
        when = datetime.fromtimestamp(stream.made / 1_000_000).astimezone().isoformat(timespec="seconds")
        return f"stream {stream.name} was deleted, and made anew on {when}", start
    if stream.last < after:
        return f"stream {stream.name} ends at message {stream.last}, and has been read up to {after}", start
    if after and stream.first > after + 1 and stream.retention == "limits":
        gone = f"messages {after + 1} to {stream.first - 1} of stream {stream.name} are gone"
        gone += f", and some may have been of subject {subject}" if subject else ""
        return gone, f"Its limits must keep what the job has not read: raise max_age, max_msgs or max_bytes. {start}"
    return None


def _reply_facts(reply: str) -> tuple[str, str, int, int, int, int]:
    """Return the facts in the subject by which a message is acknowledged.

    They are: stream, consumer, number of the message in the stream, its number among the delivered ones, time, and how
    many messages are still to come.
    """
    words = reply.split(".")
    stream, consumer, _, number, mine, time, pending = words[2:9] if len(words) == 9 else words[4:11]
    return stream, consumer, int(number), int(mine), int(time), int(pending)


def _readable(data: bytes) -> str | bytes:
    data = data[:_MOST_RAW]
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data

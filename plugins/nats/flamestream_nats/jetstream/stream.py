"""Requests to JetStream, and one stream that takes one message for each subject and refuses the next: the store's.

Requests are made again while the server is away or only just starting, up to a limit. All of them may be: what is there
already is refused the second time, and whoever published it can tell that it is its own.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

import msgspec
from nats import errors
from nats.aio.msg import Msg

from flamestream_nats.connection import Connection

_TAKEN: Final = "maximum messages per subject"
_NOT_THE_LAST: Final = frozenset({10071, 10164})
_NO_MESSAGE: Final = 10037
NO_STREAM: Final = 10059
_STARTING: Final = frozenset({10008, 10076, 10118})  # what a server says of streams it has not come to yet
_ATTEMPT_S: Final = 5.0
_PAUSE_S: Final = 0.05
_NO_JETSTREAM_S: Final = 1.0
"""How long to ask for JetStream where neither has the server it nor has anybody answered yet."""


class Refused(Exception):
    """The server has answered, and does not do it. Fields: `code`, its own number for the reason."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Taken(Refused):
    """The subject has its message."""


class Changed(Refused):
    """What was to be there, when the message is stored, is not."""


class OtherStream(Exception):
    """There is a stream of that name, and it was made for something else."""


class NoJetStream(errors.Error):
    """The server does not store, and nobody of its cluster does."""

    def __str__(self) -> str:
        return "it runs without JetStream"


class Message(NamedTuple):
    """A message of the stream: its bytes and headers, its number, and when it was stored, by the server's clock."""

    data: bytes
    headers: Mapping[str, str]
    number: int
    time: datetime


class Listing(NamedTuple):
    """Subjects that have a message, and what the server's clock says."""

    subjects: list[str]
    now: datetime


class Requests:
    """Asks the server for what it stores.

    Args:
        connection: To the server, open.
        limit_s: How long the server may take to answer, with all that it is asked again.
    """

    def __init__(self, connection: Connection, limit_s: float) -> None:
        self._connection = connection
        self._limit_s = limit_s
        self._asked: set[asyncio.Future[Msg]] = set()
        self._given_up = False
        self._answered = False

    async def ask(self, what: str, arguments: Mapping[str, Any] | None = None) -> Any:
        """The answer to a request of the API, such as `STREAM.INFO.NAME`.

        Raises:
            Refused: The server does not do it.
        """
        data = msgspec.json.encode(arguments) if arguments else b""
        return checked(await self.request(f"$JS.API.{what}", data))

    async def publish(self, subject: str, data: bytes, headers: dict[str, str]) -> int:
        """Store a message. Returns its number in its stream.

        Raises:
            Taken, Changed, Refused: The server does not do it.
        """
        return int(checked(await self.request(subject, data, headers))["seq"])

    async def last_of(self, stream: str, subject: str) -> Message | None:
        """The last message of the subjects that match, as the stream's leader knows it; None: none."""
        try:
            found = await self.ask(f"STREAM.MSG.GET.{stream}", {"last_by_subj": subject})
        except Refused as error:
            if error.code == _NO_MESSAGE:
                return None
            raise
        message = found["message"]
        data, headers = base64.b64decode(message.get("data", "")), _headers(message.get("hdrs", ""))
        return Message(data, headers, message["seq"], datetime.fromisoformat(message["time"]))

    async def request(self, subject: str, data: bytes, headers: dict[str, str] | None = None) -> bytes:
        """The answer to a request, made again while there is none.

        Raises:
            NoJetStream: There is nobody to answer it, and there was nobody before.
            nats.errors.Error: There is no answer in time.
        """
        clock = asyncio.get_running_loop().time
        began = clock()
        until = began + self._limit_s
        while True:
            left_s = until - clock()
            if self._given_up:
                raise errors.TimeoutError
            try:
                answer = await self._ask_once(subject, data, min(left_s, _ATTEMPT_S), headers)
                self._answered = True
                if not _is_starting(answer.data):
                    return answer.data
                error: Exception = Refused(10008, "JetStream has not started yet")
            except (errors.TimeoutError, errors.NoRespondersError, errors.OutboundBufferLimitError) as away:
                error = away
            if (
                isinstance(error, errors.NoRespondersError)
                and not self._answered
                and not self._connection.has_jetstream
                and clock() >= began + min(_NO_JETSTREAM_S, self._limit_s)
            ):
                raise NoJetStream from error
            if clock() + _PAUSE_S >= until:
                raise error
            await asyncio.sleep(_PAUSE_S)

    async def _ask_once(self, subject: str, data: bytes, limit_s: float, headers: dict[str, str] | None) -> Msg:
        asked = asyncio.ensure_future(self._connection.request(subject, data, limit_s, headers))
        self._asked.add(asked)
        try:
            await asyncio.wait((asked,))
        except asyncio.CancelledError:
            asked.cancel()
            raise
        finally:
            self._asked.discard(asked)
        if asked.cancelled():
            raise errors.TimeoutError
        return asked.result()

    def renew(self) -> None:
        """The connection was broken and is back: what has been asked meanwhile has no answer coming."""
        for asked in self._asked:
            asked.cancel()

    def give_up(self) -> None:
        """The connection is broken for good: nothing is asked any more."""
        self._given_up = True
        self.renew()


class Stream(Requests):
    """A stream, and how to ask for what is in it.

    Args:
        connection: To the server, open.
        name: Of the stream.
        subjects: What its subjects begin with.
        limit_s: How long the server may take to answer, with all that it is asked again.
    """

    def __init__(self, connection: Connection, name: str, subjects: str, limit_s: float) -> None:
        super().__init__(connection, limit_s)
        self.name = name
        self._subjects = subjects

    async def open(self, replicas: int) -> None:
        """Make it, if it is not there.

        Raises:
            Refused: It cannot be made.
            OtherStream: It is there, and is of another kind.
        """
        wanted = {
            "name": self.name,
            "description": "state of a job of flamestream",
            "subjects": [f"{self._subjects}.>"],
            "retention": "limits",
            "storage": "file",
            "num_replicas": replicas,
            "max_msgs_per_subject": 1,
            "discard": "new",
            "discard_new_per_subject": True,
            "max_consumers": -1,
            "max_msgs": -1,
            "max_bytes": -1,
            "max_age": 0,
        }
        try:
            info = await self.ask(f"STREAM.INFO.{self.name}")
        except Refused as error:
            if error.code != NO_STREAM:
                raise
            info = await self.ask(f"STREAM.CREATE.{self.name}", wanted)  # two who make it at once make one
        for key in ("subjects", "storage", "max_msgs_per_subject", "discard", "discard_new_per_subject", "max_age"):
            if (found := info["config"].get(key)) != wanted[key]:
                raise OtherStream(f"stream {self.name} has {key} = {found!r}, and {wanted[key]!r} is needed")

    async def put(
        self, subject: str, data: bytes, headers: Mapping[str, str], *, after: tuple[str, int] | None = None
    ) -> int:
        """Store a message as the only one of its subject. Returns its number in the stream.

        Args:
            subject: Below the stream's own.
            data: At most `Connection.max_payload` bytes, with the headers.
            headers: Some; none begins with `Nats-`.
            after: A subject and the number that its message must have.

        Raises:
            Taken: The subject has one. If the first answer was lost, that may be this one.
            Changed: The message of `after` is not there.
            Refused: The server cannot store it.
        """
        sent = dict(headers)
        if after is not None:
            sent["Nats-Expected-Last-Subject-Sequence-Subject"] = f"{self._subjects}.{after[0]}"
            sent["Nats-Expected-Last-Subject-Sequence"] = str(after[1])
        return await self.publish(f"{self._subjects}.{subject}", data, sent)

    async def get(self, subject: str) -> Message | None:
        """The message of a subject, or the last one of all that match, as the stream's leader knows it; None: none."""
        return await self.last_of(self.name, f"{self._subjects}.{subject}")

    async def list(self, subject: str) -> Listing:
        """The subjects (without the stream's own) that match one with wildcards."""
        found: list[str] = []
        before = len(self._subjects) + 1
        while True:
            asked = {"subjects_filter": f"{self._subjects}.{subject}", "offset": len(found)}
            info = await self.ask(f"STREAM.INFO.{self.name}", asked)
            page = info["state"].get("subjects") or {}
            found += (name[before:] for name in page)
            if not page or len(found) >= info.get("total", 0):
                return Listing(found, datetime.fromisoformat(info["ts"]))

    async def purge(self, subject: str) -> None:
        """Delete, in one step, all messages whose subject matches."""
        await self.ask(f"STREAM.PURGE.{self.name}", {"filter": f"{self._subjects}.{subject}"})


def _is_starting(answer: bytes) -> bool:
    if b'"error"' not in answer[:1000]:
        return False
    return msgspec.json.decode(answer).get("error", {}).get("err_code") in _STARTING


def checked(data: bytes) -> Any:
    """An answer that is no refusal.

    Raises:
        Taken, Changed, Refused: It is one.
    """
    answer = msgspec.json.decode(data)
    error = answer.get("error")
    if error is None:
        return answer
    code, text = int(error.get("err_code", 0)), str(error.get("description", error))
    if _TAKEN in text:
        raise Taken(code, text)
    if code in _NOT_THE_LAST:
        raise Changed(code, text)
    raise Refused(code, text)


def _headers(block: str) -> dict[str, str]:
    lines = base64.b64decode(block).decode().split("\r\n")[1:]
    pairs = (line.partition(":") for line in lines if line)
    return {name: value.strip() for name, _, value in pairs}

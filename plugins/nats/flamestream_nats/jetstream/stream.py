"""Requests to JetStream, and the store's stream.

Requests are repeated while the server is away or still starting, up to a limit. Repeating is safe: a message that is
there already is refused the second time, and its writer can tell that it is its own.
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
_STARTING: Final = frozenset({10008, 10076, 10118})  # a server's errors for streams it has not loaded yet
_ATTEMPT_S: Final = 5.0
_PAUSE_S: Final = 0.05
_NO_JETSTREAM_S: Final = 1.0
"""Time to ask for JetStream if the server lacks it and no other has answered yet."""


class Refused(Exception):
    """An error answer of the server. `code` is its number for the reason."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Taken(Refused):
    """Refusal of a second message of a subject."""


class Changed(Refused):
    """Refusal of a message because the message expected before it is not there."""


class OtherStream(Exception):
    """A stream of that name exists, with a configuration for another purpose."""


class NoJetStream(errors.Error):
    """No server of the cluster stores: all run without JetStream."""

    def __str__(self) -> str:
        return "it runs without JetStream"


class Message(NamedTuple):
    """A stored message: data, headers, number, time by the server's clock."""

    data: bytes
    headers: Mapping[str, str]
    number: int
    time: datetime


class Listing(NamedTuple):
    """Subjects that have a message, and the time of the server's clock."""

    subjects: list[str]
    now: datetime


class Requests:
    """Requests to the server's JetStream API.

    Args:
        connection: An open connection to the server.
        limit_s: Seconds the server may take to answer, repeated requests included.
    """

    def __init__(self, connection: Connection, limit_s: float) -> None:
        self._connection = connection
        self._limit_s = limit_s
        self._asked: set[asyncio.Future[Msg]] = set()
        self._given_up = False
        self._answered = False

    async def ask(self, what: str, arguments: Mapping[str, Any] | None = None) -> Any:
        """Return the decoded answer to an API request such as `STREAM.INFO.NAME`.

        Raises:
            Refused: The server answers with an error.
        """
        data = msgspec.json.encode(arguments) if arguments else b""
        return checked(await self.request(f"$JS.API.{what}", data))

    async def find_or_create(self, wanted: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the configuration of a stream, which is created if it does not exist.

        Raises:
            Refused: It cannot be created.
        """
        try:
            info = await self.ask(f"STREAM.INFO.{wanted['name']}")
        except Refused as error:
            if error.code != NO_STREAM:
                raise
            # Two that create it at once create one: the server takes the same configuration a second time.
            info = await self.ask(f"STREAM.CREATE.{wanted['name']}", wanted)
        config: Mapping[str, Any] = info["config"]
        return config

    async def publish(self, subject: str, data: bytes, headers: dict[str, str]) -> int:
        """Store a message; return its number in its stream.

        Raises:
            Taken, Changed, Refused: The server does not store it.
        """
        return int(checked(await self.request(subject, data, headers))["seq"])

    async def last_of(self, stream: str, subject: str) -> Message | None:
        """Return the last message of the matching subjects, or None.

        The stream's leader answers; `subject` may have wildcards.
        """
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
        """Return the answer to a request, which is repeated while there is none.

        Raises:
            NoJetStream: No server can answer it, and none has answered before.
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
        """Cancel all pending requests: after a reconnection they get no answer."""
        for asked in self._asked:
            asked.cancel()

    def give_up(self) -> None:
        """Stop all requests: the connection is broken for good."""
        self._given_up = True
        self.renew()


def unlimited(name: str, replicas: int) -> dict[str, Any]:
    """Return the configuration of a stream on disk that keeps all messages."""
    limits = {"max_consumers": -1, "max_msgs": -1, "max_bytes": -1, "max_age": 0}
    return {"name": name, "retention": "limits", "storage": "file", "num_replicas": replicas, **limits}


def check_stream(config: Mapping[str, Any], wanted: Mapping[str, Any], *keys: str) -> None:
    """Check some keys of a stream's configuration.

    Raises:
        OtherStream: One is not as wanted.
    """
    for key in keys:
        if (found := config.get(key)) != wanted[key]:
            raise OtherStream(f"stream {wanted['name']} has {key} = {found!r}, and {wanted[key]!r} is needed")


class Stream(Requests):
    """A stream with at most one message per subject.

    Args:
        connection: An open connection to the server.
        name: The stream's name.
        subjects: Prefix of its subjects.
        limit_s: Seconds the server may take to answer, repeated requests included.
    """

    def __init__(self, connection: Connection, name: str, subjects: str, limit_s: float) -> None:
        super().__init__(connection, limit_s)
        self.name = name
        self._subjects = subjects

    async def open(self, replicas: int) -> None:
        """Create the stream, if it does not exist.

        Raises:
            Refused: It cannot be created.
            OtherStream: It exists, with another configuration.
        """
        wanted = {
            **unlimited(self.name, replicas),
            "description": "state of a job of flamestream",
            "subjects": [f"{self._subjects}.>"],
            "max_msgs_per_subject": 1,
            "discard": "new",
            "discard_new_per_subject": True,
        }
        keys = ("subjects", "storage", "max_msgs_per_subject", "discard", "discard_new_per_subject", "max_age")
        check_stream(await self.find_or_create(wanted), wanted, *keys)

    async def put(
        self, subject: str, data: bytes, headers: Mapping[str, str], *, after: tuple[str, int] | None = None
    ) -> int:
        """Store a message as the only one of its subject; return its number in the stream.

        Args:
            subject: Subject below the stream's own.
            data: At most `Connection.max_payload` bytes, with the headers.
            headers: At least one; none begins with `Nats-`.
            after: A subject and the number that its message must have.

        Raises:
            Taken: The subject has a message. If the first answer was lost, that may be this one.
            Changed: The message of `after` is not there.
            Refused: The server cannot store it.
        """
        sent = dict(headers)
        if after is not None:
            sent["Nats-Expected-Last-Subject-Sequence-Subject"] = f"{self._subjects}.{after[0]}"
            sent["Nats-Expected-Last-Subject-Sequence"] = str(after[1])
        return await self.publish(f"{self._subjects}.{subject}", data, sent)

    async def get(self, subject: str) -> Message | None:
        """Return the message of a subject, or None, as the stream's leader knows it.

        A subject with wildcards gives the last message of all that match.
        """
        return await self.last_of(self.name, f"{self._subjects}.{subject}")

    async def list(self, subject: str) -> Listing:
        """List the subjects (without the stream's own) that match a pattern."""
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
        """Delete all messages of the matching subjects in one step."""
        await self.ask(f"STREAM.PURGE.{self.name}", {"filter": f"{self._subjects}.{subject}"})


def _is_starting(answer: bytes) -> bool:
    if b'"error"' not in answer[:1000]:
        return False
    return msgspec.json.decode(answer).get("error", {}).get("err_code") in _STARTING


def checked(data: bytes) -> Any:
    """Return a decoded answer that is not an error.

    Raises:
        Taken, Changed, Refused: The answer is an error.
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

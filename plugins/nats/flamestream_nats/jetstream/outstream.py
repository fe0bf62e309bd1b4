"""The stream that a sink writes to: messages with marks, stored only if nothing has come in between."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from flamestream_nats.connection import Connection
from flamestream_nats.jetstream.stream import NO_STREAM, Changed, Message, OtherStream, Refused, Requests, checked

MARK: Final = "Flamestream-Mark"
"""The header that has a message's mark."""

_AFTER: Final = "Nats-Expected-Last-Sequence"
_AFTER_ID: Final = "Nats-Expected-Last-Msg-Id"
_ROOM: Final = 200  # for the names and the rest of the headers


class Mark(NamedTuple):
    """What a message says of the output up to there.

    Attributes:
        of: Fingerprint of the output: the job's state, or flow and inputs.
        by: Which object has stored it.
        series: Which output this is: one that is replaced begins a new series.
        number: How many outputs of the series there are with this one.
        time: Everything below it is there, once nothing is left of its batch.
        before: Everything below it is there,
        done: and so many outputs after that.
        left: How many outputs of the batch are still to come, or some number above 0.
        first: Number of the series' first message: older ones do not count. 0: they do.
    """

    of: str
    by: str
    series: str
    number: int
    time: int
    before: int
    done: int
    left: int
    first: int

    @property
    def held(self) -> int:
        """The time up to which all is there."""
        return self.before if self.left else self.time


class Letter(NamedTuple):
    """A message that is to be stored: an output with its mark, or a mark alone."""

    mark: Mark
    data: bytes = b""
    is_output: bool = False


class Last(NamedTuple):
    """How a stream ends.

    Attributes:
        number: Of its last message, which may be gone.
        mark: The newest; None: the newest message has none, or there is no message.
        empty: Whether there is no output.
    """

    number: int
    mark: Mark | None
    empty: bool


class OutStream(Requests):
    """One stream.

    Args:
        connection: To the server, open.
        name: Of the stream.
        subject: Of the outputs.
        limit_s: How long the server may take to answer, with all that it is asked again.
    """

    def __init__(self, connection: Connection, name: str, subject: str, limit_s: float) -> None:
        super().__init__(connection, limit_s)
        self.name = name
        self.subject = subject

    def subject_of(self, letter: Letter) -> str:
        """What it is published to."""
        return self.subject if letter.is_output else f"{self.subject}.position"

    async def make(self, replicas: int) -> None:
        """Make it, if it is not there.

        Raises:
            Refused: It cannot be made.
            OtherStream: It is there, and cannot be written to as it must.
        """
        subjects = [self.subject, f"{self.subject}.position"]
        wanted = {
            "name": self.name,
            "description": "output of a job of flamestream",
            "subjects": subjects,
            "retention": "limits",
            "storage": "file",
            "num_replicas": replicas,
            "allow_rollup_hdrs": True,
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
        config = info["config"]
        if missing := [
            subject for subject in subjects if not any(_matches(subject, own) for own in config["subjects"])
        ]:
            raise OtherStream(f"stream {self.name} does not take subject {missing[0]}")
        for key in ("retention", "allow_rollup_hdrs"):
            if (found := config.get(key)) != wanted[key]:
                raise OtherStream(f"stream {self.name} has {key} = {found!r}, and {wanted[key]!r} is needed")

    async def last(self) -> Last:
        """How it ends now."""
        state = (await self.ask(f"STREAM.INFO.{self.name}"))["state"]
        found = [await self.last_of(self.name, subject) for subject in (self.subject, f"{self.subject}.position")]
        newest = max(
            (message for message in found if message is not None), key=lambda message: message.number, default=None
        )
        return Last(state["last_seq"], newest and _mark_of(newest), found[0] is None)

    async def store(self, letter: Letter, after: int) -> None:
        """Store a message right after another.

        Raises:
            Changed: Something has come in between. If the first answer was lost, that may be this very message.
            Refused: The server cannot store it.
        """
        headers = {**_headers(letter), _AFTER: str(after)}
        answer = checked(await self.request(self.subject_of(letter), letter.data, headers))
        if answer["seq"] != after + 1:
            raise Changed(0, f"it is stored already, as message {answer['seq']}")

    def sent(self, window: Sequence[Letter], after: int, way_back: str) -> list[tuple[str, str, bytes, bytes]]:
        """Messages that are sent all at once, as they go over the wire: the first is to be stored right after a message
        that is there, each of the others after the one before it. Only the last is answered.

        Numbers would not do for the others: somebody else might fill the gap that one of them has left.
        """
        found = []
        for place, letter in enumerate(window):
            headers = _headers(letter)
            headers |= {_AFTER_ID: _id(window[place - 1].mark)} if place else {_AFTER: str(after)}
            lines = [f"{name}: {value}" for name, value in headers.items()]
            found.append((self.subject_of(letter), "", "\r\n".join(("NATS/1.0", *lines, "\r\n")).encode(), letter.data))
        found[-1] = (found[-1][0], way_back, *found[-1][2:])
        return found

    @property
    def headers_bytes(self) -> int:
        """Most bytes of headers."""
        return _ROOM + 9 * 20 + 100

    async def forget_before(self, first: int) -> None:
        """Delete outputs of earlier series."""
        if first > 1:  # the server takes 1 for nothing said, and would delete them all
            await self.ask(f"STREAM.PURGE.{self.name}", {"filter": self.subject, "seq": first})


def _headers(letter: Letter) -> dict[str, str]:
    mark = letter.mark
    headers = {MARK: msgspec.json.encode(mark).decode()}
    if letter.is_output:
        headers["Nats-Msg-Id"] = _id(mark)
    else:
        headers["Nats-Rollup"] = "sub"  # the ones before are deleted
    return headers


def _id(mark: Mark) -> str:
    """Of a message: nobody but its owner makes another one of it."""
    return f"{mark.by}-{mark.number}"


def _mark_of(message: Message) -> Mark | None:
    try:
        return msgspec.json.decode(message.headers.get(MARK, ""), type=Mark)
    except msgspec.DecodeError:
        return None


def _matches(subject: str, pattern: str) -> bool:
    """Whether a pattern with wildcards has a subject without."""
    words, own = subject.split("."), pattern.split(".")
    if own[-1] == ">":
        words, own = words[: len(own) - 1], own[:-1]
        if len(words) < len(own) or len(subject.split(".")) == len(own):
            return False
    return len(words) == len(own) and all(mine in ("*", word) for word, mine in zip(words, own, strict=True))

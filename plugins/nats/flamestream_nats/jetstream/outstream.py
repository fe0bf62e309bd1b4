"""The stream of a sink: messages with marks, stored one right after another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from flamestream_nats.connection import Connection
from flamestream_nats.jetstream.stream import (
    NO_STREAM,
    Changed,
    Message,
    OtherStream,
    Refused,
    Requests,
    check_stream,
    checked,
    unlimited,
)

MARK: Final = "Flamestream-Mark"
"""Header of a message's mark."""

_AFTER: Final = "Nats-Expected-Last-Sequence"
_AFTER_ID: Final = "Nats-Expected-Last-Msg-Id"
_ROOM: Final = 200  # for the names and the rest of the headers


class Mark(NamedTuple):
    """State of the output up to and with a message.

    Attributes:
        of: Fingerprint of the output: the job's state, or flow and inputs.
        by: Id of the sink object that has stored it.
        series: Id of the output: one that is replaced begins a new series.
        number: Number of outputs in the series, with this one.
        time: Time up to which all outputs are stored, once `left` is 0.
        before: Time up to which all outputs are stored in any case,
        done: and number of outputs stored after it.
        left: Number of outputs of the batch still to come, or some number above 0.
        first: Number of the series' first message: older ones do not count. 0: all count.
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
        """Return the time up to which all outputs are stored."""
        return self.before if self.left else self.time


class Letter(NamedTuple):
    """A message to be stored: an output with its mark, or a mark alone."""

    mark: Mark
    data: bytes = b""
    is_output: bool = False


class Last(NamedTuple):
    """The end of a stream.

    Attributes:
        number: Number of its last message, which may have been deleted.
        mark: Mark of the newest message; None if that has no mark, or there is no message.
        empty: Whether there is no output.
    """

    number: int
    mark: Mark | None
    empty: bool


class OutStream(Requests):
    """One stream.

    Args:
        connection: An open connection to the server.
        name: The stream's name.
        subject: Subject of the outputs.
        limit_s: Seconds the server may take to answer, repeated requests included.
    """

    def __init__(self, connection: Connection, name: str, subject: str, limit_s: float) -> None:
        super().__init__(connection, limit_s)
        self.name = name
        self.subject = subject

    def subject_of(self, letter: Letter) -> str:
        """Return the subject a message is published to."""
        return self.subject if letter.is_output else f"{self.subject}.position"

    async def make(self, replicas: int) -> None:
        """Create the stream, if it does not exist.

        Raises:
            Refused: It cannot be created.
            OtherStream: It exists, and its configuration does not suit the sink.
        """
        subjects = [self.subject, f"{self.subject}.position"]
        wanted = {
            **unlimited(self.name, replicas),
            "description": "output of a job of flamestream",
            "subjects": subjects,
            "allow_rollup_hdrs": True,
        }
        config = await self.find_or_create(wanted)
        if missing := [
            subject for subject in subjects if not any(_matches(subject, own) for own in config["subjects"])
        ]:
            raise OtherStream(f"stream {self.name} does not take subject {missing[0]}")
        check_stream(config, wanted, "retention", "allow_rollup_hdrs")

    async def last(self) -> Last:
        """Return the end of the stream as it is now."""
        state = (await self.ask(f"STREAM.INFO.{self.name}"))["state"]
        found = [await self.last_of(self.name, subject) for subject in (self.subject, f"{self.subject}.position")]
        newest = max(
            (message for message in found if message is not None), key=lambda message: message.number, default=None
        )
        return Last(state["last_seq"], newest and _mark_of(newest), found[0] is None)

    async def last_if_any(self) -> Last:
        """Return the end of the stream as it is now; that of one without outputs, if there is no stream."""
        try:
            return await self.last()
        except Refused as error:
            if error.code != NO_STREAM:
                raise
            return Last(0, None, True)

    async def store(self, letter: Letter, after: int) -> None:
        """Store a message right after message number `after`.

        Raises:
            Changed: Another message has come in between. If the first answer was lost, that may be this very message.
            Refused: The server cannot store it.
        """
        headers = {**_headers(letter), _AFTER: str(after)}
        answer = checked(await self.request(self.subject_of(letter), letter.data, headers))
        if answer["seq"] != after + 1:
            raise Changed(0, f"it is stored already, as message {answer['seq']}")

    def sent(self, window: Sequence[Letter], after: int, way_back: str) -> list[tuple[str, str, bytes, bytes]]:
        """Return the letters of a window in wire format, to be published all at once.

        The first is to be stored right after message number `after`, each of the others after the one before it. Only
        the last is answered, to `way_back`. Each refers to the one before by its id: by number, another client's
        message might take the place of a lost one.
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
        """Return the most bytes the headers may have."""
        return _ROOM + 9 * 20 + 100

    async def forget_before(self, first: int) -> None:
        """Delete outputs of earlier series, whose numbers are below `first`."""
        if first > 1:  # the server takes 1 as unset, and would delete all messages
            await self.ask(f"STREAM.PURGE.{self.name}", {"filter": self.subject, "seq": first})


def _headers(letter: Letter) -> dict[str, str]:
    mark = letter.mark
    headers = {MARK: msgspec.json.encode(mark).decode()}
    if letter.is_output:
        headers["Nats-Msg-Id"] = _id(mark)
    else:
        headers["Nats-Rollup"] = "sub"  # deletes the earlier ones
    return headers


def _id(mark: Mark) -> str:
    """Return a message's id; no other sink object makes the same one."""
    return f"{mark.by}-{mark.number}"


def _mark_of(message: Message) -> Mark | None:
    try:
        return msgspec.json.decode(message.headers.get(MARK, ""), type=Mark)
    except ValueError:
        return None


def _matches(subject: str, pattern: str) -> bool:
    """Return whether a pattern with wildcards matches a subject without."""
    words, own = subject.split("."), pattern.split(".")
    if own[-1] == ">":
        words, own = words[: len(own) - 1], own[:-1]
        if len(words) < len(own) or len(subject.split(".")) == len(own):
            return False
    return len(words) == len(own) and all(mine in ("*", word) for word, mine in zip(words, own, strict=True))

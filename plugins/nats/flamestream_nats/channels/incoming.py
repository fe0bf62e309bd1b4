"""The receiver's end of a channel: drops duplicates, asks for missing frames."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from flamecore.abc.transport import Delivery
from flamecore.errors import FrameError
from flamecore.toolkit.frames import MAX_BODY_BYTES, Frame, Sequences
from flamestream_nats.channels.envelope import ASK, MORE, TELL, Kind, Letter, refused
from flamestream_nats.channels.line import PROBE, STATE, Line
from flamestream_nats.options import MOST_BYTES, MOST_FRAMES


class Arrived(NamedTuple):
    """A message in the queue, with what its channel needs to know once it is read."""

    delivery: Delivery
    channel: Incoming | None
    sequence: int
    size: int
    tell: bool


class Incoming:
    """The receiver's end.

    Args:
        line: The transport.
        receiver: Address of this end.
        birth: Birth number of this end's endpoint.
        sender: Address of the other end.
        reply: The sender's subject for answers.
        location: The sender's location.
        number: Number of this channel at the sender; a later channel has a higher number.
    """

    def __init__(
        self, line: Line, receiver: str, birth: int, sender: str, reply: str, location: str, number: int
    ) -> None:
        self.sender = sender
        self.reply = reply
        self.location = location
        self.number = number
        self.ended = asyncio.Event()
        """Set once the sender's end is closed."""
        self._line = line
        self._receiver = receiver
        self._birth = birth
        self._sequences = Sequences()
        self._received = 0
        self._read = 0
        self._unread = 0
        self._unread_bytes = 0
        self._parts: list[bytes] = []
        self._parts_bytes = 0
        self._asked = False

    def data(self, letter: Letter) -> Arrived | None:
        """Take a frame; return the message it completes, or None.

        Raises:
            FrameError: The frame is refused; its sender will send it again.
        """
        flags, frame = letter.flags, letter.frame
        arrived = None
        if frame.sequence == self._received + 1:
            size = self._parts_bytes + len(frame.body)
            if size > MAX_BODY_BYTES:
                raise refused("oversized", f"parts of a message that is larger than {MAX_BODY_BYTES} bytes")
            if self._unread >= MOST_FRAMES or self._unread_bytes >= MOST_BYTES:
                raise refused("flood", "a message of a sender that does not wait for room")
            if not flags & MORE:
                arrived = self._complete(frame, size, bool(flags & TELL))
        try:
            if not self._sequences.admit(frame):
                raise refused("duplicate", "a frame that has come before")
        except FrameError as gap:
            if frame.sequence <= self._received:
                raise
            if not self._asked:
                self._asked = True
                self.state(ask=True)
            raise refused("gap", "a frame after others that are missing") from gap
        self._asked = False
        self._received = frame.sequence
        if arrived is None:
            self._parts.append(frame.body)
            self._parts_bytes += len(frame.body)
        else:
            self._parts.clear()
            self._parts_bytes = 0
            self._unread += 1
            self._unread_bytes += arrived.size
        return arrived

    def _complete(self, frame: Frame, size: int, tell: bool) -> Arrived:
        body = b"".join((*self._parts, frame.body)) if self._parts else frame.body
        try:
            message = self._line.decode(body)
        except Exception as error:  # a stranger's bytes may be anything
            what = f"a message that cannot be decoded: {error}"
            raise refused("undecodable", what, self._receiver, self.sender) from error
        return Arrived(Delivery(self.sender, message), self, frame.sequence, size, tell)

    def read(self, arrived: Arrived) -> None:
        """Make room for another message after one was read."""
        self._read = arrived.sequence
        self._unread -= 1
        self._unread_bytes -= arrived.size
        if arrived.tell and not self.ended.is_set():
            self.state()

    def probe(self, letter: Letter) -> None:
        """Answer a probe of the sender."""
        self.state(PROBE.unpack(letter.frame.body)[0])

    def state(self, probe: int = 0, *, ask: bool = False) -> None:
        """Tell the sender which frames have arrived and which have been read."""
        frame = Frame(self.sender, self._receiver, self._received, STATE.pack(self._read, probe))
        self._line.post(Kind.STATE, ASK if ask else 0, self._birth, frame, self.reply, self._line.home)

    def close(self) -> None:
        """Tell the sender that this end is closed."""
        frame = Frame(self.sender, self._receiver, self._received, b"")
        self._line.post(Kind.CLOSED, 0, self._birth, frame, self.reply, self._line.home)

"""The sender's end of a channel: repeats lost frames, and keeps to a window.

The server forgets messages it cannot deliver, and disconnects a receiver that is too slow. So every frame is kept until
the receiver's process has it, and no more messages are under way than fit the window. All frames and probes of a
channel take the same way in order: frames that a probe finds missing are lost, and are sent again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from flamecore.errors import FlameError, FrameError, PeerGoneError
from flamecore.toolkit.frames import Frame, Sequences
from flamecore.toolkit.wait_queue import WaitQueue
from flamestream_nats.channels.envelope import ASK, MORE, TELL, Kind, Letter, refused
from flamestream_nats.channels.line import PROBE, STATE, Line
from flamestream_nats.channels.peers import FailureDetector

_ROUNDS: Final = 20
"""Most retransmissions of the same frames before the channel is given up."""


class Outgoing:
    """The sender's end.

    Args:
        line: The transport.
        sender: Address of this end.
        birth: Birth number of this end's endpoint.
        receiver: Address of the other end.
        subject: Subject of letters to the receiver.
        reply: Subject of answers.
        location: The receiver's location; empty until it has answered, if it is not known.
    """

    def __init__(
        self, line: Line, sender: str, birth: int, receiver: str, subject: str, reply: str, location: str
    ) -> None:
        self.sender = sender
        self.receiver = receiver
        self.location = location
        self.error: FlameError | None = None
        self.settled = asyncio.Event()
        """Set while the receiver's process has everything, or once the channel has failed."""
        self.detector = FailureDetector(line.options)
        self._line = line
        self._way = (birth, subject, reply)
        self._sequences = Sequences()
        self._last = 0
        self._received = 0
        self._kept: deque[tuple[int, bytes]] = deque()
        self._unread: deque[tuple[int, int]] = deque()
        self._unread_bytes = 0
        self._untold = 0.0
        self._receivers_birth: int | None = None
        self._waiting: WaitQueue[bytes] = WaitQueue()
        self._probes: deque[tuple[int, int]] = deque(maxlen=64)
        self._probe = 0
        self._rounds = 0
        self.settled.set()

    # -- sending -----------------------------------------------------------------------------------------------------

    def has_room(self) -> bool:
        """Return whether a message may be pushed now, ahead of no waiting sender."""
        return not self._waiting and self._fits()

    def _fits(self) -> bool:
        options = self._line.options
        return len(self._unread) < options.window_frames and self._unread_bytes < options.window_bytes

    def push(self, body: bytes) -> None:
        """Send a message. Raises the channel's error, if it has failed."""
        if self.error is not None:
            raise self.error
        options, (birth, subject, reply) = self._line.options, self._way
        # The receiver reports its reads four times a window: often enough that the window never runs dry.
        self._untold += max(1 / options.window_frames, len(body) / options.window_bytes)
        tell = TELL if self._untold >= 0.25 else 0
        if tell:
            self._untold = 0.0
        room = self._line.room(self.sender, self.receiver)
        for start in range(0, max(len(body), 1), room):
            end = start + room
            self._last = self._sequences.next(self.sender, self.receiver)
            frame = Frame(self.sender, self.receiver, self._last, body if end - start >= len(body) else body[start:end])
            flags = tell if end >= len(body) else MORE
            self._kept.append((self._last, self._line.post(Kind.DATA, flags, birth, frame, subject, reply)))
        self._unread.append((self._last, len(body)))
        self._unread_bytes += len(body)
        self.settled.clear()

    async def wait(self, body: bytes) -> None:
        """Push a message when its turn comes.

        Raises:
            SendTimeout: There is no room within `send_timeout_s`.
            PeerGoneError: There is no receiver any more.
        """
        await self._waiting.send(
            body,
            None if self._line.watched(self.location) else self._line.options.send_timeout_s,
            sender=self.sender,
            receiver=self.receiver,
            unread=lambda: f"{len(self._unread)} messages, {self._unread_bytes} bytes are on their way or unread",
        )

    def probe(self) -> None:
        """Ask the receiver which frames have arrived."""
        birth, subject, reply = self._way
        self._probe += 1
        self._probes.append((self._probe, self._last))
        frame = Frame(self.sender, self.receiver, self._last, PROBE.pack(self._probe))
        self._line.post(Kind.PROBE, 0, birth, frame, subject, reply)

    def bye(self) -> None:
        """Tell the receiver that this end sends no more."""
        birth, subject, reply = self._way
        self._line.post(Kind.BYE, 0, birth, Frame(self.sender, self.receiver, self._last, b""), subject, reply)

    # -- answers -----------------------------------------------------------------------------------------------------

    def state(self, letter: Letter, location: str) -> None:
        """Handle a report of the receiver; an outdated report does no harm.

        Raises:
            FrameError: The report is refused.
        """
        received, (read, probe) = letter.frame.sequence, STATE.unpack(letter.frame.body)
        if received > self._last or read > received:
            raise refused("body", "word of frames that were never sent")
        if self._receivers_birth not in (None, letter.birth):
            return self._line.broken(self, self._replaced())
        self._receivers_birth = letter.birth
        self.location = location
        self.detector.heard()
        self._received = max(self._received, received)
        while self._kept and self._kept[0][0] <= received:
            self._kept.popleft()
            self._rounds = 0
        while self._unread and self._unread[0][0] <= read:
            self._unread_bytes -= self._unread.popleft()[1]
        if not self._kept:
            self.settled.set()
        if any(number == probe and received < last for number, last in self._probes):
            self._send_again()
        elif letter.flags & ASK:
            self.probe()
        if self.error is None:
            self._waiting.admit(self._fits, self.push)
        return None

    def _send_again(self) -> None:
        self._rounds += 1
        if self._rounds > _ROUNDS:
            return self._line.broken(self, self._hopeless())
        self._probes.clear()  # they are older than the frames sent now
        return self.repeat()

    def repeat(self) -> None:
        """Send again everything that is not known to have arrived."""
        _, subject, reply = self._way
        for _, data in self._kept:
            self._line.post_again(subject, reply, data)

    def tick(self) -> None:
        """Probe the receiver after one `heartbeat_s`, or fail if it is gone."""
        if not self._kept and not self._waiting:
            return
        if reason := self.detector.tick(watched=self._line.watched(self.location)):
            text = f"nobody is at {self.receiver!r}: {reason}"
            self.fail(PeerGoneError(text, address=self.sender, peer=self.receiver))
        else:
            self.probe()

    def renew(self) -> None:
        """Find out what was lost while the connection was broken."""
        self.detector.renew()
        if self._kept or self._waiting:
            self.probe()

    def give_up_waiting(self, error: FlameError) -> None:
        """Fail all senders that wait for room."""
        self._waiting.refuse(lambda _: error)

    def fail(self, error: FlameError) -> None:
        """Fail the channel and its waiting senders; drop the unconfirmed frames."""
        if self.error is not None:
            return
        self.error = error
        self._kept.clear()
        self.settled.set()
        self.give_up_waiting(error)

    def _replaced(self) -> FrameError:
        return FrameError(
            f"{self.receiver} is not the one any more that {self.sender} has sent its first {self._received} frames to",
            hint="Does another process use this address?",
            address=self.sender,
            peer=self.receiver,
            reason="replaced",
        )

    def _hopeless(self) -> FrameError:
        return FrameError(
            f"frames from {self.sender} to {self.receiver} are lost again and again, from number {self._kept[0][0]} on",
            hint="Does the receiver refuse them? Do both processes run one version, with one configuration?",
            address=self.sender,
            peer=self.receiver,
            reason="lost",
        )

"""The sender's end of a channel: numbers frames, keeps them, and obeys a window.

A broken connection loses what was on its way. So every frame is kept until the receiver's process acknowledges it, and
is sent again over the next connection; the receiver drops duplicates by their number. And no more frames are on their
way than fit a window, until the receiver's process acknowledges that they have been read.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

from flamecore.errors import FlameError, PeerGoneError
from flamecore.toolkit.frames import Frame, Framing
from flamecore.toolkit.links.options import LinkOptions
from flamecore.toolkit.wait_queue import WaitQueue


class Line(Protocol):
    """The link to the receiver, as a channel sees it."""

    options: LinkOptions
    framing: Framing

    @property
    def carries(self) -> bool:
        """Return whether a connection exists, or did and will be mended."""

    @property
    def send_timeout_s(self) -> float | None:
        """Return how long to wait for room; None: until the other process is said to be gone."""

    def post(self, data: bytes) -> None:
        """Write data in the order of these calls, as soon as there is a connection."""


class Outgoing:
    """The sender's end of a channel.

    Args:
        sender: Address of the sender.
        receiver: Address of the receiver, which lives in another process.
        line: The link to that process.
    """

    def __init__(self, sender: str, receiver: str, line: Line) -> None:
        self.sender = sender
        self.receiver = receiver
        self.kept: deque[bytes] = deque()
        """Frames that are not known to have arrived, in order."""
        self.settled = asyncio.Event()
        """Set while nothing is kept."""
        self.settled.set()
        self._line = line
        self._sent = 0
        self._read = 0
        self._nobody = 0
        self._unread: deque[int] = deque()  # sizes of frames that are not known to have been read
        self._unread_bytes = 0
        self._waiting: WaitQueue[bytes] = WaitQueue()
        self._notice: PeerGoneError | None = None
        self._error: FlameError | None = None

    # -- sending -----------------------------------------------------------------------------------------------------

    def has_room(self) -> bool:
        """Return whether a message may be pushed now, ahead of no waiting sender.

        Raises:
            TransportError: There is no receiver.
        """
        if self._error is not None:
            raise self._error
        if self._notice is not None:
            notice, self._notice = self._notice, None
            raise notice
        return not self._waiting and self._fits()

    def _fits(self) -> bool:
        options = self._line.options
        return (
            self._line.carries
            and len(self._unread) < options.window_frames
            and self._unread_bytes < options.window_bytes
        )

    def push(self, body: bytes) -> None:
        """Send a message for which there is room.

        Raises:
            FrameError: It is larger than a receiver accepts.
        """
        data = self._line.framing.wrap(Frame(self.sender, self.receiver, self._sent + 1, body))
        self._sent += 1
        self.kept.append(data)
        self._unread.append(len(body))
        self._unread_bytes += len(body)
        self.settled.clear()
        self._line.post(data)

    async def wait(self, body: bytes) -> None:
        """Push a message when its turn comes.

        Raises:
            SendTimeout: There is no room within `send_timeout_s`.
            TransportError: There is no receiver, or no longer.
            FrameError: The message is larger than a receiver accepts.
        """
        await self._waiting.send(
            body,
            self._line.send_timeout_s,
            sender=self.sender,
            receiver=self.receiver,
            unread=lambda: f"{len(self._unread)} messages, {self._unread_bytes} bytes are on their way or unread",
        )

    def admit(self) -> None:
        """Push waiting messages for which there is room now."""
        self._waiting.admit(self._fits, self.push)

    # -- answers -----------------------------------------------------------------------------------------------------

    def told(self, arrived: int, read: int, nobody: int) -> bool:
        """Process an acknowledgement: last frames that arrived, were read, were unbound.

        Returns:
            Whether it acknowledges the arrival of more frames.
        """
        before = self._sent - len(self.kept)
        for _ in range(min(arrived, self._sent) - before):
            self.kept.popleft()
        for _ in range(min(read, self._sent) - self._read):
            self._unread_bytes -= self._unread.popleft()
            self._read += 1
        if not self.kept:
            self.settled.set()
        if nobody > self._nobody:
            self._nobody = nobody
            text = f"no endpoint is bound to {self.receiver}, or no longer"
            error = PeerGoneError(text, address=self.sender, peer=self.receiver)
            if not self._waiting.refuse(lambda _: error):
                self._notice = error  # for the next send
        self.admit()
        return arrived > before

    def fail(self, error: FlameError) -> None:
        """Fail waiting senders and drop the kept frames: the link has ended."""
        self._error = error
        self.kept.clear()
        self.settled.set()
        self._waiting.refuse(lambda _: error)

    def abandon(self, error: FlameError) -> None:
        """Fail the senders that wait for room: the sender closes."""
        self._waiting.refuse(lambda _: error)

"""What a process knows of another one that sends to it: its channels, and what it is still to be told of them."""

from __future__ import annotations

import asyncio
import struct
from typing import Final, NamedTuple

from flamecore.errors import FrameError
from flamecore.toolkit.frames import Frame, Framing, Sequences
from flamestream_grpc.options import MOST_BYTES, MOST_FRAMES, Options

_TOLD: Final = struct.Struct(">QQ")
_DELAY_S: Final = 0.02
"""How long word of what has arrived may wait for more to tell; nobody waits for it while the window is half open."""
_CHANNELS: Final = 4096
"""Most channels from one process."""
HELLO: Final = Frame("", "", 0, b"hello")
"""What a process shows when it connects: whoever can unwrap it is of the same version, job and epoch."""
GOODBYE: Final = Frame("", "", 0, b"goodbye")
"""What a process that closes says last. A connection that ends without it is broken."""


class Told(NamedTuple):
    """What is said of a channel on the way back.

    Attributes:
        arrived: Number of the last frame that has arrived.
        read: Number of the last one that has been read.
        nobody: Number of the last one that found nobody bound to the receiver's address; 0 if all found somebody.
    """

    sender: str
    receiver: str
    arrived: int
    read: int
    nobody: int


_AGAIN: Final = frozenset({"short", "magic", "length", "oversized", "damaged"})
"""Refused for what may have happened on the way: worth another try."""


def refusal(error: FrameError) -> Frame:
    """What a process is told when it is refused; its number says whether another try is worth it."""
    return Frame("", "", int(error.reason in _AGAIN), error.what.encode())


def told(frame: Frame) -> Told:
    """What a frame on the way back says.

    Raises:
        FrameError: It is a refusal, for reason `refused`, or `again` if another try is worth it; or it says nothing
            that is known here.
    """
    if not frame.sender:
        text = frame.body.decode(errors="replace")
        raise FrameError(text, address="", peer="", reason="again" if frame.sequence else "refused")
    if len(frame.body) != _TOLD.size:
        raise refused("told", f"a reply of {len(frame.body)} bytes")
    return Told(frame.sender, frame.receiver, frame.sequence, *_TOLD.unpack(frame.body))


def refused(reason: str, what: str) -> FrameError:
    """The error for what is dropped and counted."""
    return FrameError(f"refused {what}", address="", peer="", reason=reason)


class Incoming:
    """The receiver's end of a channel."""

    __slots__ = ("_peer", "_unread_bytes", "arrived", "nobody", "read", "receiver", "sender")

    def __init__(self, sender: str, receiver: str, peer: Peer) -> None:
        self.sender = sender
        self.receiver = receiver
        self.arrived = 0
        self.read = 0
        self.nobody = 0
        self._peer = peer
        self._unread_bytes = 0

    def check_room(self, size: int) -> None:
        """Refuse more than any window holds.

        Raises:
            FrameError: There is too much unread.
        """
        if self.arrived - self.read >= MOST_FRAMES or self._unread_bytes >= MOST_BYTES:
            raise refused("window", f"a message of {size} bytes from {self.sender}, which does not wait for room")

    def arrive(self, frame: Frame) -> None:
        """The next frame is here."""
        self.arrived = frame.sequence
        self._unread_bytes += len(frame.body)
        self._peer.tell(self, len(frame.body))

    def consume(self, size: int) -> None:
        """A message has been read, or will never be."""
        self.read += 1
        self._unread_bytes -= size
        self._peer.tell(self, size)

    def refuse(self, size: int) -> None:
        """What has arrived last found nobody bound to the receiver's address."""
        self.nobody = self.arrived
        self.consume(size)


class Peer:
    """Another process, as one that sends.

    Args:
        location: Where it listens itself, by its own word.
        instance: Random text it has drawn when it started: its successor at the same location has another.
        options: Of the transport.
        speaks_as: What the addresses begin with that it may send from.
    """

    def __init__(self, location: str, instance: str, options: Options, speaks_as: tuple[str, ...] = ("",)) -> None:
        self.location = location
        self.instance = instance
        self.speaks_as = speaks_as
        self.channels: dict[tuple[str, str], Incoming] = {}
        self.sequences = Sequences()
        self.telling: asyncio.Task[None] | None = None
        """Tells it what there is to tell, over its newest connection."""
        self._news: dict[Incoming, None] = {}
        self._options = options
        self._untold = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._woken = asyncio.Event()

    def channel(self, frame: Frame) -> Incoming:
        """The channel of a frame.

        Raises:
            FrameError: There are too many, or it may not send from there.
        """
        key = (frame.sender, frame.receiver)
        channel = self.channels.get(key)
        if channel is None:
            if len(self.channels) >= _CHANNELS:
                raise refused("channels", f"a frame of one channel too many; {_CHANNELS} are the limit")
            if not frame.sender.startswith(self.speaks_as):
                raise refused("role", f"a frame of {frame.sender}, whose certificate is for another role")
            channel = self.channels[key] = Incoming(*key, self)
        return channel

    # -- what it is told ---------------------------------------------------------------------------------------------

    def tell(self, channel: Incoming, size: int) -> None:
        """There is something new to tell of a channel: at once if it is much, a little later if not."""
        self._news[channel] = None
        # Counted when it arrives and when it is read: four times in a window, so that no sender ever runs dry.
        self._untold += max(1 / self._options.window_frames, size / self._options.window_bytes)
        if self._untold >= 0.5:
            self.hurry()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_DELAY_S, self.hurry)

    def tell_all(self) -> None:
        """Say everything again: what was said last may have been lost with its connection."""
        if self.channels:
            self._news = dict.fromkeys(self.channels.values())
            self.hurry()

    def hurry(self) -> None:
        """Tell now what there is to tell."""
        self.rest()
        self._woken.set()

    def rest(self) -> None:
        """Cancel what is scheduled."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def news(self) -> None:
        """Wait until there is something to tell, and it is due."""
        await self._woken.wait()

    def take_news(self, framing: Framing) -> bytes:
        """What there is to tell; empty if there is nothing."""
        self._woken.clear()
        self._untold = 0.0
        news, self._news = self._news, {}
        data = []
        for channel in news:
            body = _TOLD.pack(channel.read, channel.nobody)
            data.append(framing.wrap(Frame(channel.sender, channel.receiver, channel.arrived, body)))
        return b"".join(data)

"""Receiving side of another process: its channels and their acknowledgements."""

from __future__ import annotations

import asyncio
import struct
from typing import Final, NamedTuple, TypeVar

from flamecore.errors import FrameError
from flamecore.toolkit.frames import Frame, Framing, Sequences
from flamecore.toolkit.links.budget import Budget
from flamecore.toolkit.links.connection import Role
from flamecore.toolkit.links.options import MOST_BYTES, MOST_FRAMES, LinkOptions

E = TypeVar("E", bound=Exception)

_TOLD: Final = struct.Struct(">QQ")
_DELAY_S: Final = 0.02
"""Longest delay of an acknowledgement; none waits for it while the window is half open."""
_CHANNELS: Final = 4096
"""Most channels from one process."""
HELLO: Final = Frame("", "", 0, b"hello")
"""The frame a process shows when it connects: only the same version, job and incarnation can unwrap it."""
GOODBYE: Final = Frame("", "", 0, b"goodbye")
"""The last frame of a process that closes. A connection that ends without it is broken."""


class Told(NamedTuple):
    """Acknowledgement of a channel.

    Attributes:
        sender: Address of the channel's sender.
        receiver: Address of the channel's receiver.
        arrived: Number of the last frame that has arrived.
        read: Number of the last one that has been read.
        nobody: Number of the last one whose receiver was not bound; 0 if there was none.
    """

    sender: str
    receiver: str
    arrived: int
    read: int
    nobody: int


_AGAIN: Final = frozenset({"short", "magic", "length", "oversized", "damaged"})
"""Reasons for a refusal that may come from damage on the way: worth another try."""


def refusal(error: FrameError) -> Frame:
    """Return the frame that refuses a process; number 1 says to try again, 0 not to."""
    return Frame("", "", int(error.reason in _AGAIN), error.what.encode())


def told(frame: Frame) -> Told:
    """Return the acknowledgement in a frame on the way back.

    Raises:
        FrameError: It is a refusal, for reason `refused`, or `again` if another try is worth it; or it is unknown.
    """
    if not frame.sender:
        text = frame.body.decode(errors="replace")
        raise FrameError(text, address="", peer="", reason="again" if frame.sequence else "refused")
    if len(frame.body) != _TOLD.size:
        raise refused("told", f"a reply of {len(frame.body)} bytes")
    return Told(frame.sender, frame.receiver, frame.sequence, *_TOLD.unpack(frame.body))


def refused(reason: str, what: str) -> FrameError:
    """Return the error of a message that is dropped and counted."""
    return FrameError(f"refused {what}", address="", peer="", reason=reason)


def bare(error: E) -> E:
    """Return an error without the frames and the errors that it comes from.

    These hold what was received. A task that ends with the error, and whoever awaits it, would be a cycle of
    references with them, which keeps all of it until the garbage collector comes.
    """
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


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
        """Refuse a frame that exceeds the largest window.

        Raises:
            FrameError: There is too much unread.
        """
        if self.arrived - self.read >= MOST_FRAMES or self._unread_bytes >= MOST_BYTES:
            raise refused("window", f"a message of {size} bytes from {self.sender}, which does not wait for room")

    def arrive(self, frame: Frame) -> None:
        """Count the next frame, and acknowledge it."""
        self.arrived = frame.sequence
        self._unread_bytes += len(frame.body)
        self._peer.unread.hold(len(frame.body))
        self._peer.tell(self, len(frame.body))

    def consume(self, size: int) -> None:
        """Count a message as read, though it may have been discarded."""
        self.read += 1
        self._unread_bytes -= size
        self._peer.unread.free(size)
        self._peer.tell(self, size)

    def refuse(self, size: int) -> None:
        """Acknowledge the last frame as one whose receiver is not bound."""
        self.nobody = self.arrived
        self.consume(size)


class Peer:
    """Another process, as a sender.

    Args:
        location: Its own location, as it says.
        instance: Random text it has drawn when it started: its successor at the same location has another.
        options: The transport's options.
        unread: The budget of what all peers have sent and nobody has read.
        roles: Its roles; it may send what one of them may.
    """

    def __init__(
        self, location: str, instance: str, options: LinkOptions, unread: Budget, roles: tuple[Role, ...] = (Role(),)
    ) -> None:
        self.location = location
        self.instance = instance
        self.roles = roles
        self.unread = unread
        self.channels: dict[tuple[str, str], Incoming] = {}
        self.sequences = Sequences()
        self.telling: asyncio.Task[None] | None = None
        """Task that sends acknowledgements over the peer's newest connection."""
        self._news: dict[Incoming, None] = {}
        self._options = options
        self._untold = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._woken = asyncio.Event()

    def channel(self, frame: Frame) -> Incoming:
        """Return the channel of a frame.

        Raises:
            FrameError: There are too many channels, or the peer may not send between these addresses.
        """
        key = (frame.sender, frame.receiver)
        channel = self.channels.get(key)
        if channel is None:
            if len(self.channels) >= _CHANNELS:
                raise refused("channels", f"a frame of one channel too many; {_CHANNELS} are the limit")
            if not any(role.allows(*key) for role in self.roles):
                names = " and ".join(role.name for role in self.roles) or "no role of a job"
                way = f"from {frame.sender} to {frame.receiver}"
                raise refused("role", f"a message {way}, whose certificate is for another role: {names}")
            channel = self.channels[key] = Incoming(*key, self)
        return channel

    # -- acknowledgements ---------------------------------------------------------------------------------------------

    def tell(self, channel: Incoming, size: int) -> None:
        """Schedule an acknowledgement of a channel: at once if much has come, else soon."""
        self._news[channel] = None
        # Counted when it arrives and when it is read: four times in a window, so that no sender ever runs dry.
        self._untold += max(1 / self._options.window_frames, size / self._options.window_bytes)
        if self._untold >= 0.5:
            self.hurry()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_DELAY_S, self.hurry)

    def tell_all(self) -> None:
        """Acknowledge all channels again: the last one may be lost with its connection."""
        if self.channels:
            self._news = dict.fromkeys(self.channels.values())
            self.hurry()

    def hurry(self) -> None:
        """Send the pending acknowledgements now."""
        self.rest()
        self._woken.set()

    def rest(self) -> None:
        """Cancel the scheduled acknowledgement."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def news(self) -> None:
        """Wait until acknowledgements are due."""
        await self._woken.wait()

    def take_news(self, framing: Framing) -> bytes:
        """Take the pending acknowledgements, as bytes; empty if there are none."""
        self._woken.clear()
        self._untold = 0.0
        news, self._news = self._news, {}
        data = []
        for channel in news:
            body = _TOLD.pack(channel.read, channel.nobody)
            data.append(framing.wrap(Frame(channel.sender, channel.receiver, channel.arrived, body)))
        return b"".join(data)

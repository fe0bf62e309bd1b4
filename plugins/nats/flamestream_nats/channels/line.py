"""What the two ends of a channel need of the process they are in, and the bodies of what they say to each other."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final, Protocol

from flamecore.errors import FlameError
from flamecore.toolkit.frames import Frame
from flamestream_nats.channels.envelope import Kind
from flamestream_nats.options import Options

if TYPE_CHECKING:
    from flamestream_nats.channels.outgoing import Outgoing

PROBE: Final = struct.Struct(">Q")
"""Body of a probe: its number."""
STATE: Final = struct.Struct(">QQ")
"""Body of a state: number of the last frame read, and of the probe that it answers or 0."""


class Line(Protocol):
    """The process that a channel is in."""

    options: Options
    home: str
    """Subject of this process: the way back of what it answers."""

    def room(self, sender: str, receiver: str) -> int:
        """Most bytes of a frame's body."""

    def post(self, kind: Kind, flags: int, birth: int, frame: Frame, subject: str, reply: str) -> bytes:
        """Seal and publish; returns what was published."""

    def post_again(self, subject: str, reply: str, data: bytes) -> None:
        """Publish what was sealed before."""

    def decode(self, body: bytes) -> Any:
        """The message of some bytes. Raises CodecError."""

    def broken(self, channel: Outgoing, error: FlameError) -> None:
        """A channel has lost what it carried."""

"""The process as the ends of its channels see it, and their control messages."""

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
    """The process of a channel's end."""

    options: Options
    home: str
    """Subject of this process: the way back of its answers."""

    def watched(self, location: str) -> bool:
        """Return whether somebody else says when the process at a location is gone."""

    def room(self, sender: str, receiver: str) -> int:
        """Return the most bytes a frame's body may have."""

    def post(self, kind: Kind, flags: int, birth: int, frame: Frame, subject: str, reply: str) -> bytes:
        """Seal a letter and publish it; return the bytes published."""

    def post_again(self, subject: str, reply: str, data: bytes) -> None:
        """Publish a letter that was sealed before."""

    def decode(self, body: bytes) -> Any:
        """Decode a message. Raises CodecError."""

    def broken(self, channel: Outgoing, error: FlameError) -> None:
        """Fail a channel that has lost frames, and report its peer as lost."""

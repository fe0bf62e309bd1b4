"""Options that every transport with links has."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from flamecore.toolkit.frames import MAX_BODY_BYTES

MOST_FRAMES: Final = 2**16
MOST_BYTES: Final = 2**30
"""Largest windows; a peer with more unread on one channel does not wait for room, and is refused."""

Seconds = Annotated[float, msgspec.Meta(gt=0, le=86_400)]


class LinkOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of links.

    Attributes:
        max_frame_bytes: Largest message.
        window_frames: Most messages on their way from one sender to one receiver, until the receiver has read them.
        window_bytes: Most bytes on that way; one message more may be under way, however large.
        send_timeout_s: Maximum wait of `send` for a receiver that has no room.
        connect_timeout_s: Maximum time for the first connection to a process; attempts are repeated until then.
        reconnect_timeout_s: Time after which the process at the end of a broken connection counts as lost; one that
            listens, and is only busy, has `connect_timeout_s`.
    """

    max_frame_bytes: Annotated[int, msgspec.Meta(ge=1024, le=MOST_BYTES)] = MAX_BODY_BYTES
    window_frames: Annotated[int, msgspec.Meta(ge=1, le=MOST_FRAMES)] = 1024
    window_bytes: Annotated[int, msgspec.Meta(ge=1, le=MOST_BYTES)] = 4 * 2**20
    send_timeout_s: Seconds = 30.0
    connect_timeout_s: Seconds = 10.0
    reconnect_timeout_s: Seconds = 0.5

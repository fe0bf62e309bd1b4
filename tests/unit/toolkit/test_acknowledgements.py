"""Acknowledgements of a process's channels: when they are sent, and what they hold."""

from __future__ import annotations

import asyncio

from flamecore.toolkit.frames import Frame, Framing
from flamecore.toolkit.links.budget import Budget
from flamecore.toolkit.links.incoming import Incoming, Peer
from flamecore.toolkit.links.options import LinkOptions

FRAMING = Framing("job", 1)


def peer(**options: int) -> Peer:
    return Peer("there", "instance", LinkOptions(**options), Budget(2**20))


def channel_of(sender: Peer) -> Incoming:
    return sender.channel(Frame("a", "b", 1, b""))


async def is_due(sender: Peer) -> bool:
    """Return whether acknowledgements are due now, without waiting for any timer."""
    waiting = asyncio.create_task(sender.news())
    await asyncio.sleep(0)
    is_now = waiting.done()
    waiting.cancel()
    return is_now


def test_acknowledgements_are_due_at_once_when_half_a_window_has_come() -> None:
    async def main() -> None:
        for sender, size, frames in ((peer(window_frames=8), 1, 4), (peer(window_bytes=1000), 125, 4)):
            channel = channel_of(sender)
            for again in range(2):  # what is acknowledged counts no more
                for number in range(frames):
                    assert not await is_due(sender)
                    channel.arrive(Frame("a", "b", again * frames + number + 1, bytes(size)))
                assert await is_due(sender)
                assert sender.take_news(FRAMING)
            sender.rest()

    asyncio.run(main())

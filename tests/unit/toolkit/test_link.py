"""A link to another process: how it ends, and whom it tells."""

from __future__ import annotations

import asyncio

from flamecore.errors import FlameError, FrameError, PeerGoneError
from flamecore.testing.progress import patience
from flamecore.toolkit.frames import Framing
from flamecore.toolkit.links.connection import Dialed
from flamecore.toolkit.links.link import Link
from flamecore.toolkit.links.options import LinkOptions

LIMIT_S = 20.0


class Home:
    """A transport whose attempts to connect fail."""

    unreachable_hint = ""
    waits = True

    def __init__(self, error: Exception) -> None:
        self.options, self.framing = LinkOptions(), Framing("job", 1)
        self.ended: asyncio.Future[tuple[FlameError, bool]] = asyncio.get_running_loop().create_future()
        self._error = error

    async def dial(self, location: str, deadline: float) -> Dialed:
        raise self._error

    async def reachable(self, location: str) -> bool:
        return False

    def count_refused(self, error: FrameError) -> None:
        raise error

    def link_ended(self, link: Link, error: FlameError, *, lost: bool) -> None:
        self.ended.set_result((error, lost))


def test_a_fault_of_the_connection_is_a_lost_process() -> None:
    async def main() -> None:
        home = Home(fault := ZeroDivisionError("a fault"))
        link = Link("there", home)
        async with patience(LIMIT_S):
            error, lost = await home.ended
        assert lost
        assert isinstance(error, PeerGoneError)
        assert error.__cause__ is fault
        assert not link.carries

    asyncio.run(main())

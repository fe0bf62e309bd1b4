"""The server of links: when a process whose connection has broken counts as lost. Time is virtual."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, NoReturn

import pytest

from flamecore.errors import FrameError, PeerGoneError
from flamecore.testing.simulation.virtual import run_virtually
from flamecore.toolkit.frames import Frame, Framing
from flamecore.toolkit.links.connection import BrokenConnectionError, Greeting, Refusal, Role
from flamecore.toolkit.links.incoming import HELLO
from flamecore.toolkit.links.options import LinkOptions
from flamecore.toolkit.links.server import Server

FRAMING = Framing("job", 1)


class Broken:
    """A call that breaks after its first frame."""

    greeting = Greeting(b"token", FRAMING.wrap(HELLO), "there", "instance")
    roles = (Role(),)

    def __init__(self) -> None:
        self._messages = [FRAMING.wrap(Frame("a", "b", 1, b""))]

    async def accept(self, instance: str) -> None:
        pass

    async def read(self) -> bytes | None:
        return self._messages.pop() if self._messages else None

    async def write(self, data: bytes) -> None:
        pass

    async def refuse(self, refusal: Refusal, why: str) -> NoReturn:
        raise BrokenConnectionError(why)


class House:
    """A transport without addresses."""

    options = LinkOptions(reconnect_timeout_s=2.0, connect_timeout_s=9.0)
    framing = FRAMING
    instance = "here"

    def __init__(self, *, reachable: bool, watched: bool = False) -> None:
        self.is_watched = watched
        self.refused: Counter[str] = Counter()
        self.lost: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._reachable = reachable

    def decode(self, body: bytes) -> Any:
        raise AssertionError

    def taker(self, address: str) -> None:
        return None

    def count_refused(self, error: FrameError) -> None:
        raise error

    def is_location(self, text: str) -> bool:
        return True

    def watched(self, location: str) -> bool:
        return self.is_watched

    async def reachable(self, location: str) -> bool:
        return self._reachable

    def peer_came(self, location: str) -> None:
        pass

    def peer_lost(self, location: str, instance: str, error: PeerGoneError) -> None:
        assert (location, instance) == ("there", "instance")
        self.lost.set_result(asyncio.get_running_loop().time())


async def break_off(server: Server) -> float:
    """Serve a call; return when it has broken."""
    with pytest.raises(BrokenConnectionError):
        await server.serve(Broken())
    return asyncio.get_running_loop().time()


@pytest.mark.parametrize(("reachable", "after_s"), [(False, 2.0), (True, 10.0)])
def test_a_process_has_time_to_connect_again_and_more_if_it_is_only_busy(reachable: bool, after_s: float) -> None:
    async def main() -> None:
        house = House(reachable=reachable)
        server = Server(house, "token")
        broken = await break_off(server)
        await asyncio.sleep(1.5)
        broken = await break_off(server) if not reachable else broken
        assert await house.lost - broken == pytest.approx(after_s)
        await server.aclose()

    run_virtually(main())


def test_a_watched_process_is_not_given_up() -> None:
    async def main() -> None:
        house = House(reachable=False, watched=True)
        server = Server(house, "token")
        await break_off(server)
        await asyncio.sleep(1000.0)
        assert not house.lost.done()
        await server.aclose()

    run_virtually(main())

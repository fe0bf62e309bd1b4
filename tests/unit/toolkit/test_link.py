"""A link to another process: how it ends, and whom it tells."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from flamecore.errors import ConnectError, FlameError, FrameError, PeerGoneError
from flamecore.testing.progress import patience
from flamecore.testing.simulation.virtual import run_virtually
from flamecore.toolkit.frames import Frame, Framing
from flamecore.toolkit.links.connection import BrokenConnectionError, Dialed
from flamecore.toolkit.links.incoming import GOODBYE
from flamecore.toolkit.links.link import Link
from flamecore.toolkit.links.options import LinkOptions

FRAMING = Framing("job", 1)
LIMIT_S = 20.0


class Line:
    """A connection to a process that says goodbye when it has read this one's."""

    instance = "there"

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self._finished = asyncio.Event()

    async def read(self) -> bytes | None:
        await self._finished.wait()
        for _ in range(9):  # it takes a while
            await asyncio.sleep(0)
        return FRAMING.wrap(GOODBYE)

    async def write(self, data: bytes) -> None:
        self.written.append(data)

    async def finish(self) -> None:
        self._finished.set()

    def abort(self) -> None:
        pass

    async def aclose(self) -> None:
        pass


class Home:
    """A transport whose attempts to connect give a line, or fail."""

    unreachable_hint = ""
    waits = True

    def __init__(self, found: Line | Exception, *, watched: bool = False) -> None:
        self.is_watched = watched
        self.options, self.framing = LinkOptions(connect_timeout_s=1.0), FRAMING
        self.ended: asyncio.Future[tuple[FlameError, bool]] = asyncio.get_running_loop().create_future()
        self.attempts: list[float] = []
        self._found = found

    async def dial(self, location: str, deadline: float) -> Dialed:
        self.attempts.append(asyncio.get_running_loop().time())
        if isinstance(self._found, Exception):
            raise self._found
        return self._found

    def watched(self, location: str) -> bool:
        return self.is_watched

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


def test_a_link_that_closes_waits_for_the_goodbye_of_the_other_process() -> None:
    async def main() -> None:
        home = Home(line := Line())
        link = Link("there", home)
        async with patience(LIMIT_S):
            while not link.carries:
                await asyncio.sleep(0)
            await link.aclose()
            error, lost = await home.ended
        assert (str(error), lost) == ("there has closed", False)
        assert (line.written, len(home.attempts)) == ([FRAMING.wrap(GOODBYE)], 1)

    asyncio.run(main())


@pytest.mark.parametrize(("more", "writes"), [(0, 1), (1, 2)])
def test_waiting_frames_go_together_up_to_a_size(more: int, writes: int) -> None:
    async def main() -> None:
        home = Home(line := Line())
        link = Link("there", home)
        async with patience(LIMIT_S):
            while not link.carries:
                await asyncio.sleep(0)
            rest = 2**18 - 2 * len(FRAMING.wrap(Frame("a", "b", 1, b"")))
            for body in (bytes(rest - 9), bytes(9 + more)):
                link.channel("a", "b").push(body)
            await link.aclose()
        assert len(line.written) == writes + 1, "and the goodbye"

    asyncio.run(main())


def test_attempts_to_connect_become_rarer_up_to_five_a_second() -> None:
    async def main() -> None:
        home = Home(BrokenConnectionError("not there"))
        Link("there", home)
        error, lost = await home.ended
        assert isinstance(error, ConnectError)
        assert not lost
        pauses = [later - before for before, later in pairwise(home.attempts)]
        assert pauses == pytest.approx([0.02, 0.04, 0.08, 0.16, 0.2, 0.2, 0.2])

    run_virtually(main())


@pytest.mark.parametrize("absent", [False, True])
def test_a_watched_process_is_waited_for_as_long_as_something_listens(absent: bool) -> None:
    async def main() -> None:
        fault = BrokenConnectionError("no answer", late=True, absent=absent)
        home = Home(fault, watched=True)
        link = Link("there", home)
        assert link.send_timeout_s is None
        await asyncio.sleep(100 * home.options.connect_timeout_s)
        assert home.ended.done() is absent
        if not absent:
            home._found = BrokenConnectionError("it has gone", absent=True)
            error, _ = await home.ended
            assert isinstance(error, ConnectError)

    run_virtually(main())

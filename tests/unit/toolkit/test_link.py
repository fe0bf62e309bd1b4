"""A link to another process: how it ends, and whom it tells."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import msgspec
import pytest

from flamecore.errors import ConnectError, FlameError, FrameError, PeerGoneError
from flamecore.testing.progress import patience
from flamecore.testing.simulation.virtual import run_virtually
from flamecore.toolkit.frames import Frame, Framing
from flamecore.toolkit.links.budget import Budget
from flamecore.toolkit.links.connection import BrokenConnectionError, Dialed
from flamecore.toolkit.links.incoming import GOODBYE, Peer, refusal
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


class Talk(Line):
    """A connection to a process that says what it is told to."""

    def __init__(self, *said: bytes | Exception, instance: str = "there") -> None:
        super().__init__()
        self.instance = instance
        self.aborted = False
        self._said: asyncio.Queue[bytes | Exception] = asyncio.Queue()
        for each in said:
            self.say(each)

    def say(self, said: bytes | Exception) -> None:
        self._said.put_nowait(said)

    async def read(self) -> bytes | None:
        said = await self._said.get()
        if isinstance(said, Exception):
            raise said
        return said

    async def finish(self) -> None:
        self.say(FRAMING.wrap(GOODBYE))

    def abort(self) -> None:
        self.aborted = True
        self.say(BrokenConnectionError("it broke"))


class Home:
    """A transport whose attempts to connect give a line, or fail."""

    unreachable_hint = ""

    def __init__(
        self, *found: Line | Exception, watched: bool = False, waits: bool = True, **options: int | float
    ) -> None:
        self.is_watched, self.waits = watched, waits
        options = {"connect_timeout_s": 1.0, "reconnect_timeout_s": 2.0, **options}
        self.options, self.framing = msgspec.convert(options, LinkOptions), FRAMING
        self.refused: list[str] = []
        self.ended: asyncio.Future[tuple[FlameError, bool]] = asyncio.get_running_loop().create_future()
        self.attempts: list[float] = []
        self.found = [*found]  # of each attempt; the last again and again

    async def dial(self, location: str, deadline: float) -> Dialed:
        self.attempts.append(asyncio.get_running_loop().time())
        found = self.found.pop(0) if len(self.found) > 1 else self.found[0]
        if isinstance(found, Exception):
            raise found
        return found

    def watched(self, location: str) -> bool:
        return self.is_watched

    async def reachable(self, location: str) -> bool:
        return False

    def count_refused(self, error: FrameError) -> None:
        self.refused.append(error.reason)

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
            home.found = [BrokenConnectionError("it has gone", absent=True)]
            error, _ = await home.ended
            assert isinstance(error, ConnectError)

    run_virtually(main())


# -- connections that break --------------------------------------------------------------------------------------------


def data(number: int, body: bytes) -> bytes:
    return FRAMING.wrap(Frame("a", "b", number, body))


def acknowledged(arrived: int, sender: str = "a", nobody: int = 0) -> bytes:
    """Return the acknowledgement of frames, which have been read, or whose receiver was not bound."""
    peer = Peer("here", "", LinkOptions(), Budget(2**20))
    channel = peer.channel(Frame(sender, "b", 1, b""))
    channel.arrived, channel.read, channel.nobody = arrived, arrived, nobody
    peer.tell(channel, 0)
    peer.rest()
    return peer.take_news(FRAMING)


async def settle() -> None:
    await asyncio.sleep(0.1)


def test_unconfirmed_frames_are_written_again_over_the_next_connection() -> None:
    async def main() -> None:
        home = Home(first := Talk(), second := Talk())
        link = Link("there", home)
        channel = link.channel("a", "b")
        assert link.channel("a", "b") is channel
        for body in (b"one", b"two"):
            channel.push(body)
        await settle()
        assert first.written == [data(1, b"one") + data(2, b"two")]
        first.say(acknowledged(1))
        await settle()
        link.disconnect()
        await settle()
        assert first.aborted
        assert (second.written, len(home.attempts)) == ([data(2, b"two")], 2)
        link.repeat()
        await settle()
        assert second.written == [data(2, b"two")] * 2
        assert not channel.settled.is_set()
        second.say(acknowledged(2))
        await settle()
        assert channel.settled.is_set()
        await link.aclose()
        assert second.written[2:] == [FRAMING.wrap(GOODBYE)]
        assert not home.ended.result()[1]

    run_virtually(main())


@pytest.mark.parametrize(("reason", "attempts"), [("job", 1), ("damaged", 2)])
def test_a_process_that_refuses_is_asked_again_if_that_may_help(reason: str, attempts: int) -> None:
    async def main() -> None:
        why = FRAMING.wrap(refusal(FrameError("it is no good", address="", peer="", reason=reason)))
        home = Home(Talk(why), Talk())
        link = Link("there", home)
        await settle()
        assert len(home.attempts) == attempts
        assert home.ended.done() is (attempts == 1)
        assert link.carries is (attempts == 2)
        if attempts == 1:
            error, lost = await home.ended
            assert lost
            assert str(error) == "there does not let this process in: it is no good"
        assert home.refused == [], "not by this process"
        await link.break_off()

    run_virtually(main())


@pytest.mark.parametrize("reply", [b"?", FRAMING.wrap(Frame("a", "b", 1, b"")), "of another channel"])
def test_a_reply_that_does_not_belong_here_is_counted_and_ends_the_connection(reply: bytes | str) -> None:
    async def main() -> None:
        said = acknowledged(1, sender="other") if isinstance(reply, str) else reply
        home = Home(first := Talk(said), Talk())
        link = Link("there", home)
        link.channel("a", "b").push(b"one")
        await settle()
        assert len(home.refused) == 1
        assert first.aborted
        assert (len(home.attempts), link.carries) == (2, True)
        await link.break_off()

    run_virtually(main())


def test_another_process_that_answers_is_no_mended_connection() -> None:
    async def main() -> None:
        home = Home(first := Talk(), Talk(instance="other"))
        link = Link("there", home)
        await settle()
        first.say(BrokenConnectionError("it broke"))
        error, lost = await home.ended
        assert isinstance(error, PeerGoneError)
        assert (str(error), lost) == ("there is another process now", True)
        assert not link.carries

    run_virtually(main())


def test_a_process_that_cannot_be_reached_again_is_lost_after_a_while() -> None:
    async def main() -> None:
        home = Home(first := Talk(), BrokenConnectionError("nothing listens", absent=True))
        link = Link("there", home)
        channel = link.channel("a", "b")
        await settle()
        channel.push(b"one")
        broken = asyncio.get_running_loop().time()
        first.say(BrokenConnectionError("it broke"))
        error, lost = await home.ended
        assert lost
        assert asyncio.get_running_loop().time() - broken == pytest.approx(2.0, abs=0.2)
        assert str(error).startswith("there is gone without having closed: it broke")
        assert "cannot be reached any more: there is no answer at there" in error.hint
        assert not channel.kept
        with pytest.raises(PeerGoneError):
            channel.has_room()

    run_virtually(main())


def test_connections_that_carry_nothing_mend_nothing() -> None:
    async def main() -> None:
        home = Home(first := Talk())
        link = Link("there", home)
        link.channel("a", "b").push(b"one")
        await settle()
        first.say(acknowledged(0))
        broken = asyncio.get_running_loop().time()

        def broken_line() -> Talk:
            return Talk(BrokenConnectionError("it broke"))

        home.found = [broken_line() for _ in range(10_000)]
        link.disconnect()
        error, lost = await home.ended
        assert lost
        assert asyncio.get_running_loop().time() - broken == pytest.approx(2.0, abs=0.2)
        assert error.hint == ""
        assert 5 <= len(home.attempts) - 1 <= 101

    run_virtually(main())


def test_a_process_that_has_closed_takes_no_more() -> None:
    async def main() -> None:
        home = Home(Talk(FRAMING.wrap(GOODBYE)))
        link = Link("there", home)
        error, lost = await home.ended
        assert (str(error), lost) == ("there has closed", False)
        link.end(ConnectError("later", address="", peer="", location=""))
        assert not link.carries
        await link.aclose()

    run_virtually(main())


def test_a_fault_while_writing_is_a_lost_process() -> None:
    class Faulty(Talk):
        async def write(self, data: bytes) -> None:
            self.say(FRAMING.wrap(GOODBYE))
            raise ZeroDivisionError("a fault")

    async def main() -> None:
        home = Home(Faulty())
        link = Link("there", home)
        link.channel("a", "b").push(b"one")
        error, lost = await home.ended
        assert lost
        assert isinstance(error.__cause__, ZeroDivisionError)

    run_virtually(main())


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (BrokenConnectionError("a wrong token", hopeless=True), "there does not let this process in: a wrong token"),
        (BrokenConnectionError("refused", absent=True), "nothing listens at there: refused"),
        (BrokenConnectionError("late", late=True), "there is no answer at there: late"),
    ],
)
def test_a_process_that_is_not_waited_for_is_tried_once(fault: Exception, text: str) -> None:
    async def main() -> None:
        home = Home(fault, waits=False)
        Link("there", home)
        error, lost = await home.ended
        assert isinstance(error, ConnectError)
        assert (error.what, lost, len(home.attempts)) == (text, False, 1)

    run_virtually(main())


def test_a_link_that_closes_before_it_has_connected_says_nothing() -> None:
    async def main() -> None:
        home = Home(BrokenConnectionError("not there"))
        link = Link("there", home)
        await settle()
        await link.aclose()
        assert not home.ended.done()
        attempts = len(home.attempts)
        await asyncio.sleep(10.0)
        assert len(home.attempts) == attempts

    run_virtually(main())


@pytest.mark.parametrize(("options", "size"), [({"window_frames": 3}, 1), ({"window_bytes": 30}, 10)])
def test_a_window_is_full_of_frames_that_have_not_been_read(options: dict[str, int], size: int) -> None:
    async def main() -> None:
        home = Home(line := Talk(), **options)
        link = Link("there", home)
        channel = link.channel("a", "b")
        assert not channel.has_room(), "nobody is known to be there"
        await settle()
        for turn in range(2):
            for _ in range(3):
                assert channel.has_room()
                channel.push(bytes(size))
            assert not channel.has_room()
            waiting = asyncio.create_task(channel.wait(b"late"))
            await settle()
            assert not waiting.done()
            line.say(acknowledged(turn * 4 + 1))
            await settle()
            assert waiting.done()
            line.say(acknowledged(turn * 4 + 4))
            await settle()
        await link.break_off()

    run_virtually(main())


@pytest.mark.parametrize(
    ("faults", "known"),
    [
        ([BrokenConnectionError("refused"), BrokenConnectionError("late", late=True)], "refused"),
        ([BrokenConnectionError("late", late=True), BrokenConnectionError("refused")], "refused"),
        ([BrokenConnectionError("first"), BrokenConnectionError("second")], "second"),
        ([BrokenConnectionError("late", late=True)], "late"),
    ],
)
def test_the_error_of_a_process_that_is_not_there_says_what_was_known_last(faults: list[Exception], known: str) -> None:
    """The last attempts have little time: that one has had none says less than an earlier error."""

    async def main() -> None:
        home = Home(*faults)
        Link("there", home)
        error, _ = await home.ended
        assert str(error.what) == f"there is no answer at there, tried {len(home.attempts)} times: {known}"

    run_virtually(main())


@pytest.mark.parametrize("waits", [False, True])
def test_a_message_that_found_nobody_is_an_error_of_the_next_one(waits: bool) -> None:
    """It was sent already; one that waits behind it fails in its place. The one after that may find somebody."""

    async def main() -> None:
        home = Home(line := Talk(), window_frames=1)
        link = Link("there", home)
        channel = link.channel("a", "b")
        await settle()
        channel.push(b"one")
        waiting = asyncio.create_task(channel.wait(b"two")) if waits else None
        await settle()
        line.say(acknowledged(1, nobody=1))
        await settle()
        if waiting is not None:
            with pytest.raises(PeerGoneError, match="no endpoint is bound to b"):
                await waiting
        else:
            with pytest.raises(PeerGoneError, match="no endpoint is bound to b"):
                channel.has_room()
        line.say(acknowledged(1, nobody=1))
        await settle()
        assert channel.has_room(), "it is said once"
        await link.break_off()

    run_virtually(main())


def test_a_process_that_hears_nothing_but_stays_silent_is_dialed_again() -> None:
    class Deaf(Talk):
        async def write(self, data: bytes) -> None:
            raise BrokenConnectionError("nobody reads")

    async def main() -> None:
        home = Home(Deaf(), second := Talk())
        link = Link("there", home)
        link.channel("a", "b").push(b"one")
        await asyncio.sleep(10.0)
        assert second.written == [data(1, b"one")]
        assert not home.ended.done()
        await link.break_off()

    run_virtually(main())


def test_a_slow_process_has_five_connections_in_vain_after_one_that_carried() -> None:
    class Slow(Home):
        async def dial(self, location: str, deadline: float) -> Dialed:
            await asyncio.sleep(1.0)
            return await super().dial(location, deadline)

    async def main() -> None:
        home = Slow(first := Talk(), *[Talk(BrokenConnectionError("it broke")) for _ in range(20)])
        link = Link("there", home)
        channel = link.channel("a", "b")
        await asyncio.sleep(1.5)
        channel.push(b"one")
        channel.push(b"two")
        first.say(acknowledged(1))
        await settle()
        link.disconnect()
        _, lost = await home.ended
        assert lost
        assert len(home.attempts) == 1 + 5

    run_virtually(main())

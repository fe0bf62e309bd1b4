"""The server of links: when a process whose connection has broken counts as lost. Time is virtual."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, NoReturn

import pytest
from structlog.testing import capture_logs

from flamecore.errors import CodecError, FrameError, PeerGoneError
from flamecore.testing.simulation.virtual import run_virtually
from flamecore.toolkit.frames import Frame, Framing
from flamecore.toolkit.links.connection import BrokenConnectionError, Greeting, Refusal, Role
from flamecore.toolkit.links.incoming import GOODBYE, HELLO, Incoming, told
from flamecore.toolkit.links.options import LinkOptions
from flamecore.toolkit.links.server import Server

FRAMING = Framing("job", 1)


GREETING = Greeting(b"token", FRAMING.wrap(HELLO), "there", "instance")


def frame(number: int, sender: str = "a", receiver: str = "b", body: bytes = b"") -> Frame:
    return Frame(sender, receiver, number, body)


class Caller:
    """A call that breaks after its frames, or stays silent."""

    def __init__(
        self,
        *frames: Frame | bytes,
        greeting: Greeting = GREETING,
        roles: tuple[Role, ...] = (Role(),),
        stays: bool = False,
    ) -> None:
        self.greeting, self.roles = greeting, roles
        self.heard: list[Frame] = []
        self.accepted_by = ""
        self.refusals: list[Refusal] = []
        self._messages = [b"".join([FRAMING.wrap(each) if isinstance(each, Frame) else each for each in frames])]
        self._stays = stays

    async def accept(self, instance: str) -> None:
        self.accepted_by = instance

    async def read(self) -> bytes | None:
        if self._messages:
            return self._messages.pop()
        if self._stays:
            await asyncio.get_running_loop().create_future()
        return None

    async def write(self, data: bytes) -> None:
        self.heard += FRAMING.unwrap_all(data)

    async def refuse(self, refusal: Refusal, why: str) -> NoReturn:
        self.refusals.append(refusal)
        raise BrokenConnectionError(why)


class House:
    """A transport; addresses that are bound keep what arrives."""

    options = LinkOptions(reconnect_timeout_s=2.0, connect_timeout_s=9.0)
    framing = FRAMING
    instance = "here"

    def __init__(self, *, reachable: bool = False, watched: bool = False) -> None:
        self.is_watched = watched
        self.refused: Counter[str] = Counter()
        self.lost: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self.losses = 0
        self.came: list[str] = []
        self.decoded: list[bytes] = []
        self.reads = True
        self.bound: set[str] = set()
        self.arrived: list[Any] = []
        self._reachable = reachable

    def decode(self, body: bytes) -> Any:
        self.decoded.append(body)
        if body == b"?":
            raise CodecError("bytes that are no message")
        return body

    def taker(self, address: str) -> House | None:
        return self if address in self.bound else None

    def arrive(self, channel: Incoming, message: Any, size: int) -> None:
        self.arrived.append(message)
        if self.reads:
            channel.consume(size)

    def count_refused(self, error: FrameError) -> None:
        self.refused[error.reason] += 1

    def is_location(self, text: str) -> bool:
        return text != "nowhere"

    def watched(self, location: str) -> bool:
        return self.is_watched

    async def reachable(self, location: str) -> bool:
        return self._reachable

    def peer_came(self, location: str) -> None:
        self.came.append(location)

    def peer_lost(self, location: str, instance: str, error: PeerGoneError) -> None:
        assert (location, instance) == ("there", "instance")
        self.losses += 1
        if not self.lost.done():
            self.lost.set_result(asyncio.get_running_loop().time())


async def break_off(server: Server) -> float:
    """Serve a call; return when it has broken."""
    with pytest.raises(BrokenConnectionError):
        await server.serve(Caller(frame(1)))
    return asyncio.get_running_loop().time()


async def refused(server: Server, caller: Caller) -> list[Refusal]:
    """Serve a call that is refused; return why."""
    with pytest.raises(BrokenConnectionError):
        await server.serve(caller)
    return caller.refusals


@pytest.mark.parametrize(("reachable", "after_s"), [(False, 2.0), (True, 10.0)])
def test_a_process_has_time_to_connect_again_and_more_if_it_is_only_busy(reachable: bool, after_s: float) -> None:
    async def main() -> None:
        house = House(reachable=reachable)
        server = Server(house, "token")
        broken = await break_off(server)
        await asyncio.sleep(1.5)
        broken = await break_off(server) if not reachable else broken
        assert await house.lost - broken == pytest.approx(after_s)
        assert await refused(server, Caller(frame(2))) == [Refusal.UNWANTED], "it comes back too late"
        assert house.refused["lost"] == 1
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
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_virtually(main())


def test_a_process_that_has_sent_nothing_is_not_waited_for() -> None:
    async def main() -> None:
        server = Server(House(), "token")
        assert await refused(server, Caller()) == [Refusal.REPLACED]
        assert server.instance_at("there") == ""
        assert asyncio.all_tasks() == {asyncio.current_task()}
        await server.aclose()

    run_virtually(main())


def test_a_process_that_is_given_up_is_waited_for_no_more_and_others_are() -> None:
    async def main() -> None:
        house = House()
        server = Server(house, "token")
        await break_off(server)
        server.lose("other")
        assert server.instance_at("there") == "instance"
        server.lose("instance")
        assert server.instance_at("there") == ""
        await asyncio.sleep(1000.0)
        assert not house.lost.done(), "who gives it up knows"
        await server.aclose()

    run_virtually(main())


# -- who is admitted ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("greeting", "refusal", "reason"),
    [
        (GREETING._replace(token=b"guess"), Refusal.TOKEN, "token"),
        (GREETING._replace(location="nowhere"), Refusal.UNWANTED, "unnamed"),
        (GREETING._replace(instance=""), Refusal.UNWANTED, "unnamed"),
        (GREETING._replace(instance="given up"), Refusal.UNWANTED, "lost"),
        (GREETING._replace(hello=Framing("other", 1).wrap(HELLO)), Refusal.UNWANTED, "job"),
        (GREETING._replace(hello=b"?"), Refusal.UNWANTED, "short"),
    ],
)
def test_a_stranger_is_refused_before_anything_is_read(greeting: Greeting, refusal: Refusal, reason: str) -> None:
    async def main() -> None:
        house = House()
        house.bound.add("b")
        server = Server(house, "token")
        server.lose("given up")
        caller = Caller(frame(1), greeting=greeting)
        assert await refused(server, caller) == [refusal]
        assert house.refused == {reason: 1}
        assert (house.came, house.arrived, caller.accepted_by) == ([], [], "")
        await server.aclose()

    run_virtually(main())


def test_a_process_is_admitted_and_speaks_for_what_it_has_shown() -> None:
    async def main() -> None:
        house = House()
        server = Server(house, "token")
        caller = Caller(frame(1, "worker/1"), GOODBYE, roles=(Role("worker", ("worker/",)),))
        await server.serve(caller)
        assert (caller.accepted_by, house.came) == ("here", ["there"])
        house.refused.clear()
        other = Caller(
            frame(1, "a"), roles=(Role("worker", ("worker/",)),), greeting=GREETING._replace(location="elsewhere")
        )
        assert await refused(server, other) == [Refusal.UNWANTED]
        assert house.refused["role"] == 1
        await server.aclose()

    run_virtually(main())


def test_a_process_that_comes_back_in_another_role_is_refused() -> None:
    async def main() -> None:
        house = House()
        server = Server(house, "token")
        await break_off(server)
        assert await refused(server, Caller(frame(2), roles=(Role("b", ("b",)),))) == [Refusal.UNWANTED]
        assert house.refused == {"broken": 1, "role": 1}
        await server.aclose()

    run_virtually(main())


def test_a_process_that_takes_the_place_of_another_ends_the_wait_for_it() -> None:
    async def main() -> None:
        house = House()
        server = Server(house, "token")
        broken = await break_off(server)
        assert server.instance_at("there") == "instance"
        await server.serve(Caller(GOODBYE, greeting=GREETING._replace(instance="next")))
        assert await house.lost == broken
        assert house.came == ["there", "there"]
        assert await refused(server, Caller(frame(2))) == [Refusal.UNWANTED], "it was given up"
        await asyncio.sleep(1000.0)
        await server.aclose()

    run_virtually(main())


def test_the_end_of_a_call_whose_process_was_replaced_changes_nothing() -> None:
    class Ending(Caller):
        async def read(self) -> bytes | None:
            if self._messages:
                return self._messages.pop()
            await asyncio.sleep(5.0)
            return None

    async def main() -> None:
        house = House()
        server = Server(house, "token")
        older = asyncio.create_task(refused(server, Ending(frame(1))))
        await asyncio.sleep(1.0)
        following = Caller(frame(1), stays=True, greeting=GREETING._replace(instance="next"))
        serving = asyncio.create_task(server.serve(following))
        await older
        await asyncio.sleep(1000.0)
        assert house.losses == 1
        assert server.instance_at("there") == "next"
        assert not serving.done()
        await server.aclose()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_virtually(main())


# -- what it sends -----------------------------------------------------------------------------------------------------


def test_a_process_that_says_goodbye_is_not_waited_for() -> None:
    async def main() -> None:
        house = House()
        house.bound.add("b")
        server = Server(house, "token")
        caller = Caller(frame(1, body=b"first"), frame(1, receiver="c"), GOODBYE, stays=True)
        await server.serve(caller)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert house.arrived == [b"first"]
        assert [(each.receiver, each.sequence) for each in caller.heard] == [("b", 1), ("c", 1)]
        assert [told(each).nobody for each in caller.heard] == [0, 1], "nobody is bound to c"
        assert [told(each).read for each in caller.heard] == [1, 1]
        assert caller.refusals == []
        assert house.refused == {}
        assert server.instance_at("there") == ""
        await asyncio.sleep(1000.0)
        assert not house.lost.done()
        await server.aclose()

    run_virtually(main())


def test_frames_that_have_arrived_are_acknowledged_again_over_the_next_connection() -> None:
    async def main() -> None:
        server = Server(House(), "token")
        await break_off(server)
        again = Caller(GOODBYE)
        await server.serve(again)
        assert [(each.receiver, each.sequence) for each in again.heard] == [("b", 1)]
        await server.aclose()

    run_virtually(main())


def test_frames_that_come_again_are_counted_and_acknowledged_again() -> None:
    async def main() -> None:
        house = House()
        house.bound.add("b")
        server = Server(house, "token")
        await break_off(server)
        again = Caller(frame(1), frame(1, receiver="nobody", body=b"?"), frame(2, body=b"second"), GOODBYE)
        await server.serve(again)
        assert house.arrived == house.decoded == [b"", b"second"], "the others are not decoded"
        assert house.refused == {"broken": 1, "repeated": 1}
        assert {each.receiver: each.sequence for each in again.heard} == {"b": 2, "nobody": 1}
        await server.aclose()

    run_virtually(main())


def test_a_gap_is_a_lost_process_and_a_message_that_cannot_be_decoded_is_none() -> None:
    async def main() -> None:
        house = House()
        house.bound.add("b")
        server = Server(house, "token")
        caller = Caller(frame(1, body=b"?"))
        assert await refused(server, caller) == [Refusal.UNWANTED]
        (last,) = caller.heard
        assert (last.sender, last.sequence) == ("", 0)
        assert b"cannot be decoded: bytes that are no message" in last.body
        assert house.refused == {"codec": 1}
        assert not house.lost.done()
        assert await refused(server, Caller(frame(1), frame(3))) == [Refusal.UNWANTED]
        assert house.refused == {"codec": 1, "gap": 1}
        assert house.lost.done()
        await server.aclose()

    run_virtually(main())


def test_messages_that_cannot_be_decoded_are_logged_up_to_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flamecore.toolkit.links.server._TOLD", 2)

    async def main() -> None:
        house = House()
        house.bound.add("b")
        server = Server(house, "token")
        with capture_logs() as logged:
            for number in range(1, 5):
                await refused(server, Caller(frame(1, body=b"?")))
                assert len(logged) == min(number, 2)
        await server.aclose()

    run_virtually(main())


def test_a_process_that_does_not_wait_for_room_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flamecore.toolkit.links.incoming.MOST_FRAMES", 3)
    monkeypatch.setattr("flamecore.toolkit.links.incoming.MOST_BYTES", 20)

    async def main() -> None:
        house = House()
        house.bound.add("b")
        house.reads = False
        server = Server(house, "token")
        few = [frame(number, body=bytes(4)) for number in range(1, 5)]
        assert await refused(server, Caller(*few)) == [Refusal.UNWANTED]
        large = [frame(number, sender="large", body=bytes(10)) for number in range(1, 4)]
        assert await refused(server, Caller(*large)) == [Refusal.UNWANTED]
        assert house.refused == {"window": 2}
        assert len(house.arrived) == 3 + 2
        await server.aclose()

    run_virtually(main())


def test_a_process_has_channels_up_to_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flamecore.toolkit.links.incoming._CHANNELS", 2)

    async def main() -> None:
        house = House()
        server = Server(house, "token")
        caller = Caller(*[frame(1, sender=str(number)) for number in range(3)])
        assert await refused(server, caller) == [Refusal.UNWANTED]
        assert house.refused == {"channels": 1}
        assert len([each for each in caller.heard if each.sender]) == 2
        await server.aclose()

    run_virtually(main())


def test_a_process_that_is_refused_may_write_to_its_end_and_is_then_cut_off() -> None:
    class Writing(Caller):
        read_count = 0

        async def read(self) -> bytes | None:
            self.read_count += 1
            if self.read_count <= 4:
                return b"?"
            return await super().read()

    async def main() -> None:
        server = Server(House(), "token")
        caller = Writing()
        assert await refused(server, caller) == [Refusal.DAMAGED]
        assert caller.read_count == 6, "up to its end"
        begun = asyncio.get_running_loop().time()
        assert await refused(server, Writing(stays=True)) == [Refusal.DAMAGED]
        assert asyncio.get_running_loop().time() - begun == pytest.approx(1.0)
        await server.aclose()

    run_virtually(main())


def test_a_damaged_frame_is_sent_again_over_another_connection() -> None:
    async def main() -> None:
        house = House()
        server = Server(house, "token")
        caller = Caller(FRAMING.wrap(frame(1, body=b"body"))[:-1] + b"?")
        assert await refused(server, caller) == [Refusal.DAMAGED]
        assert [(each.sender, each.sequence) for each in caller.heard] == [("", 1)]
        await server.aclose()

    run_virtually(main())


def test_a_newer_connection_of_a_process_replaces_the_older() -> None:
    async def main() -> None:
        house = House()
        house.bound.add("b")
        server = Server(house, "token")
        older = asyncio.create_task(refused(server, Caller(frame(1, body=b"first"), stays=True)))
        await asyncio.sleep(1.0)
        newer = Caller(frame(2, body=b"second"), stays=True)
        serving = asyncio.create_task(server.serve(newer))
        assert await older == [Refusal.REPLACED]
        assert house.arrived == [b"first", b"second"]
        await asyncio.sleep(1000.0)
        assert not serving.done()
        await server.aclose()
        assert serving.done()
        assert newer.heard[-1] == GOODBYE
        assert not house.lost.done()

    run_virtually(main())


def test_a_fault_of_the_connection_ends_the_call() -> None:
    class Faulty(Caller):
        async def write(self, data: bytes) -> None:
            raise ZeroDivisionError("a fault")

    async def main() -> None:
        server = Server(House(), "token")
        with pytest.raises(ZeroDivisionError):
            await server.serve(Faulty(frame(1), stays=True))
        await server.aclose()

    run_virtually(main())


def test_a_server_that_closes_takes_the_last_words_of_those_that_hear_its_goodbye() -> None:
    class Polite(Caller):
        async def read(self) -> bytes | None:
            if self._messages:
                return self._messages.pop()
            while GOODBYE not in self.heard:
                await asyncio.sleep(0.1)
            await asyncio.sleep(0.5)
            self._messages = [FRAMING.wrap(GOODBYE)]
            return FRAMING.wrap(frame(2, body=b"last"))

    async def main() -> None:
        house = House()
        house.bound.add("b")
        server = Server(house, "token")
        serving = asyncio.create_task(server.serve(Polite(frame(1, body=b"first"))))
        await asyncio.sleep(1.0)
        await server.aclose()
        assert serving.done()
        assert house.arrived == [b"first", b"last"]

    run_virtually(main())


def test_other_tasks_have_their_turn_within_a_long_message() -> None:
    async def main() -> None:
        house = House()
        house.bound.add("b")
        server = Server(house, "token")
        seen: list[int] = []

        async def look() -> None:
            while len(house.arrived) < 1000:
                seen.append(len(house.arrived))
                await asyncio.sleep(0)

        looking = asyncio.create_task(look())
        await server.serve(Caller(*[frame(number) for number in range(1, 1001)], GOODBYE))
        await looking
        assert [number for number in dict.fromkeys(seen) if number] == [256, 512, 768]
        await server.aclose()

    run_virtually(main())


def test_a_server_that_closes_waits_for_calls_that_take_nothing_any_more() -> None:
    class Stuck(Caller):
        async def write(self, data: bytes) -> None:
            await asyncio.get_running_loop().create_future()

    async def main() -> None:
        server = Server(House(), "token")
        await break_off(server)
        other = GREETING._replace(location="elsewhere", instance="other")
        serving = asyncio.create_task(server.serve(Stuck(frame(1), stays=True, greeting=other)))
        await asyncio.sleep(1.0)
        closing = asyncio.get_running_loop().time()
        await server.aclose()
        assert asyncio.get_running_loop().time() - closing == pytest.approx(2.0)
        await asyncio.wait((serving,))
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_virtually(main())


def test_a_server_that_breaks_off_leaves_no_call_and_no_watch() -> None:
    async def main() -> None:
        house = House()
        server = Server(house, "token")
        await break_off(server)
        other = Caller(frame(1), stays=True, greeting=GREETING._replace(location="elsewhere", instance="other"))
        serving = asyncio.create_task(server.serve(other))
        await asyncio.sleep(1.0)
        await server.break_off()
        assert serving.cancelled()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_virtually(main())

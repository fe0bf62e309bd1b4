"""The two ends of a channel, on a line that loses, repeats and delays."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from typing import Any

import pytest

from flamecore.errors import FlameError, FrameError, PeerGoneError, SendTimeout, TransportClosedError
from flamecore.toolkit.frames import Frame
from flamestream_nats.channels.envelope import ASK, MORE, TELL, Kind, Letter
from flamestream_nats.channels.incoming import Arrived, Incoming
from flamestream_nats.channels.outgoing import Outgoing
from flamestream_nats.channels.peers import MISSES
from flamestream_nats.options import Options

ROOM = 10


class FakeLine:
    """A line between one sender and one receiver, both here, moved by hand."""

    home = "home"

    def watched(self, location: str) -> bool:
        return False

    def __init__(self, **options: Any) -> None:
        self.options = Options(**options)
        self.there: deque[Letter] = deque()
        self.back: deque[Letter] = deque()
        self.sealed: dict[bytes, Letter] = {}
        self.errors: list[FlameError] = []
        self.read: list[bytes] = []
        self.queue: deque[Arrived] = deque()
        self.out = Outgoing(self, "a", 1, "b", "to-b", "back", "")
        self.incoming = Incoming(self, "b", 2, "a", "back", "there", 1)

    def room(self, sender: str, receiver: str) -> int:
        return ROOM

    def post(self, kind: Kind, flags: int, birth: int, frame: Frame, subject: str, reply: str) -> bytes:
        data = repr((kind, flags, birth, frame)).encode()
        self.sealed[data] = Letter(kind, flags, birth, frame)
        self.post_again(subject, reply, data)
        return data

    def post_again(self, subject: str, reply: str, data: bytes) -> None:
        (self.there if subject == "to-b" else self.back).append(self.sealed[data])

    def decode(self, body: bytes) -> bytes:
        return body

    def broken(self, channel: Outgoing, error: FlameError) -> None:
        self.errors.append(error)
        channel.fail(error)

    def arrive(self) -> None:
        """Deliver the next letter to the receiver."""
        letter = self.there.popleft()
        try:
            if letter.kind is Kind.PROBE:
                self.incoming.probe(letter)
            elif (arrived := self.incoming.data(letter)) is not None:
                self.queue.append(arrived)
        except FrameError as error:
            if error.reason not in ("duplicate", "gap"):
                raise

    def answer(self) -> None:
        """Deliver the next answer to the sender."""
        self.out.state(self.back.popleft(), "there")

    def take(self) -> None:
        """Read the next message."""
        arrived = self.queue.popleft()
        self.incoming.read(arrived)
        self.read.append(arrived.delivery.message)

    def settle(self) -> None:
        """Deliver and read everything, without loss."""
        while self.there or self.back or self.queue:
            while self.there:
                self.arrive()
            while self.queue:
                self.take()
            while self.back:
                self.answer()


@pytest.mark.parametrize("seed", range(40))
def test_everything_arrives_once_and_in_order_under_any_loss(seed: int) -> None:
    asyncio.run(_run(seed))


async def _run(seed: int) -> None:
    chance = random.Random(seed)
    line = FakeLine(window_frames=chance.choice((1, 3, 50)), window_bytes=chance.choice((20, 1000)))
    bodies = [b"%d " % number * chance.randrange(0, 12) for number in range(120)]
    loss = chance.choice((0.0, 0.05, 0.3))
    late: list[tuple[deque[Letter], Letter]] = []
    unsent = deque(bodies)
    waits: set[asyncio.Task[None]] = set()

    def spoil(queue: deque[Letter]) -> None:
        """Lose the next letter, or keep a copy that comes much later."""
        if queue and chance.random() < loss:
            late.append((queue, queue[0]))
            queue.popleft()

    for _ in range(4000):
        step = chance.randrange(8)
        if step == 0 and unsent and not waits:
            body = unsent.popleft()
            if line.out.has_room():
                line.out.push(body)
            else:
                waits.add(asyncio.create_task(line.out.wait(body)))
        elif step in (1, 2):
            spoil(line.there)
            if line.there:
                line.arrive()
        elif step in (3, 4):
            spoil(line.back)
            if line.back:
                line.answer()
        elif step == 5 and line.queue:
            line.take()
        elif step == 6 and chance.random() < 0.1:
            line.out.tick() if chance.random() < 0.8 else line.out.renew()
        elif step == 7 and late and chance.random() < 0.05:
            queue, letter = late.pop(chance.randrange(len(late)))
            queue.append(letter)
        if waits:
            await asyncio.sleep(0)
            waits -= {task for task in waits if task.done()}
        assert len(line.queue) <= line.options.window_frames
    seen = list(line.read)
    assert seen == bodies[: len(seen)]
    while unsent or waits or not line.out.settled.is_set():  # the line is mended
        line.out.renew()
        line.settle()
        await asyncio.sleep(0)
        waits -= {task for task in waits if task.done()}
        if unsent and not waits and line.out.has_room():
            line.out.push(unsent.popleft())
    line.settle()
    assert not line.errors
    assert line.read == bodies


def test_a_message_goes_in_parts_and_is_one_again() -> None:
    line = FakeLine()
    for body in (b"", b"x" * ROOM, b"x" * ROOM + b"y", bytes(range(95))):
        line.out.push(body)
    assert [letter.flags & MORE for letter in line.there] == [0, 0, MORE, 0, *[MORE] * 9, 0]
    line.settle()
    assert line.read == [b"", b"x" * ROOM, b"x" * ROOM + b"y", bytes(range(95))]


def test_the_window_counts_messages_and_bytes_and_opens_as_they_are_read() -> None:
    line = FakeLine(window_frames=4, window_bytes=1000)
    for _ in range(4):
        assert line.out.has_room()
        line.out.push(b"x")
    assert not line.out.has_room()
    assert [bool(letter.flags & TELL) for letter in line.there] == [True] * 4
    while line.there:
        line.arrive()
    assert not line.back
    line.take()
    line.answer()
    assert line.out.has_room()
    narrow = FakeLine(window_frames=100, window_bytes=30)
    narrow.out.push(b"x" * 500)
    assert not narrow.out.has_room()  # but one message of any size may go
    narrow.settle()
    assert narrow.out.has_room()


def test_the_receiver_acknowledges_four_times_in_a_window() -> None:
    line = FakeLine(window_frames=100)
    for _ in range(100):
        line.out.push(b"x")
    assert sum(bool(letter.flags & TELL) for letter in line.there) == 4


def test_both_ends_know_where_the_other_is() -> None:
    """By that they hear of it when a process is lost; the sender knows it from the first answer."""
    line = FakeLine(window_frames=1)
    line.out.push(b"x")
    assert line.out.location == ""
    line.settle()
    assert line.out.location == line.incoming.location == "there"


def test_a_gap_is_asked_for_once_and_filled() -> None:
    line = FakeLine()
    for number in range(5):
        line.out.push(b"%d" % number)
    del line.there[1]
    while line.there:
        line.arrive()
    (asked,) = line.back
    assert asked.flags & ASK
    assert asked.frame.sequence == 1
    line.settle()
    assert line.read == [b"0", b"1", b"2", b"3", b"4"]


def test_lost_frames_are_repeated_once_for_all_probes_before() -> None:
    line = FakeLine()
    line.out.push(b"x")
    line.there.clear()
    for _ in range(2):
        line.out.probe()
    while line.there:
        line.arrive()
    line.answer()
    assert [letter.kind for letter in line.there] == [Kind.DATA]
    line.answer()
    assert [letter.kind for letter in line.there] == [Kind.DATA], "it may still arrive"
    line.settle()
    assert line.read == [b"x"]


def test_a_waiting_sender_fails_when_there_never_is_room() -> None:
    async def run() -> SendTimeout:
        line = FakeLine(window_frames=1, send_timeout_s=0.01)
        line.out.push(b"x")
        with pytest.raises(SendTimeout) as caught:
            await line.out.wait(b"y")
        assert line.out.has_room() is False
        return caught.value

    error = asyncio.run(run())
    assert (error.address, error.peer, error.timeout_s) == ("a", "b", 0.01)
    assert "1 messages" in error.what


def test_a_waiting_sender_hears_when_its_own_end_closes() -> None:
    async def run() -> None:
        line = FakeLine(window_frames=1)
        line.out.push(b"x")
        waits = asyncio.create_task(line.out.wait(b"y"))
        await asyncio.sleep(0)
        line.out.give_up_waiting(TransportClosedError("a is closed", address="a", peer="b"))
        with pytest.raises(TransportClosedError):
            await waits
        line.settle()
        line.out.tick()
        line.settle()
        assert line.read == [b"x"]
        assert line.out.settled.is_set()

    asyncio.run(run())


def test_a_missing_receiver_is_an_error_after_four_attempts() -> None:
    line = FakeLine()
    line.out.push(b"x")
    for _ in range(MISSES - 1):
        line.out.detector.missed()
        line.out.tick()
        assert line.out.error is None
    line.out.detector.missed()
    line.out.tick()
    assert isinstance(line.out.error, PeerGoneError)
    with pytest.raises(PeerGoneError):
        line.out.push(b"y")


def test_after_an_outage_the_receiver_gets_the_limit_of_outages() -> None:
    line = FakeLine(reconnect_timeout_s=3, heartbeat_s=0.25)
    line.out.push(b"x")
    line.out.renew()
    for _ in range(11):
        line.out.detector.missed()
        line.out.tick()
    assert line.out.error is None
    line.settle()
    assert line.read == [b"x"]


def test_a_connected_but_silent_receiver_gets_longer() -> None:
    line = FakeLine(heartbeat_s=0.25, silence_timeout_s=2)
    line.out.push(b"x")
    ticks = 0
    while line.out.error is None:
        line.out.tick()
        ticks += 1
    assert ticks == 9
    assert "has said nothing for 2 s" in str(line.out.error)


def test_another_receiver_at_the_address_counts_as_loss() -> None:
    line = FakeLine()
    line.out.push(b"x")
    line.settle()
    line.out.tick()
    line.out.push(b"y")
    line.there.clear()
    line.out.probe()
    line.settle()
    line.incoming = Incoming(line, "b", 3, "a", "back", "there", 1)
    line.out.push(b"z")
    line.settle()
    (error,) = line.errors
    assert isinstance(error, FrameError)
    assert error.reason == "replaced"


def test_a_frame_lost_for_ever_is_an_error() -> None:
    line = FakeLine()
    line.out.push(b"x")
    while not line.errors:
        while line.there:
            if line.there[0].kind is Kind.DATA:
                line.there.popleft()
            else:
                line.arrive()
        while line.back and not line.errors:
            line.answer()
        line.out.tick()
    (error,) = line.errors
    assert isinstance(error, FrameError)
    assert error.reason == "lost"
    assert "from number 1 on" in error.what


def test_acknowledgements_of_frames_never_sent_are_refused() -> None:
    line = FakeLine()
    line.out.push(b"x")
    line.settle()
    line.incoming.probe(Letter(Kind.PROBE, 0, 1, Frame("a", "b", 1, (7).to_bytes(8, "big"))))
    letter = line.back.popleft()
    for received, body in ((2, letter.frame.body), (0, bytes(7) + b"\1" + bytes(8))):
        with pytest.raises(FrameError, match="never sent"):
            line.out.state(letter._replace(frame=Frame("a", "b", received, body)), "there")
    assert line.out.error is None


def test_a_report_that_nobody_has_asked_for_answers_no_probe() -> None:
    """Frames behind those that it has are on their way: they are not lost."""
    line = FakeLine(window_frames=4)
    for body in (b"x", b"y"):
        line.out.push(body)
    line.out.probe()
    line.arrive()
    line.take()
    line.answer()
    assert [letter.kind for letter in line.there] == [Kind.DATA, Kind.PROBE]
    line.settle()
    assert line.read == [b"x", b"y"]

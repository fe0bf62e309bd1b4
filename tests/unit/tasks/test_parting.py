"""Messages that are too large are sent in parts, which say the same one after the other."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flamecore.abc.transport import Delivery, Endpoint
from flamecore.errors import CodecError, FlameError, FrameError, TooLargeError
from flamecore.model.batch import Lines, Rows, children
from flamecore.model.messages import Ack, Items, Released, Settled
from flamecore.model.meta import MIN_TIME, decode_time, encode_time
from flamecore.runtime.parts.collector import Collector, Complete
from flamecore.runtime.tasks.parting import parted
from flamecore.runtime.tasks.sender import Sender
from flamecore.testing.progress import patience

ACKS = (Ack(0, 3, 77), Ack(1, 2, 5))


def too_large(kind: str) -> FlameError:
    if kind == "costs":
        return TooLargeError("a value costs too much", hint="Make it smaller.")
    return FrameError("a message is larger", hint="Make it smaller.", address="", peer="", reason="oversized")


def items_of(message: Any) -> list[Any]:
    if type(message) is Released:
        return list(zip(message.orders, message.payloads, strict=True))
    return [
        (index, trace, alive, order, payload)
        for index, trace, alive, orders, payloads in message.pieces
        for order, payload in zip(orders, payloads, strict=True)
    ]


def halved(message: Any, most: int) -> list[Any]:
    """Return all parts of a message, each with at most `most` items."""
    if len(items_of(message)) <= most or not parted(message):
        return [message]
    return [small for part in parted(message) for small in halved(part, most)]


def orders(count: int, first: int = 0) -> list[bytes]:
    return [encode_time(time) for time in range(first, first + count)]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.integers(0, 9), st.sampled_from("ldrn"))),
    st.integers(1, 4),
)
def test_parts_of_a_hand_over_are_the_same_items_and_the_acks_come_last(
    pieces: list[tuple[int, bool, int, str]], most: int
) -> None:
    made: list[Any] = []
    for vertex, alive, count, form in pieces:
        payloads: Any = [f"{vertex}.{number}\n" for number in range(count)]
        if form == "l":
            payloads = Lines("".join(payloads))
        elif form == "r" and count:
            payloads = Rows([payloads, payloads])
        own = children([b"base"], [count]) if form == "d" and count else orders(count)
        made.append((vertex, 1, alive, own, payloads))
    message = Items(made, ACKS)
    parts = halved(message, most)
    assert [item for part in parts for item in items_of(part)] == items_of(message)
    assert [part.acks for part in parts] == [()] * (len(parts) - 1) + [ACKS]
    assert max(len(items_of(part)) for part in parts) <= most


@given(
    st.lists(st.lists(st.integers(0, 4), max_size=12), min_size=1, max_size=3),
    st.integers(1, 4),
    st.integers(5, 9),
)
def test_a_rear_delivers_of_parts_as_of_the_whole(workers: list[list[int]], most: int, until: int) -> None:
    """Also where many items are of one time, and never up to a time of which more is to come."""
    wholes = []
    for worker, times in enumerate(workers):
        own = [encode_time(time) + bytes([worker, number]) for number, time in enumerate(sorted(times))]
        wholes.append(Released(worker, until, own, [order.hex() for order in own], []))

    def delivered(messages: list[Released]) -> list[Any]:
        collector = Collector("out", len(workers))
        made: list[Complete] = [done for one in messages if (done := collector.receive(one)) is not None]
        left = deque(sorted(order for one in messages for order in one.orders))
        for complete in made:
            for payload in complete.payloads:
                assert left.popleft().hex() == payload
            assert not left or decode_time(left[0]) >= max(complete.time, complete.until)
        assert not left
        assert collector.time == until
        return [payload for complete in made for payload in complete.payloads]

    assert delivered([part for one in wholes for part in halved(one, most)]) == delivered(wholes)


def test_parts_of_a_release_stay_packed() -> None:
    packed = children(orders(7), [9] * 7)
    lines = Lines("".join(f"{number}\n" for number in range(63)))
    whole = Released(0, 7, packed, lines, [])
    parts = parted(whole)
    assert [(type(part.orders), type(part.payloads)) for part in parts] == [(type(packed), Lines)] * 2
    assert [part.time for part in parts] == [3, 7]
    assert [pair for part in parts for pair in items_of(part)] == items_of(whole)


def test_what_a_worker_says_of_times_holds_with_each_part() -> None:
    ahead = Released(0, 9, orders(2, 5), ["a", "b"], [], 4, ((3, 1),))
    assert [(part.time, part.heard, part.away) for part in parted(ahead)] == [(6, 4, ((3, 1),)), (9, 4, ())]
    items = Items([(1, 1, True, orders(2, 5), ["a", "b"])], ACKS, 7)
    assert [part.until for part in parted(items)] == [None, 7]
    level = Released(0, 9, orders(2, 5), ["a", "b"], [])
    assert [(part.time, part.heard) for part in parted(level)] == [(6, 6), (9, 9)]


def test_a_rear_without_a_barrier_delivers_parts_as_they_come() -> None:
    collector = Collector("out", 1, barrier=False)
    whole = Released(0, 4, orders(3, 5), ["a", "b", "c"], [])
    got = [collector.receive(part) for part in halved(whole, 1)]
    assert [list(complete.payloads) for complete in got if complete] == [["a"], ["b"], ["c"]]
    assert collector.time == 4
    assert MIN_TIME < 4


class Narrow(Endpoint):
    """Takes messages of few items only; has room for some, and then only for those who wait."""

    address = "worker/0"

    def __init__(self, most: int, room: int, kind: str) -> None:
        self.most, self.room, self.kind = most, room, kind
        self.sent: list[Any] = []

    def send_nowait(self, to: str, message: Any) -> bool:
        if self.room <= 0:
            return False
        self._take(message)
        self.room -= 1
        return True

    async def send(self, to: str, message: Any) -> None:
        await asyncio.sleep(0)
        self._take(message)

    def _take(self, message: Any) -> None:
        if type(message) is Items and len(items_of(message)) > self.most:
            raise too_large(self.kind)
        self.sent.append(message)

    async def receive(self) -> Delivery:
        raise NotImplementedError

    def receive_nowait(self) -> Delivery | None:
        return None

    async def aclose(self) -> None:
        return


def hand_over(count: int, first: int = 0) -> Items:
    return Items([(0, 0, True, orders(count, first), list(range(first, first + count)))], ACKS)


@pytest.mark.parametrize("kind", ["costs", "bytes"])
@pytest.mark.parametrize("room", [0, 1, 3, 99])
def test_what_is_too_large_is_sent_in_parts_and_in_order(kind: str, room: int) -> None:
    async def run() -> None:
        endpoint = Narrow(3, room, kind)
        failed: list[Exception] = []
        sender = Sender(endpoint, failed.append)
        for message in (hand_over(20), Settled(20), hand_over(2, 20), hand_over(9, 22), Settled(31)):
            sender.send("worker/1", message)
        async with patience(10):
            while sender._senders:
                await asyncio.sleep(0)
        assert failed == []
        values = [[item[4] for item in items_of(one)] if type(one) is Items else one for one in endpoint.sent]
        flat = [value for one in values for value in (one if isinstance(one, list) else [one])]
        assert flat == [*range(20), Settled(20), *range(20, 31), Settled(31)]
        assert sum(len(one.acks) for one in endpoint.sent if type(one) is Items) == 3 * len(ACKS)
        assert sender.sent == {"Items": sum(type(one) is Items for one in endpoint.sent), "Settled": 2}

    asyncio.run(run())


@pytest.mark.parametrize("kind", ["costs", "bytes"])
@pytest.mark.parametrize("room", [0, 9])
def test_an_item_that_alone_is_too_large_is_named(kind: str, room: int) -> None:
    async def run() -> None:
        failed: list[Exception] = []
        sender = Sender(Narrow(0, room, kind), failed.append)
        payload = ["x"] * 10_000
        try:
            sender.send("worker/1", Items([(0, 0, True, orders(1, 17), [payload])], ()))
        except FlameError as error:
            failed.append(error)
        async with patience(10):
            while not failed:
                await asyncio.sleep(0)
        (error,) = failed
        assert isinstance(error, TooLargeError)
        assert "['x', 'x', 'x'," in error.what
        assert error.what.endswith("an item of time 17")
        assert len(error.what) < 200
        assert error.hint == "Make it smaller."
        assert error.type_name == "list"

    asyncio.run(run())


def test_an_error_of_another_kind_is_told_as_it_is() -> None:
    class Unknown(Narrow):
        def _take(self, message: Any) -> None:
            raise CodecError("a value of type socket cannot cross", type_name="socket")

    async def run() -> None:
        sender = Sender(Unknown(9, 9, ""), lambda error: None)
        with pytest.raises(CodecError, match=r"of type socket cannot cross$"):
            sender.send("worker/1", hand_over(4))

    asyncio.run(run())

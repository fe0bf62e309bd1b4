"""The wait queue: room in turn, an error when there will be none, and giving up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from flamecore.errors import PeerGoneError, SendTimeout
from flamecore.toolkit.wait_queue import WaitQueue

GONE = PeerGoneError("gone", address="a", peer="b")


class Room:
    """Takes numbers, as many at a time as there is room for."""

    def __init__(self) -> None:
        self.waiting: WaitQueue[int] = WaitQueue()
        self.taken: list[int] = []
        self.room = 0

    def make(self, room: int) -> None:
        self.room += room
        self.waiting.admit(lambda: len(self.taken) < self.room, self.take)

    def take(self, number: int) -> None:
        if number < 0:
            raise GONE
        self.taken.append(number)


def run(work: Callable[[Room, list[asyncio.Task[None]]], Awaitable[None]], *numbers: int) -> Room:
    async def main() -> Room:
        room = Room()
        tasks = [asyncio.create_task(room.waiting.wait(number)) for number in numbers]
        await asyncio.sleep(0)
        await work(room, tasks)
        assert all(task.done() for task in tasks)
        assert not room.waiting
        return room

    return asyncio.run(main())


def test_waiters_are_served_in_order_as_far_as_there_is_room() -> None:
    async def work(room: Room, tasks: list[asyncio.Task[None]]) -> None:
        for so_far in ([1, 2], [1, 2, 3]):
            room.make(len(so_far) - len(room.taken))
            assert room.taken == so_far, "handed over by whoever makes room"
        await asyncio.gather(*tasks)

    run(work, 1, 2, 3)


def test_an_error_goes_to_the_waiter_whose_turn_it_is() -> None:
    async def work(room: Room, tasks: list[asyncio.Task[None]]) -> None:
        room.make(2)
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert found == [None, GONE, None]
        assert room.taken == [1, 3]

    run(work, 1, -2, 3)


def test_refused_waiters_hear_of_it_and_the_others_keep_their_places() -> None:
    async def work(room: Room, tasks: list[asyncio.Task[None]]) -> None:
        assert room.waiting.refuse(lambda number: GONE if number % 2 else None) == 2
        room.make(9)
        assert room.taken == [2, 4]
        assert await asyncio.gather(*tasks, return_exceptions=True) == [GONE, None, GONE, None]

    run(work, 1, 2, 3, 4)


def test_a_cancelled_waiter_takes_no_room() -> None:
    async def work(room: Room, tasks: list[asyncio.Task[None]]) -> None:
        tasks[0].cancel()
        room.make(1)  # before the one who gives up has run
        assert room.taken == [2]
        await asyncio.gather(*tasks, return_exceptions=True)

    run(work, 1, 2)


def test_a_wait_has_a_limit() -> None:
    async def work(room: Room, tasks: list[asyncio.Task[None]]) -> None:
        with pytest.raises(TimeoutError):
            await room.waiting.wait(1, 0.01)

    run(work)


def test_a_message_for_which_there_is_no_room_tells_what_takes_it_up() -> None:
    async def work(room: Room, tasks: list[asyncio.Task[None]]) -> None:
        with pytest.raises(SendTimeout) as raised:
            await room.waiting.send(1, 0.01, sender="a", receiver="b", unread=lambda: "7 messages are unread")
        error = raised.value
        assert error.what == "b has given a no room for 0.01 s: 7 messages are unread"
        assert (error.address, error.peer, error.timeout_s) == ("a", "b", 0.01)
        assert not room.waiting, "it is not handed over any more"
        room.make(1)
        assert room.taken == []

    run(work)

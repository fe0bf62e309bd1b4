"""The credit of a worker is dealt among its fronts by how far each is behind."""

from __future__ import annotations

from random import Random

import pytest

from flamecore.model.meta import FrontId
from flamecore.runtime.parts.front import Front
from flamecore.runtime.parts.room import Room


def fronts(count: int) -> dict[int, Front]:
    return {number: Front(FrontId("s", number), number) for number in range(1, count + 1)}


def read(room: Room, front: Front, most: int = 1024) -> int:
    """Have a paused front read as much as it may, and return how much."""
    count = room.take(front.number, most) if room.has_room(front.number, most) else 0
    if count:
        front.stamp(range(count), 0.0)
        room.release(front.number)
    return count


def deliver(room: Room, some: dict[int, Front], before: int) -> None:
    for front in some.values():
        front.delivered(before)
    room.note()


def in_flight(some: dict[int, Front]) -> int:
    return sum(front.in_flight for front in some.values())


def test_a_front_alone_may_use_all_of_it() -> None:
    some = fronts(1)
    room = Room(some, 100)
    assert [read(room, some[1], 60), read(room, some[1], 60), read(room, some[1], 60)] == [60, 0, 0]
    assert read(room, some[1], 40) == 40
    assert read(room, some[1], 1) == 0
    deliver(room, some, 10)
    assert room.has_room(1, 10)
    assert not room.has_room(1, 11), "credit comes back bit by bit"
    assert read(room, some[1], 10) == 10
    deliver(room, some, 50)
    assert room.take(1, 60) == 40, "in a round whatever there is room for"


def test_fronts_that_read_at_one_pace_have_equal_parts() -> None:
    some = fronts(4)
    room = Room(some, 100)
    assert [read(room, front) for front in some.values()] == [25] * 4
    assert [read(room, front) for front in some.values()] == [0] * 4
    deliver(room, some, 20)
    assert [read(room, front) for front in some.values()] == [20] * 4


def test_the_front_that_is_behind_has_room_first() -> None:
    some = fronts(2)
    room = Room(some, 100)
    assert read(room, some[1]) == 50
    assert read(room, some[2], 10) == 10
    deliver(room, some, 10)  # 40 of the first wait for the second
    assert read(room, some[1]) == 0
    assert read(room, some[2]) == 50, "all that the first has left, up to an equal part"
    assert in_flight(some) <= 100


def test_a_slow_front_leaves_what_it_does_not_use_and_has_room_whenever_it_wants_some() -> None:
    some = fronts(2)
    fast, slow = some.values()
    room = Room(some, 100)
    assert room.take(slow.number, 16) == 16  # its source has nothing yet
    while read(room, fast, 4):
        pass
    assert fast.in_flight == 84, "all but what the slow one may read"
    for _ in range(50):
        slow.stamp(range(16), 0.0)
        room.release(slow.number)
        assert in_flight(some) <= 100
        deliver(room, some, min(slow.next_time, fast.next_time))
        assert room.take(slow.number, 16) == 16
        while read(room, fast, 4):
            pass
        assert fast.in_flight > 50


def test_a_front_that_has_ended_holds_only_what_is_on_its_way() -> None:
    some = fronts(2)
    room = Room(some, 100)
    assert [read(room, front) for front in some.values()] == [50, 50]
    some[2].ended = True
    room.note()
    assert read(room, some[1], 10) == 0
    deliver(room, some, 40)
    assert read(room, some[1], 80) == 80, "of the other 10 are on their way"


@pytest.mark.parametrize("most", [1, 3, 5])
def test_every_front_has_room_for_one_record(most: int) -> None:
    some = fronts(5)
    room = Room(some, most)
    assert [read(room, front) for front in some.values()] == [1] * 5
    assert [read(room, front) for front in some.values()] == [0] * 5
    deliver(room, some, 1)
    assert [read(room, front, 1) for front in some.values()] == [1] * 5


@pytest.mark.parametrize("seed", range(20))
def test_no_more_is_in_flight_than_is_allowed_whoever_reads_and_waits_and_ends(seed: int) -> None:
    """As on the sequence clock: all that every front has gone past is delivered. It always goes on to the end."""
    random = Random(seed)
    count, most = random.choice([(1, 10), (3, 20), (8, 8), (20, 100), (50, 60)])
    some = fronts(count)
    room = Room(some, most)
    left = {number: random.choice([0, 5, 80]) for number in some}
    waits = dict.fromkeys(some, 0)  # how much a read under way may bring
    for turn in range(50_000):
        if not any(left.values()):
            break
        number = random.choice([number for number in some if left[number] or waits[number]])
        front = some[number]
        if waits[number]:
            if random.random() < 0.3:
                found = min(random.randint(1, waits[number]), left[number])
                front.stamp(range(found), 0.0)
                left[number] -= found
                room.release(number)
                waits[number] = 0
        else:
            waits[number] = room.take(number, random.choice([1, 16, 1024]))
            assert waits[number] or front.in_flight, "it has room for one"
        for each, one in some.items():
            one.ended = not left[each] and not waits[each]
        if random.random() < 0.5:
            reserved = sum(max(one.in_flight + waits[each], not one.ended) for each, one in some.items())
            assert reserved <= max(most, count), turn
            deliver(room, some, min((one.next_time for one in some.values() if not one.ended), default=1_000_000))
    assert not any(left.values()), "some front stands still for ever"


def keeping(count: int) -> dict[int, Front]:
    return {number: Front(FrontId("s", number), number, snapshots=True) for number in range(1, count + 1)}


def test_a_front_may_read_all_that_may_be_uncommitted_beside_others_that_wait_for_lines() -> None:
    some = keeping(200)
    room = Room(some, 10_000, 1000)

    def taken(front: Front) -> list[int]:
        found = []
        for _ in range(150):
            found.append(read(room, front, 10))
            deliver(room, some, 10_000)
        return found

    assert taken(some[1]) == [10] * 100 + [0] * 50
    assert not room.has_room(1, 10)
    assert read(room, some[2], 10) == 10, "another one goes on once: it may be what the next snapshot waits for"
    assert read(room, some[2], 10) == 0
    some[1].cut(400)
    assert sum(taken(some[1])) == 390
    assert sum(front.uncommitted for front in some.values()) == 1000


@pytest.mark.parametrize("seed", range(20))
def test_no_more_is_uncommitted_than_may_be_but_for_one_read_of_each(seed: int) -> None:
    random = Random(seed)
    some = keeping(random.randint(1, 6))
    most = random.randint(1, 300)
    room = Room(some, 1_000, most)
    for _ in range(300):
        front = some[random.choice(list(some))]
        before, total = front.uncommitted, sum(each.uncommitted for each in some.values())
        got = read(room, front, random.randint(1, 20))
        assert got == 0 or not before or total < most, "it waits for a snapshot"
        if random.random() < 0.1:
            end = min(each.next_time for each in some.values())
            deliver(room, some, end)
            for each in some.values():
                each.cut(end)
        assert sum(each.uncommitted for each in some.values()) < most + 20 * len(some)


def test_a_snapshot_is_asked_for_once_when_no_more_may_be_read() -> None:
    some = keeping(2)
    room = Room(some, 10_000, 100)
    assert not room.asks_for_snapshot()
    assert [read(room, front, 50) for front in some.values()] == [50, 50]
    assert [room.asks_for_snapshot(), room.asks_for_snapshot()] == [True, False]
    room.committed()
    assert room.asks_for_snapshot(), "nothing has come into it, so another one is needed"
    some[1].cut(some[1].next_time)
    room.committed()
    assert not room.asks_for_snapshot()
    assert not Room(fronts(1), 10).asks_for_snapshot(), "there are none"


class WatchedFront(Front):
    """A front that counts how often it is asked for its records in flight."""

    asked = 0

    @property
    def in_flight(self) -> int:
        WatchedFront.asked += 1
        return super().in_flight


@pytest.mark.parametrize("count", [100, 1000])
def test_a_read_takes_a_look_at_few_fronts_however_many_there_are(count: int) -> None:
    some: dict[int, Front] = {
        number: WatchedFront(FrontId("s", number), number, snapshots=True) for number in range(1, count + 1)
    }
    room = Room(some, 4 * count, 1)
    WatchedFront.asked = 0
    for turn in range(1, 4):
        for front in some.values():
            room.note()
            assert read(room, front, 1) == 1
            assert read(room, front, 1) == 0, "the snapshot is due"
            front.delivered(turn)
            front.cut(turn)
            room.committed()
    assert WatchedFront.asked <= 3 * count * 20


@pytest.mark.parametrize("seed", range(20))
def test_the_level_is_that_of_a_look_at_all_fronts(seed: int) -> None:
    random = Random(seed)
    some, most = fronts(6), 40
    room = Room(some, most)
    for _ in range(200):
        front = random.choice([front for front in some.values() if not front.ended])
        room.note()
        taken = room.take(front.number, 100)
        held = sorted(max(each.in_flight, 1) for each in some.values() if not each.ended)
        left = most - sum(each.in_flight for each in some.values() if each.ended)
        while len(held) > 1 and left // len(held) < held[-1]:
            left -= held.pop()
        assert taken == max(max(left // len(held), 1) - front.in_flight, 0)
        if taken:
            front.stamp(range(random.randint(0, taken)), 0.0)
            room.release(front.number)
        assert room.in_flight == in_flight(some)
        if random.random() < 0.3:
            deliver(room, some, random.randrange(front.next_time + 1))
        if random.random() < 0.02 and sum(not each.ended for each in some.values()) > 1:
            front.ended = True

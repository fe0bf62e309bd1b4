"""Fronts: global times strictly grow, and where a record stood is remembered until it is delivered."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flamecore.clock import ClockName, Front
from flamecore.meta import FrontId, GlobalTime, Meta


class Wall:
    """A clock that is set by hand."""

    def __init__(self, now: int = 1_000) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now


def front(clock: ClockName = "sequence", *, number: int = 1, start: int = 0, wall: Wall | None = None) -> Front:
    return Front(
        FrontId("numbers", 0), number, clock=clock, start=start, now_us=wall or Wall(), describe=lambda at: f"line {at}"
    )


def test_the_sequence_clock_counts_from_its_start() -> None:
    counting = front(start=5)
    assert counting.stamp(range(3), 0.0) == 5
    assert counting.stamp([], 0.0) == 8
    assert counting.stamp(["x"], 0.0) == 8
    assert counting.promise() == 9, "right after the last item: it must not wait for the next one"
    assert counting.promise() == 9


def test_the_wall_clock_gives_microseconds_that_never_repeat() -> None:
    wall = Wall(1_000)
    live = front("wall", wall=wall)
    assert live.stamp(range(3), 0.0) == 1_000
    assert live.stamp(range(1), 0.0) == 1_003, "the clock has not moved, times have"
    wall.now = 5_000
    assert live.stamp(range(1), 0.0) == 5_000
    wall.now = 4_000
    assert live.stamp(range(1), 0.0) == 5_001, "a clock that was put back"


def test_the_wall_clock_promises_that_time_goes_on() -> None:
    wall = Wall(1_000)
    live = front("wall", wall=wall)
    live.stamp(range(10), 0.0)
    assert live.promise() == 1_010
    wall.now = 9_000
    assert live.promise() == 9_000
    assert live.stamp(range(1), 0.0) >= 9_000, "a promise is kept"
    wall.now = 1
    assert live.promise() == 9_001


@given(
    st.sampled_from(["sequence", "wall"]),
    st.lists(st.tuples(st.integers(-5, 50), st.integers(0, 4), st.booleans()), max_size=20),
)
def test_times_strictly_grow_and_promises_are_kept(clock: ClockName, steps: list[tuple[int, int, bool]]) -> None:
    wall = Wall(100)
    stamping = front(clock, wall=wall)
    promised, last = 0, -1
    for moved, count, promise in steps:
        wall.now += moved
        if promise:
            assert stamping.promise() >= promised
            promised = stamping.next_time
        first = stamping.stamp(range(count), 0.0)
        if count:
            assert first > last
            assert first >= promised
            last = first + count - 1
        assert stamping.next_time > last


def test_the_suffix_is_the_front_of_the_order() -> None:
    assert Meta(GlobalTime(7, 300)).order.endswith(front(number=300).suffix)


def test_positions_are_found_until_they_are_delivered() -> None:
    counting = front()
    counting.stamp(["a", "b", "c"], 1.0)
    counting.stamp(["d", "e"], 2.0)
    assert [counting.where(time) for time in range(-1, 6)] == ["", *(f"line {at}" for at in "abcde"), ""]
    assert counting.in_flight == 5
    assert counting.delivered(0) == []
    assert counting.delivered(2) == [(1.0, 2)]
    assert [counting.where(time) for time in range(5)] == ["", "", "line c", "line d", "line e"]
    assert counting.delivered(5) == [(1.0, 1), (2.0, 2)]
    assert counting.in_flight == 0
    assert counting.where(4) == ""
    assert counting.delivered(100) == []


def test_gaps_of_the_wall_clock_have_no_position() -> None:
    wall = Wall(10)
    live = front("wall", wall=wall)
    live.stamp(["a"], 0.0)
    wall.now = 20
    live.stamp(["b"], 0.0)
    assert [live.where(time) for time in (9, 10, 11, 19, 20, 21)] == ["", "line a", "", "", "line b", ""]
    assert live.delivered(15) == [(0.0, 1)]
    assert live.in_flight == 1


@given(st.lists(st.integers(0, 5), max_size=8), st.lists(st.integers(0, 30), max_size=8).map(sorted), st.booleans())
def test_everything_admitted_is_delivered_once(counts: list[int], limits: list[int], ranges: bool) -> None:
    counting = front()
    positions: list[Any] = []
    for count in counts:
        batch = range(len(positions), len(positions) + count)
        positions += batch
        counting.stamp(batch if ranges else list(batch), 0.0)
    done = 0
    for limit in limits:
        done += sum(count for _, count in counting.delivered(limit))
        assert done == min(limit, len(positions))
        assert counting.in_flight == len(positions) - done
        for time, position in enumerate(positions):
            assert counting.where(time) == (f"line {position}" if time >= limit else "")


@pytest.mark.parametrize("clock", ["sequence", "wall"])
def test_an_idle_front_holds_nothing(clock: ClockName) -> None:
    idle = front(clock)
    assert idle.in_flight == 0
    assert idle.delivered(10**6) == []
    assert idle.where(0) == ""

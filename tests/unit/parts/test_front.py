"""Fronts: global times strictly grow, and where a record stood is remembered until it is delivered."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flamecore.model.clock import ClockName
from flamecore.model.meta import FrontId, GlobalTime, Meta
from flamecore.runtime.parts.front import Front
from flamecore.runtime.parts.front_merge import FrontMerge
from flamecore.runtime.state.journal import IDLE_MARK, LAST_MARK


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


# -- fronts that go on -------------------------------------------------------------------------------------------------


def kept(clock: ClockName = "sequence", **settings: Any) -> Front:
    return Front(FrontId("numbers", 0), 1, clock=clock, snapshots=True, **{"now_us": Wall(), **settings})


def test_a_cut_says_where_the_next_run_begins() -> None:
    front = kept(position="before", start=10)
    assert front.cut(10) == ("before", 10)
    front.stamp(["a", "b", "c"], 0.0)
    front.stamp(["d"], 0.0)
    assert front.uncommitted == 4
    assert front.cut(10) == ("before", 10)
    assert front.cut(12) == ("b", 12), "in the midst of a batch"
    assert front.uncommitted == 2
    assert front.cut(14) == ("d", 14)
    assert front.cut(20) == ("d", 20), "time went on without it: it has ended, and if there is more that comes later"
    assert front.uncommitted == 0


def test_nothing_is_remembered_for_cuts_without_snapshots() -> None:
    counting = front()
    counting.stamp(range(5), 0.0)
    assert counting.uncommitted == 0


def test_a_cut_in_a_gap_of_the_wall_clock_gives_the_next_time_that_was_given() -> None:
    wall = Wall(100)
    live = kept("wall", now_us=wall)
    live.stamp(["a"], 0.0)
    wall.now = 200
    live.stamp(["b"], 0.0)
    assert live.cut(150) == ("a", 200)
    assert live.cut(201) == ("b", 201)


@pytest.mark.parametrize("now", [0, 3_600_000_000, 7_200_000_000])
def test_times_of_the_journal_are_given_again_whatever_the_clock_says(now: int) -> None:
    """It was put back by an hour, or forward; what was given once is given again, and what is new comes after it."""
    given = 3_600_000_000
    live = kept("wall", start=given, journal=[(given, 3), (given + 50, 2)], now_us=Wall(now))
    assert live.times_left == 3
    assert live.promise() == given, "nothing is promised that is to be given again"
    assert live.stamp(["a", "b"], 0.0) == given
    assert live.promise() == given + 2
    assert live.times_left == 1
    assert live.stamp(["c"], 0.0) == given + 2
    assert live.promise() == given + 50
    assert live.stamp([], 0.0) <= given + 50, "nothing takes no time of the journal"
    assert live.stamp(["d", "e"], 0.0) == given + 50
    assert live.times_left is None
    assert live.stamp(["f"], 0.0) == max(given + 52, now)


@pytest.mark.parametrize("now", [0, 900, 5_000])
def test_new_records_begin_at_the_floor(now: int) -> None:
    """Sinks contain outputs of later times than the journal, and the clock was put back."""
    live = kept("wall", start=1_000, journal=[(400, 2)], now_us=Wall(now))
    assert live.stamp(["a", "b"], 0.0) == 400
    assert live.promise() == max(1_000, now)
    assert live.stamp(["c"], 0.0) == max(1_000, now)


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(1, 4)), max_size=5),
    st.lists(st.tuples(st.integers(-30, 30), st.integers(1, 4)), max_size=10),
    st.integers(0, 100),
)
def test_with_a_journal_times_grow_promises_are_kept_and_given_times_come_back(
    runs: list[tuple[int, int]], reads: list[tuple[int, int]], floor: int
) -> None:
    journal, next_time = [], 0
    for gap, count in runs:
        journal.append((next_time + gap, count))
        next_time += gap + count
    wall = Wall(50)
    live = kept("wall", start=floor, journal=journal, now_us=wall)
    before = [first + each for first, count in journal for each in range(count)]
    got: list[int] = []
    for moved, count in reads:
        wall.now += moved
        promised = live.promise()
        count = min(count, live.times_left or count)
        first = live.stamp(range(count), 0.0)
        assert first >= promised
        got += range(first, first + count)
    assert got == sorted(set(got))
    again = min(len(before), len(got))
    assert got[:again] == before[:again]
    assert all(time >= floor for time in got[again:])


def test_a_front_that_had_ended_ends_there_again() -> None:
    """The source has grown since; but the time of others has gone on."""
    front = kept(start=5, end=8)
    assert front.records_left == 3
    front.stamp(["a", "b"], 0.0)
    assert front.records_left == 1
    front.stamp(["c"], 0.0)
    assert front.records_left == 0
    assert kept(start=9, end=8).records_left == 0
    assert kept().records_left is None


def test_a_front_that_had_closed_by_the_wall_clock_closes_there_again() -> None:
    """The source has grown since; another run has read some of that."""
    given: list[tuple[int, int]] = [(10, 2), (20, IDLE_MARK), (30, 1), (40, LAST_MARK), (50, 3)]
    live = kept("wall", start=60, journal=given, now_us=Wall(70))
    assert live.records_left == 3
    assert live.stamp(["a"], 0.0) == 10
    assert live.records_left == 2
    assert live.stamp(["b"], 0.0) == 11
    assert live.was_idle
    assert live.stamp_idle() == 20
    assert live.records_left == 1
    assert live.stamp(["c"], 0.0) == 30
    assert live.records_left == 0
    assert not live.was_idle
    assert live.promise() == 40
    assert live.stamp_end() == 40
    assert live.records_left == 0
    assert kept("wall", start=60, journal=[(40, LAST_MARK)]).records_left == 0
    assert kept("wall", start=60, journal=[(40, 2), (50, IDLE_MARK)]).records_left is None


@given(
    st.lists(st.integers(1, 5), max_size=8),
    st.lists(st.integers(0, 30), max_size=6).map(sorted),
    st.booleans(),
)
def test_from_any_cut_the_rest_gets_the_same_times(counts: list[int], cuts: list[int], ranges: bool) -> None:
    front = kept()
    times: dict[int, int] = {}
    for count in counts:
        batch = range(len(times), len(times) + count)
        first = front.stamp(batch if ranges else list(batch), 0.0)
        times.update(zip(batch, range(first, first + count), strict=True))
    for cut in cuts:
        cut = min(cut, len(times))
        position, start = front.cut(cut)
        left = [each for each in times if position is None or each > position]
        assert left == [each for each, time in times.items() if time >= cut]
        assert front.uncommitted == len(left)
        again = kept(start=start, position=position)
        assert again.stamp(left, 0.0) == start or not left
        assert not left or start == times[left[0]]


def test_a_front_with_one_record_in_flight_takes_little_memory() -> None:
    some = [Front(FrontId("s", number), number, snapshots=True) for number in range(1000)]
    tracemalloc.start()
    try:
        more = [Front(each.name, each.number, snapshots=True) for each in some]
        merge = FrontMerge({front.number: front for front in more})
        for front in more:
            merge.add(front.number, front.stamp((0,), 0.0), [None])
        assert tracemalloc.get_traced_memory()[0] < 2500 * len(more)
    finally:
        tracemalloc.stop()

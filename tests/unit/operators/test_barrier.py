"""The barrier, by the kit and against a hypothesis-drawn model; and the words of its errors."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flamecore.abc.operator import Site
from flamecore.errors import DuplicateItemError, NoInvalideeError, OrderViolationError, TimeRegressionError
from flamecore.model.meta import GlobalTime, Meta
from flamecore.model.vertices import Sink
from flamecore.runtime.operators.barrier import Barrier, Outlet, sink_operator
from flamecore.testing.checks.barriers import BarrierTests


class TestBarrier(BarrierTests):
    def make(self) -> Barrier:
        return Barrier("out")


def put(barrier: Barrier, time: int, *children: int, trace: int = 0, alive: bool = True, payload: Any = None) -> None:
    order = Meta(GlobalTime(time, 1), children).order
    barrier.step(order, trace, alive, f"{time}" if payload is None else payload)


def payloads(batch: list[tuple[bytes, Any]]) -> list[Any]:
    return [payload for _, payload in batch]


def test_case_61_strictly_below_the_minimum_time_in_order() -> None:
    barrier = Barrier("out")
    for time in (2, 3, 1):
        put(barrier, time)
    assert payloads(barrier.release(3)) == ["1", "2"]
    assert len(barrier) == 1
    assert barrier.release(3) == []
    assert payloads(barrier.release(4)) == ["3"]
    assert len(barrier) == 0


@given(st.lists(st.integers(-5, 5), unique=True), st.lists(st.integers(-6, 6)).map(sorted))
def test_releases_cut_the_sorted_sequence(times: list[int], limits: list[int]) -> None:
    barrier = Barrier("out")
    for time in times:
        put(barrier, time, payload=time)
    released = []
    for limit in limits:
        batch = payloads(barrier.release(limit))
        assert batch == [time for time in sorted(times) if time < limit and time not in released]
        released += batch
    assert len(barrier) == len(times) - len(released)


def test_a_run_that_overlaps_what_a_release_has_left_is_merged() -> None:
    barrier = Barrier("out")

    def run(*times: int) -> None:
        barrier.run([Meta(GlobalTime(time, 1), ()).order for time in times], 0, list(times))

    run(1, 3, 5, 7, 9)
    assert payloads(barrier.release(4)) == [1, 3]
    run(6, 8, 10)
    assert payloads(barrier.release(9)) == [5, 6, 7, 8]
    run(11)
    assert payloads(barrier.release(20)) == [9, 10, 11]


run_times = st.lists(st.sets(st.integers(-5, 5), min_size=1).map(sorted), max_size=5)


@given(run_times, st.sets(st.integers(-5, 5)), st.lists(st.integers(-6, 6)).map(sorted))
def test_runs_that_overlap_are_merged(runs: list[list[int]], singles: set[int], limits: list[int]) -> None:
    """Children tell apart what has one time: item `time[n]` comes with run number n, `time[]` alone."""
    barrier = Barrier("out")
    wanted: list[tuple[bytes, int]] = []
    for number, times in enumerate(runs):
        orders = [Meta(GlobalTime(time, 1), (number,)).order for time in times]
        barrier.run(orders, number, times)
        wanted += zip(orders, times, strict=True)
    for time in singles:
        put(barrier, time, payload=time)
        wanted.append((Meta(GlobalTime(time, 1)).order, time))
    for limit in limits:
        batch = barrier.release(limit)
        assert batch == sorted(item for item in wanted if item[1] < limit)
        wanted = [item for item in wanted if item[1] >= limit]
        assert len(barrier) == len(wanted)


@pytest.mark.parametrize("trace", [3, 4])
def test_runs_that_hold_one_order_twice_are_refused(trace: int) -> None:
    barrier = Barrier("out")
    orders = [Meta(GlobalTime(time, 1)).order for time in (1, 2, 3)]
    barrier.run(orders, 3, ["a", "b", "c"])
    barrier.run(orders[1:2], trace, ["again"])
    kind, what = (DuplicateItemError, "second live") if trace == 3 else (OrderViolationError, "two valid items")
    with pytest.raises(kind, match=what):
        barrier.release(9)


def test_a_tombstone_finds_its_victim_among_runs() -> None:
    barrier = Barrier("out")
    orders = [Meta(GlobalTime(time, 1)).order for time in (1, 2, 3)]
    barrier.run(orders, 3, ["a", "b", "c"])
    barrier.run(orders[1:2], 4, ["new"])
    barrier.step(orders[1], 3, False, "b")
    assert payloads(barrier.release(9)) == ["a", "new", "c"]


def test_one_identity_twice_is_refused() -> None:
    barrier = Barrier("out")
    put(barrier, 1, 0, trace=3)
    put(barrier, 1, 0, trace=4)
    for trace in (3, 4):
        with pytest.raises(DuplicateItemError, match="sink 'out'") as caught:
            put(barrier, 1, 0, trace=trace, payload="again")
        assert (caught.value.vertex, caught.value.record) == ("out", "again")
    assert len(barrier) == 2


def test_a_tombstone_without_victim_is_refused() -> None:
    barrier = Barrier("out")
    put(barrier, 1, 0, trace=3)
    for children, trace in (((0,), 4), ((), 3), ((0, 0), 3)):
        with pytest.raises(NoInvalideeError, match="not deterministic") as caught:
            put(barrier, 1, *children, trace=trace, alive=False, payload="gone")
        assert (caught.value.vertex, caught.value.record) == ("out", "gone")
    assert payloads(barrier.release(2)) == ["1"]


def test_the_error_of_a_time_that_goes_back_names_both() -> None:
    barrier = Barrier("out")
    barrier.release(7)
    with pytest.raises(TimeRegressionError) as caught:
        barrier.release(6)
    assert (caught.value.time, caught.value.limit) == (6, 7)


def test_a_late_item_is_refused() -> None:
    barrier = Barrier("out")
    barrier.release(7)
    put(barrier, 8)
    put(barrier, 6, payload="late")
    with pytest.raises(OrderViolationError, match="passed") as caught:
        barrier.release(7)
    assert caught.value.record == "late"


def test_two_valid_items_of_one_order_are_refused() -> None:
    barrier = Barrier("out")
    put(barrier, 5, trace=1)
    put(barrier, 5, trace=2)
    assert barrier.release(5) == [], "until then one of them may still be taken back"
    with pytest.raises(OrderViolationError, match="one order"):
        barrier.release(6)


def test_a_sink_without_a_barrier_lets_outputs_go_as_they_come() -> None:
    ends = [sink_operator(Sink("out"), Site(0, lambda *_: None, (), barrier=barrier)) for barrier in (True, False)]
    assert [type(end) for end in ends] == [Barrier, Outlet]
    (outlet,) = (end for end in ends if isinstance(end, Outlet))
    orders = [Meta(GlobalTime(time, 1), ()).order for time in range(3)]
    outlet.run(orders[1:], 0, ["1", "2"])
    outlet.step(orders[0], 0, True, "0")
    assert outlet.items == [(orders[1], "1"), (orders[2], "2"), (orders[0], "0")]

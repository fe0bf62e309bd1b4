"""The ordered rear: what all workers release becomes one sequence, whatever arrives first."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flamecore.errors import OrderViolationError
from flamecore.model.failure import Cause, Failure
from flamecore.model.messages import Released
from flamecore.model.meta import MIN_TIME, GlobalTime, Meta
from flamecore.runtime.parts.collector import Collector, Complete


def at(time: int, *children: int, front: int = 1) -> bytes:
    return Meta(GlobalTime(time, front), children).order


def released(worker: int, time: int, *orders: bytes, failures: tuple[tuple[bytes, Failure], ...] = ()) -> Released:
    return Released(worker, time, orders, [str(Meta.decode(order)) for order in orders], list(failures))


def failure(time: int) -> Failure:
    return Failure(source=None, vertex="map", record="record", key=None, cause=Cause("no"), at=GlobalTime(time, 1))


def test_one_worker_is_delivered_as_it_releases() -> None:
    collector = Collector("out", 1)
    assert collector.receive(released(0, 3, at(1), at(2))) == Complete(3, ["1@1[]", "2@1[]"], until=3)
    assert collector.receive(released(0, 5)) == Complete(5, []), (
        "an idle front moves the time on, and nothing is behind it"
    )
    assert collector.time == 5


def test_items_below_the_least_time_are_complete() -> None:
    collector = Collector("out", 3)
    assert collector.receive(released(0, 9, at(1), at(4), at(8))) is None
    assert collector.receive(released(1, 5, at(2), at(3))) is None
    assert collector.receive(released(2, 4, at(1, 0))) == Complete(4, ["1@1[]", "1@1[0]", "2@1[]", "3@1[]"], until=4)
    assert collector.receive(released(1, 6)) is None, "the slowest worker decides"
    assert collector.receive(released(2, 8, at(7))) == Complete(6, ["4@1[]"], until=5)
    assert collector.receive(released(1, 10)) == Complete(8, ["7@1[]"], until=8)
    assert collector.receive(released(2, 10, at(8, 1))) == Complete(9, ["8@1[]", "8@1[1]"], until=9)


def test_case_61_a_sink_that_holds_earlier_output_gets_the_rest() -> None:
    collector = Collector("out", 1, delivered_up_to=2)
    assert collector.receive(released(0, 3, at(1), at(1, 5), at(2), at(2, 0))) == Complete(
        3, ["2@1[]", "2@1[0]"], until=3
    )
    two = Collector("out", 2, delivered_up_to=2)
    two.receive(released(0, 3, at(1), at(2, 0)))
    assert two.receive(released(1, 3, at(1, 5), at(2))) == Complete(3, ["2@1[]", "2@1[0]"], until=3)


def test_without_the_barrier_items_pass_as_they_come() -> None:
    """Semantics 3.4: no order between workers, the time is that of the slowest."""
    collector = Collector("out", 2, barrier=False)
    first = collector.receive(released(0, 9, at(7)))
    second = collector.receive(released(1, 2, at(1)))
    assert first is not None
    assert second is not None
    assert (first.payloads, second.payloads) == (["7@1[]"], ["1@1[]"])
    assert second.time == 2


def test_without_the_barrier_a_failure_ends_the_job_all_the_same() -> None:
    collector = Collector("out", 2, barrier=False)
    collector.receive(released(0, 9, at(1), failures=((at(5), failure(5)),)))
    assert collector.receive(released(1, 6, at(2))) == Complete(5, ["2@1[]"], failure(5), until=5)


def test_a_failure_ends_the_sequence_before_its_record() -> None:
    """A record is delivered with all that comes of it, or not at all."""
    collector = Collector("out", 2)
    early, late = (at(3, 1), failure(3)), (at(5), failure(5))
    assert collector.receive(released(0, 9, at(1), at(3, 0), at(3, 2), at(8), failures=(late,))) is None
    complete = collector.receive(released(1, 9, at(2), failures=(early,)))
    assert complete == Complete(3, ["1@1[]", "2@1[]"], early[1], until=3)


def test_the_least_failure_of_a_record_is_reported() -> None:
    collector = Collector("out", 1)
    first, second = (at(3, 1), failure(3)._replace(vertex="first")), (at(3, 1, 0), failure(3))
    complete = collector.receive(released(0, 4, failures=(second, first)))
    assert complete is not None
    assert complete.failure == first[1]


def test_a_failure_waits_until_all_before_it_is_complete() -> None:
    collector = Collector("out", 2)
    assert collector.receive(released(0, 9, failures=((at(5), failure(5)),))) is None
    assert collector.receive(released(1, 4, at(1))) == Complete(4, ["1@1[]"], until=2)
    assert collector.receive(released(1, 6, at(4), at(5, 0))) == Complete(5, ["4@1[]"], failure(5), until=5)


def test_items_of_one_order_from_two_workers_are_refused() -> None:
    collector = Collector("out", 2)
    collector.receive(released(0, 5, at(1), at(2)))
    with pytest.raises(OrderViolationError, match="one order") as caught:
        collector.receive(released(1, 5, at(2), at(3)))
    assert caught.value.vertex == "out"


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 2), st.integers(0, 3)), unique_by=lambda item: item[:2]),
    st.integers(1, 4),
    st.integers(0, 2**32),
    st.sampled_from([MIN_TIME, 0, 7]),
)
def test_any_interleaving_gives_one_sorted_sequence(
    items: list[tuple[int, int, int]], workers: int, seed: int, held: int
) -> None:
    random = Random(seed)
    channels: list[list[Released]] = []
    for worker in range(workers):
        mine = sorted(at(time, child) for time, child, owner in items if owner % workers == worker)
        limits = sorted({*(random.randrange(22) for _ in range(4)), 25})
        before = MIN_TIME
        releases = []
        for limit in limits:
            part = [order for order in mine if before <= Meta.decode(order).global_time.time < limit]
            releases.append(released(worker, limit, *part))
            before = limit
        channels.append(releases)
    collector = Collector("out", workers, delivered_up_to=held)
    times, got = [], []
    while any(channels):
        complete = collector.receive(random.choice([channel for channel in channels if channel]).pop(0))
        if complete is not None:
            times.append(complete.time)
            got += complete.payloads
            if complete.payloads:
                assert complete.until == int(complete.payloads[-1].partition("@")[0]) + 1 <= complete.time
    assert got == [str(Meta.decode(order)) for order in sorted(at(t, c) for t, c, _ in items if t >= held)]
    assert times == sorted(times)
    assert workers == 1 or len(set(times)) == len(times), "times of batches grow strictly"
    assert times[-1] == 25


def test_orders_are_kept_for_a_sink_that_wants_them() -> None:
    collector = Collector("out", 2, delivered_up_to=2, orders=True)
    collector.receive(released(0, 9, at(1), at(4), at(5)))
    complete = collector.receive(released(1, 6, at(2), failures=((at(5), failure(5)),)))
    assert complete == Complete(5, ["2@1[]", "4@1[]"], failure(5), [at(2), at(4)], until=5)
    assert Collector("out", 1).receive(released(0, 3, at(1))) == Complete(3, ["1@1[]"], until=2), "others do without"

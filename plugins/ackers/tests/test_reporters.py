"""Reports of workers. Numbers are those of the history."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from flamecore.abc.acker import Acker, AckerPlan, Reporter
from flamecore.errors import ConfigError, TimeRegressionError
from flamecore.model.messages import Ack, Report
from flamecore.model.meta import MAX_TIME, MIN_TIME
from flamecore.testing.simulation.ackers import SEGMENTS
from flamestream_ackers.local import Local
from flamestream_ackers.sharded import rounded

Build = Callable[..., Callable[[AckerPlan], Acker]]
PLAN = AckerPlan(2, SEGMENTS[1], (1, 2))
X, Y, Z = 11, 22, 44


@pytest.fixture
def centralized(acker: Build) -> Reporter:
    return acker("centralized")(PLAN).reporter(1)


@pytest.fixture
def local(acker: Build) -> Reporter:
    return acker("local", flush_interval_ms=5, flush_count=3)(PLAN).reporter(1)


@pytest.fixture
def sharded(acker: Build) -> Reporter:
    return acker("sharded", shards=2)(PLAN).reporter(1)


def test_nothing_to_say_is_not_sent(centralized: Reporter, local: Reporter, sharded: Reporter) -> None:
    for reporter in (centralized, local, sharded):
        assert list(reporter.flush(0.0)) == []
        assert reporter.due() is None


def test_f5_one_report_a_flush_merged_and_highest_first(centralized: Reporter) -> None:
    for segment, time, xor in [(0, 1, X), (0, 3, Y), (1, 1, Z), (0, 1, Y), (0, 2, X), (0, 2, X)]:
        centralized.ack(segment, time, xor)
    for time in (1, 2, 3):
        centralized.heartbeat(2, time)
    centralized.heartbeat(1, 7)
    acks = (Ack(1, 1, Z), Ack(0, 3, Y), Ack(0, 1, X ^ Y))
    assert list(centralized.flush(0.0)) == [(0, Report(1, 1, acks, ((2, 3), (1, 7))))]
    assert list(centralized.flush(0.0)) == []
    centralized.ack(0, 4, X)
    centralized.heartbeat(1, 7)  # promised already
    assert list(centralized.flush(0.0)) == [(0, Report(1, 2, (Ack(0, 4, X),)))]


def test_reports_say_whether_the_worker_is_at_rest(centralized: Reporter, local: Reporter) -> None:
    for reporter in (centralized, local):
        reporter.heartbeat(1, 1)
        reporter.flush(0.0)
        assert [report.at_rest for _, report in reporter.flush(1.0)] in ([], [False])
        reporter.rest(at_rest=True)
        assert list(reporter.flush(1.0)) == [], "no report for its own sake"
        reporter.heartbeat(1, 2)
        reporter.flush(1.0)
        reporter.heartbeat(1, 3)
        reporter.ack(0, 3, X)
        reporter.rest(at_rest=False)
        reporter.flush(1.5)
        reporter.rest(at_rest=True)
        reporter.heartbeat(1, 4)
        assert [report.at_rest for _, report in reporter.flush(9.0)] == [True]


def test_f3_and_f4_the_end_of_a_front_waits_for_the_acks_and_is_due_at_once(centralized: Reporter) -> None:
    centralized.ack(0, 1, X)
    centralized.heartbeat(1, 2)
    centralized.unregister(1)
    assert list(centralized.flush(3.5)) == [(0, Report(1, 1, (Ack(0, 1, X),), ((1, 2),)))]
    assert centralized.due() == 3.5
    assert list(centralized.flush(3.5)) == [(0, Report(1, unregistered=(1,)))]
    assert centralized.due() is None


def test_the_end_of_a_front_is_not_kept_waiting_by_a_busy_worker(centralized: Reporter) -> None:
    centralized.ack(0, 1, X)
    centralized.unregister(1)
    centralized.flush(0.0)
    centralized.ack(0, 2, Y)
    centralized.unregister(2)
    assert list(centralized.flush(1.0)) == [
        (0, Report(1, unregistered=(1,))),
        (0, Report(1, 2, (Ack(0, 2, Y),))),
    ]
    assert list(centralized.flush(1.0)) == [(0, Report(1, unregistered=(2,)))]


def test_heartbeats_and_the_end_of_a_front_travel_together(centralized: Reporter) -> None:
    centralized.heartbeat(1, 5)
    centralized.unregister(1)
    assert list(centralized.flush(0.0)) == [(0, Report(1, 0, (), ((1, 5),), (1,)))]


def test_promises_are_not_taken_back(centralized: Reporter, local: Reporter, sharded: Reporter) -> None:
    for reporter in (centralized, local, sharded):
        reporter.heartbeat(1, 5)
        with pytest.raises(TimeRegressionError) as caught:
            reporter.heartbeat(1, 4)
        assert (caught.value.time, caught.value.limit) == (4, 5)
        reporter.unregister(1)
        with pytest.raises(TimeRegressionError, match="ended"):
            reporter.heartbeat(1, 6)


@pytest.mark.parametrize("start", [10.001, 10.0025])
def test_local_waits_for_the_end_of_its_interval(local: Reporter, start: float) -> None:
    """Intervals end at multiples of 5 ms: all reporters of a machine send together."""
    local.ack(0, 1, X)
    assert list(local.flush(start)) == []
    assert local.due() == pytest.approx(10.005)
    local.ack(0, 1, Y)
    local.heartbeat(1, 2)
    assert list(local.flush(10.004)) == []
    assert list(local.flush(10.0051)) == [(0, Report(1, 1, (Ack(0, 1, X ^ Y),), ((1, 2),)))]
    assert local.due() is None


@pytest.mark.parametrize(("outer_ms", "inner_ms", "due"), [(20, 5, 1.025), (5, 50, 1.025)])
def test_local_is_due_as_soon_as_itself_or_the_reporter_inside(
    acker: Build, outer_ms: int, inner_ms: int, due: float
) -> None:
    reporter = acker("local", inner="local", inner_options={"flush_interval_ms": inner_ms}, flush_interval_ms=outer_ms)(
        PLAN
    ).reporter(1)
    reporter.ack(0, 1, X)
    assert list(reporter.flush(1.001)) == []
    assert list(reporter.flush(1.0201)) == []  # the one inside has it now
    reporter.ack(0, 2, Y)
    assert list(reporter.flush(1.0202)) == []
    assert reporter.due() == pytest.approx(due)


def test_local_waits_for_its_count_of_reports(local: Reporter) -> None:
    for time in (1, 2):
        local.ack(0, time, X)
        assert list(local.flush(0.0)) == []
    local.ack(0, 2, Y)  # counts though it is merged
    assert list(local.flush(0.0)) == [(0, Report(1, 1, (Ack(0, 2, X ^ Y), Ack(0, 1, X))))]


def test_f3_and_f4_hold_in_local_as_well(local: Reporter) -> None:
    local.ack(0, 1, X)
    local.heartbeat(1, 2)
    local.unregister(1)
    assert list(local.flush(0.001)) == []
    assert list(local.flush(1.001)) == [(0, Report(1, 1, (Ack(0, 1, X),), ((1, 2),)))]
    assert local.due() == 1.001
    local.ack(0, 2, Y)
    assert list(local.flush(1.001)) == [(0, Report(1, unregistered=(1,)))]
    assert local.due() == pytest.approx(1.005)


def test_local_without_an_interval_sends_at_every_flush(acker: Build) -> None:
    reporter = acker("local", flush_interval_ms=0)(PLAN).reporter(0)
    reporter.ack(0, 1, X)
    assert list(reporter.flush(0.0)) == [(0, Report(0, 1, (Ack(0, 1, X),)))]


def test_local_needs_something_to_wrap() -> None:
    with pytest.raises(ConfigError, match="'centralized'"):
        Local(Local.Options(), PLAN)


def test_local_over_sharded_aggregates_then_shards(acker: Build) -> None:
    driver = acker("local", inner="sharded", inner_options={"shards": 3}, flush_count=4)(PLAN)
    assert driver.trackers == 3
    reporter = driver.reporter(0)
    for time in (0, 3, 0, 4):
        reporter.ack(0, time, X if time else Y + time)
    reporter.heartbeat(1, 5)
    assert list(reporter.flush(0.0)) == [
        (0, Report(0, 1, (Ack(0, 3, X),), ((1, 6),))),
        (1, Report(0, 1, (Ack(0, 4, X),), ((1, 7),))),
        (2, Report(0, 1, (), ((1, 5),))),
    ]


def test_sharded_tells_every_shard_the_node_time_when_there_are_acks(sharded: Reporter) -> None:
    sharded.ack(0, 4, X)
    assert list(sharded.flush(0.0)) == [(0, Report(1, 1, (Ack(0, 4, X),))), (1, Report(1, 1))]


def test_f14_heartbeats_go_where_they_grow(sharded: Reporter) -> None:
    sent = []
    for time in range(1, 6):
        sharded.heartbeat(1, time)
        sent.append([(shard, report.heartbeats) for shard, report in sharded.flush(0.0)])
    assert sent == [
        [(0, ((1, 2),)), (1, ((1, 1),))],
        [(1, ((1, 3),))],
        [(0, ((1, 4),))],
        [(1, ((1, 5),))],
        [(0, ((1, 6),))],
    ]


def test_the_end_of_a_front_goes_to_every_shard_and_it_may_begin_again(sharded: Reporter) -> None:
    sharded.heartbeat(1, 4)
    sharded.flush(0.0)
    sharded.unregister(1)
    assert list(sharded.flush(0.0)) == [(shard, Report(1, unregistered=(1,))) for shard in (0, 1)]
    sharded.heartbeat(1, 4)
    assert [shard for shard, _ in sharded.flush(0.0)] == [0, 1]


def test_f23_no_heartbeat_is_rounded_past_the_end_of_time(sharded: Reporter) -> None:
    sharded.heartbeat(1, MAX_TIME)
    assert [report.heartbeats for _, report in sharded.flush(0.0)] == [((1, MAX_TIME),)] * 2


def shard_of(time: int, shards: int) -> int:
    return time % shards


def test_case_36_times_are_dealt_to_shards_and_rounded() -> None:
    assert rounded(1, 0, 2) == 2
    assert rounded(1, 1, 2) == 1
    assert rounded(MIN_TIME, 1, 2) == MIN_TIME + 1
    assert rounded(MIN_TIME + 1, 1, 2) == MIN_TIME + 1
    assert rounded(MIN_TIME + 2, 1, 2) == MIN_TIME + 3
    for time in (0, 1, -1, 10**15, MIN_TIME):
        mine = shard_of(time, 2)
        assert rounded(time, mine, 2) == time
        assert rounded(time, 1 - mine, 2) == time + 1
    assert [shard_of(time, 3) for time in (0, -1, -2, 1)] == [0, 2, 1, 1]
    for time in range(-7, 8):
        for shard in range(3):
            assert rounded(time, shard, 3) == next(t for t in range(time, time + 3) if shard_of(t, 3) == shard)

"""Listeners to several shards, and the simulation that finds unsound rules.

The unsound rules are kept here, to show that the checks can see them: the published one (paper 002, "Distributed
tracker"), which fails with two or more workers, and the one that ignores node times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product

import pytest

from flamecore.abc.acker import AckerPlan, Listener, Tracker
from flamecore.model.messages import Ack, MinTimes, Report
from flamecore.testing.draws import seeds
from flamecore.testing.laws import LawBroken
from flamecore.testing.simulation.ackers import Make, Shape, Simulation
from flamestream_ackers.centralized import Centralized, CentralizedReporter
from flamestream_ackers.sharded import ConservativeListener, Sharded
from flamestream_ackers.tracker import XorTracker

PLAN = AckerPlan(2, (frozenset(),), (1,))
SMALL = Shape(items=3, children=8)


def covered(vector: Sequence[int], by: Sequence[int]) -> bool:
    return all(mine <= known for mine, known in zip(vector, by, strict=True))


class PublishedListener(Listener):
    """The published rule: each shard's latest report whose vector is covered.

    It is covered by the least of all shards' latest vectors.
    """

    def __init__(self, plan: AckerPlan, shards: int) -> None:
        self._reports = [[MinTimes((plan.start,), (0,) * plan.workers)] for _ in range(shards)]
        self._time = plan.start

    def receive(self, tracker: int, news: MinTimes) -> bool:
        self._reports[tracker].append(news)
        known = [min(node) for node in zip(*[reports[-1].vector for reports in self._reports], strict=True)]
        accepted = [[one.times[0] for one in reports if covered(one.vector, known)][-1] for reports in self._reports]
        before, self._time = self._time, max(self._time, min(accepted))
        return self._time > before

    def min_time(self, segment: int) -> int:
        return self._time


class HeedlessListener(Listener):
    """The minimum of the shards' last reports."""

    def __init__(self, plan: AckerPlan, shards: int) -> None:
        self._times = [plan.start] * shards
        self._time = plan.start

    def receive(self, tracker: int, news: MinTimes) -> bool:
        self._times[tracker] = news.times[0]
        before, self._time = self._time, max(self._time, min(self._times))
        return self._time > before

    def min_time(self, segment: int) -> int:
        return self._time


class QuietTracker(XorTracker):
    """A tracker that reports only changed times, not new node times alone."""

    def receive(self, report: Report) -> Sequence[MinTimes]:
        before = self.current().times
        return [news for news in super().receive(report) if news.times != before]


def sharded(
    shards: int,
    rule: Callable[[AckerPlan, int], Listener] = ConservativeListener,
    tracker: type[XorTracker] = XorTracker,
) -> Make:
    class Varied(Sharded):
        def listener(self) -> Listener:
            return rule(self.plan, shards) if shards > 1 else super().listener()

        def tracker(self, index: int) -> Tracker:
            return tracker(self.plan, shard=shards > 1)

    return lambda plan: Varied(Varied.Options(shards=shards), plan)


def first_broken(make: Make, shape: Shape, runs: int) -> LawBroken | None:
    for seed in range(runs):
        try:
            Simulation(make, seed, shape).run()
        except LawBroken as broken:
            return broken
    return None


# ---- by hand


def counter_example(listener: Listener) -> list[int]:
    """Return a listener's minimum time after each report of a counter-example.

    There are two workers, shards by parity, and times 0, 1, 2. Worker 0 processes the item of time 0 and spawns one of
    time 1: its node time 1 carries − to shard 0 and + to shard 1. Worker 1's node times have nothing to do with it. The
    item of time 1 stays in flight.
    """
    news = [
        (0, (0, 1), 0),  # the item of time 0 is in flight
        (1, (0, 1), 2),
        (0, (1, 1), 2),  # it is done
        (1, (0, 2), 2),  # worker 1's node time 2 came before worker 0's node time 1, and with it the item of time 1
        (1, (1, 2), 1),
    ]
    said = []
    for shard, vector, time in news:
        listener.receive(shard, MinTimes((time,), vector))
        said.append(listener.min_time(0))
    return said


def test_case_38_the_counter_example_deceives_the_published_rule() -> None:
    assert counter_example(PublishedListener(PLAN, 2)) == [0, 0, 0, 0, 2]


def test_case_38_the_conservative_rule_is_not_deceived() -> None:
    listener = ConservativeListener(PLAN, 2)
    assert counter_example(listener) == [0, 0, 0, 0, 1]
    # Worker 1 has processed the item: once both shards have its node time 3, nothing is left.
    assert not listener.receive(1, MinTimes((2,), (1, 3)))
    assert listener.receive(0, MinTimes((2,), (1, 3)))
    assert listener.min_time(0) == 2


def test_case_37_a_report_counts_when_all_shards_have_its_node_times() -> None:
    plan = replace(PLAN, workers=1)
    heedless, sound = HeedlessListener(plan, 2), ConservativeListener(plan, 2)
    for listener in (heedless, sound):
        assert not listener.receive(1, MinTimes((2,), (1,)))
    assert heedless.receive(0, MinTimes((1,), (3,)))
    assert not sound.receive(0, MinTimes((1,), (3,)))
    assert sound.min_time(0) == 0
    assert not sound.receive(1, MinTimes((5,), (2,)))
    assert sound.receive(1, MinTimes((4,), (3,)))
    assert sound.min_time(0) == 1
    assert sound.receive(0, MinTimes((6,), (3,)))  # by itself: a heartbeat
    assert sound.min_time(0) == 4


def test_a_shard_counts_with_the_lowest_it_has_said_since_the_accepted_report() -> None:
    listener = ConservativeListener(replace(PLAN, workers=1), 2)
    for time, tick in [(9, 1), (3, 2), (8, 3)]:
        listener.receive(0, MinTimes((time,), (tick,)))
    listener.receive(1, MinTimes((9,), (1,)))
    assert listener.min_time(0) == 3  # from the report at 1 to the one at 3
    listener.receive(1, MinTimes((9,), (2,)))
    assert listener.min_time(0) == 3
    listener.receive(1, MinTimes((9,), (3,)))
    assert listener.min_time(0) == 8


def test_f18_segments_are_kept_apart() -> None:
    listener = ConservativeListener(AckerPlan(1, (frozenset(), frozenset({0})), ()), 2)
    for shard in (0, 1):
        listener.receive(shard, MinTimes((5, 0), (0,)))
    assert (listener.min_time(0), listener.min_time(1)) == (5, 0)


def test_f13_a_shard_goes_back_and_says_so() -> None:
    tracker = XorTracker(PLAN, shard=True)
    assert tracker.receive(Report(0, heartbeats=((1, 10),))) == (MinTimes((10,), (0, 0)),)
    assert tracker.receive(Report(1, 1, (Ack(0, 4, 7),))) == (MinTimes((4,), (0, 1)),)
    assert tracker.receive(Report(0, 1)) == (MinTimes((4,), (1, 1)),)  # by itself: a node time
    assert tracker.receive(Report(0, 2, (Ack(0, 4, 7),))) == (MinTimes((10,), (2, 1)),)


def test_a_segment_goes_back_with_what_feeds_it() -> None:
    tracker = XorTracker(AckerPlan(1, (frozenset(), frozenset({0})), (1,)), shard=True)
    tracker.receive(Report(0, heartbeats=((1, 10),)))
    assert tracker.receive(Report(0, 1, (Ack(0, 4, 7),))) == (MinTimes((4, 4), (1,)),)


def test_one_shard_needs_no_node_times() -> None:
    acker = Sharded(Sharded.Options(shards=1), PLAN)
    assert acker.tracker(0).receive(Report(0, 1, heartbeats=((1, 3),))) == (MinTimes((3,)),)


# ---- by simulation


@pytest.mark.parametrize(("workers", "shards"), list(product((1, 2, 3, 4), repeat=2)))
def test_case_39_the_conservative_rule_is_never_premature_and_never_stuck(workers: int, shards: int) -> None:
    for seed in seeds(1500):
        Simulation(sharded(shards), seed, replace(SMALL, workers=workers)).run()


@pytest.mark.parametrize(("workers", "shards"), list(product((2, 3, 4), repeat=2)))
def test_the_published_rule_is_caught(workers: int, shards: int) -> None:
    broken = first_broken(sharded(shards, PublishedListener), replace(SMALL, workers=workers), 6000)
    assert broken is not None
    assert broken.law == "safe"


@pytest.mark.parametrize(("workers", "shards"), list(product((1, 2, 3, 4), (2, 3, 4))))
def test_a_rule_without_node_times_is_caught(workers: int, shards: int) -> None:
    broken = first_broken(sharded(shards, HeedlessListener), replace(SMALL, workers=workers), 1000)
    assert broken is not None
    assert broken.law == "safe"


@pytest.mark.parametrize("rule", [PublishedListener, ConservativeListener])
def test_shards_that_keep_their_node_times_to_themselves_get_stuck(
    rule: Callable[[AckerPlan, int], Listener],
) -> None:
    stuck = 0
    for seed in range(50):
        try:
            Simulation(sharded(2, rule, QuietTracker), seed, replace(SMALL, workers=2)).run()
        except LawBroken as broken:
            stuck += broken.law == "arrives"
    assert stuck > 25


class OneByOneTracker(XorTracker):
    """A tracker that reports after every single ack, in the order of the report."""

    def __init__(self, plan: AckerPlan) -> None:
        super().__init__(plan, shard=True)  # so that acks of the past show as news and not as errors
        self._number = [0] * plan.workers

    def receive(self, report: Report) -> Sequence[MinTimes]:
        news: list[MinTimes] = []
        for ack in report.acks:
            self._number[report.worker] += 1
            news += super().receive(Report(report.worker, self._number[report.worker], (ack,)))
        return [*news, *super().receive(report._replace(tick=0, acks=()))]


def one_by_one(ascending: bool) -> Make:
    class Reporter(CentralizedReporter):
        def flush(self, now: float) -> Sequence[tuple[int, Report]]:
            reports = super().flush(now)
            return [(to, report._replace(acks=report.acks[::-1])) for to, report in reports] if ascending else reports

    class OneByOne(Centralized):
        def tracker(self, index: int) -> Tracker:
            return OneByOneTracker(self.plan)

        def reporter(self, worker: int) -> Reporter:
            return Reporter(worker, self.plan)

    return lambda plan: OneByOne(None, plan)


class Unchecked(Simulation):
    """A simulation that accepts reports with acks in any order."""

    def _check_report(self, worker: int, report: Report) -> bool:
        return bool(report.tick)


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_the_order_of_acks_decides_where_they_are_applied_one_by_one(workers: int) -> None:
    shape = replace(SMALL, workers=workers)
    for seed in seeds(1000):
        Unchecked(one_by_one(ascending=False), seed, shape).run()
    premature = 0
    for seed in range(300):
        try:
            Unchecked(one_by_one(ascending=True), seed, shape).run()
        except LawBroken as broken:
            premature += broken.law == "safe"
    assert premature > 3

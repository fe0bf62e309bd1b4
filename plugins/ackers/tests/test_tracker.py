"""The tracker, report by report.

Numbers are those of the acceptance cases and of the history.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from flamecore.abc.acker import AckerPlan, Segments, SingleListener
from flamecore.errors import ConsistencyError, TimeRegressionError
from flamecore.model.messages import Ack, MinTimes, Report
from flamecore.model.meta import MAX_TIME
from flamecore.testing.draws import seeds
from flamecore.testing.simulation.ackers import SEGMENTS, Model
from flamestream_ackers.centralized import CentralizedReporter
from flamestream_ackers.tracker import XorTracker

ONE, TWO = SEGMENTS[0], SEGMENTS[1]
X, Y = 0xDEADBEEF, 0xFEEDFACE
A, B = 1, 2


class Driven(XorTracker):
    """A tracker with one worker, whose reports are given part by part."""

    def __init__(self, segments: Segments = ONE, fronts: tuple[int, ...] = (A,), start: int = 0) -> None:
        super().__init__(AckerPlan(1, segments, fronts, start))
        self.tick = 0

    def tell(
        self, *acks: tuple[int, int, int], beats: dict[int, int] | None = None, ended: tuple[int, ...] = ()
    ) -> list[tuple[int, int]]:
        self.tick += bool(acks)
        beat = tuple((beats or {}).items())
        before = self.current().times
        news = self.receive(Report(0, self.tick if acks else 0, tuple(Ack(*ack) for ack in acks), beat, ended))
        assert list(news) == [self.current()] * (before != self.current().times), "one message for all segments"
        assert self.current().vector == ()
        return [(at, new) for at, (old, new) in enumerate(zip(before, self.current().times, strict=True)) if old != new]


def test_case_30_heartbeats_move_time_alone_and_with_an_item() -> None:
    tracker = Driven()
    assert [tracker.tell(beats={A: time}) for time in (1, 2, 3)] == [[(0, 1)], [(0, 2)], [(0, 3)]]
    tracker = Driven()
    assert tracker.tell((0, 0, X), beats={A: 1}) == []
    assert tracker.tell((0, 0, X)) == [(0, 1)]


def test_while_all_workers_are_at_rest_only_the_last_segments_have_news() -> None:
    tracker = XorTracker(AckerPlan(2, TWO, (A,)))

    def tell(worker: int, tick: int, *acks: Ack, at_rest: bool, beat: int = 0) -> list[MinTimes]:
        beats = ((A, beat),) if beat else ()
        return list(tracker.receive(Report(worker, tick, acks, beats, at_rest=at_rest)))

    assert tell(0, 1, Ack(1, 3, X), at_rest=True, beat=3) == [MinTimes((3, 3))]
    assert tell(0, 0, at_rest=True, beat=5) == [MinTimes((5, 3))], "worker 1 has not said that it is at rest"
    assert tell(1, 1, Ack(1, 4, Y), at_rest=True) == []
    assert tell(0, 0, at_rest=True, beat=6) == []
    assert tracker.current() == MinTimes((6, 3)), "a new subscriber learns it"
    assert tell(1, 2, Ack(1, 4, Y), at_rest=False) == [MinTimes((6, 3))], "one that waits is told at once"
    assert tell(0, 0, at_rest=True, beat=7) == [MinTimes((7, 3))]
    assert tell(1, 3, Ack(1, 8, Y), at_rest=True) == []
    assert tell(0, 2, Ack(1, 3, X), at_rest=True) == [MinTimes((7, 7))]


def test_case_31_fronts_come_and_go() -> None:
    tracker = Driven(fronts=(A, B))
    assert tracker.tell(beats={A: 10}) == []
    assert tracker.tell(beats={B: 4}) == [(0, 4)]
    assert tracker.tell(ended=(B,)) == [(0, 10)]
    assert tracker.tell(ended=(A,)) == []
    assert tracker.current() == MinTimes((10,))
    assert tracker.register(3) == 10
    assert tracker.tell(beats={3: 11}) == [(0, 11)]


def test_f1_when_the_last_front_has_ended_everything_it_sent_is_released() -> None:
    tracker = Driven(fronts=(A, B))
    tracker.tell((0, 8, X), beats={A: 9})
    assert tracker.tell(ended=(A,)) == []
    assert tracker.tell(ended=(B,)) == [(0, 8)]
    assert tracker.tell((0, 8, X)) == [(0, 9)]


@pytest.mark.parametrize("start", [0, 7, -3])
def test_case_32_and_f15_a_heartbeat_may_repeat_what_is_known_but_not_go_below(start: int) -> None:
    tracker = Driven(start=start)
    assert tracker.tell(beats={A: start}) == []
    assert tracker.tell(beats={A: start + 5}) == [(0, start + 5)]
    with pytest.raises(TimeRegressionError) as caught:
        tracker.tell(beats={A: start + 4})
    assert (caught.value.time, caught.value.limit) == (start + 4, start + 5)


def test_a_heartbeat_below_the_start_is_refused() -> None:
    with pytest.raises(TimeRegressionError):
        Driven(start=7).tell(beats={A: 6})


def test_case_33_an_output_counts_before_its_cause_is_gone() -> None:
    tracker = Driven()
    tracker.tell((0, 1, X), beats={A: 10})
    assert tracker.tell((0, 3, Y), (0, 1, X)) == [(0, 3)]
    assert tracker.tell((0, 3, Y)) == [(0, 10)]


def test_case_34_and_f17_a_segment_is_never_ahead_of_what_feeds_it() -> None:
    tracker = Driven(TWO)
    assert tracker.tell((1, 2, X), beats={A: 5}) == [(0, 5), (1, 2)]
    assert tracker.tell((1, 2, X)) == [(1, 5)]
    assert tracker.tell((0, 6, Y), beats={A: 9}) == [(0, 6), (1, 6)]
    assert tracker.tell((1, 6, X), (0, 6, Y)) == [(0, 9)]
    assert tracker.tell((1, 6, X)) == [(1, 9)]


def test_case_35_and_f18_a_listener_keeps_segments_apart() -> None:
    listener = SingleListener(2)
    assert listener.receive(0, MinTimes((5, -1)))
    assert (listener.min_time(0), listener.min_time(1)) == (5, -1)
    assert not listener.receive(0, MinTimes((4, -1)))
    assert listener.receive(0, MinTimes((4, 3)))
    assert (listener.min_time(0), listener.min_time(1)) == (5, 3)


def test_f13_an_ack_of_a_time_announced_as_past_is_an_error() -> None:
    tracker = Driven()
    tracker.tell(beats={A: 10})
    with pytest.raises(TimeRegressionError):
        tracker.tell((0, 9, X))


def test_f16_a_stream_may_start_anywhere_and_its_first_item_count() -> None:
    tracker = Driven(start=1)
    assert tracker.tell((0, 1, X), beats={A: 2}) == []
    assert tracker.tell((0, 1, X)) == [(0, 2)]


def test_f23_the_end_of_time_is_a_heartbeat_like_any_other() -> None:
    tracker = Driven()
    assert tracker.tell((0, 3, X), beats={A: MAX_TIME}) == [(0, 3)]
    assert tracker.tell((0, 3, X)) == [(0, MAX_TIME)]
    assert tracker.tell(ended=(A,)) == []


def test_a_heartbeat_does_not_bring_an_ended_front_back() -> None:
    tracker = Driven(fronts=(A, B))
    tracker.tell(ended=(A,))
    with pytest.raises(TimeRegressionError, match="ended"):
        tracker.tell(beats={A: 3})
    assert tracker.tell(beats={B: 5}) == [(0, 5)]


def test_a_front_ends_once() -> None:
    tracker = Driven()
    tracker.tell(ended=(A,))
    with pytest.raises(ConsistencyError, match="ended already"):
        tracker.tell(ended=(A,))


def test_a_front_that_joins_is_waited_for_from_where_the_stream_is() -> None:
    tracker = Driven(TWO)
    tracker.tell((1, 2, X), beats={A: 10})
    # The segment of the sink is at 2, but the front's items enter where 10 is announced.
    assert tracker.register(B) == 10
    assert tracker.tell(beats={A: 20}) == []
    assert tracker.tell((1, 2, X)) == [(1, 10)]
    with pytest.raises(TimeRegressionError) as caught:
        tracker.register(3, 9)
    assert (caught.value.time, caught.value.limit) == (9, 10)
    assert tracker.register(3, 15) == 15
    assert tracker.tell(beats={B: 30}) == [(0, 15), (1, 15)]


@pytest.mark.parametrize("tick", [1, 3])
def test_a_lost_or_repeated_report_is_noticed(tick: int) -> None:
    tracker = Driven()
    tracker.tell((0, 5, X))
    with pytest.raises(ConsistencyError, match="node time") as caught:
        tracker.receive(Report(0, tick, (Ack(0, 5, X),)))
    assert (caught.value.tick, caught.value.limit) == (tick, 2)


def test_a_time_out_of_any_reach_is_refused() -> None:
    with pytest.raises(ConsistencyError, match="does not fit"):
        Driven().tell((0, 2**80, X))


def test_one_report_gives_one_piece_of_news_a_segment_and_none_if_nothing_grew() -> None:
    tracker = Driven(fronts=(A, B))
    news = tracker.tell(*[(0, time, time + 1) for time in range(9, -1, -1)], beats={A: 10, B: 10})
    assert news == []
    assert tracker.tell(*[(0, time, time + 1) for time in range(9, -1, -1)]) == [(0, 10)]
    assert tracker.tell(beats={A: 12}) == []
    assert tracker.tell(beats={B: 11}) == [(0, 11)]


def test_a_new_subscriber_hears_all_and_subscribes_once() -> None:
    tracker = Driven(TWO)
    tracker.tell(beats={A: 4})
    assert tracker.subscribe("worker/0") == MinTimes((4, 4))
    tracker.subscribe("worker/0")
    tracker.subscribe("worker/1")
    assert tracker.subscribers == ["worker/0", "worker/1"]
    tracker.unsubscribe("worker/0")
    tracker.unsubscribe("nobody")
    assert tracker.subscribers == ["worker/1"]


def test_a_front_that_joins_further_on_takes_the_others_along_with_its_first_heartbeat() -> None:
    tracker = Driven(fronts=())
    assert tracker.register(A, 7) == 7
    assert tracker.tell(beats={A: 7}) == [(0, 7)]


class Counted(int):
    """A number that counts how often it is compared."""

    looks = 0

    def __lt__(self, other: int) -> bool:
        Counted.looks += 1
        return int.__lt__(self, other)

    def __eq__(self, other: object) -> bool:
        Counted.looks += 1
        return int.__eq__(self, other)

    __hash__ = int.__hash__


@pytest.mark.parametrize("count", [100, 1000])
def test_a_front_takes_few_comparisons_however_many_there_are(count: int) -> None:
    tracker = Driven(fronts=tuple(range(1, count + 1)))
    Counted.looks = 0
    for turn in range(1, 4):
        for front in range(1, count + 1):
            tracker.tell(beats={front: Counted(turn)})
    for front in range(1, count + 1):
        tracker.tell(ended=(front,))
    assert Counted.looks <= 4 * count * 60


class TrackerMachine(RuleBasedStateMachine):
    """Any legal sequence: minimum times never go back, nor past the model's.

    They equal the model's whenever everything is reported.
    """

    @initialize(segments=st.sampled_from(SEGMENTS), start=st.sampled_from([0, -2, 10**15]))
    def begin(self, segments: Segments, start: int) -> None:
        plan = AckerPlan(2, segments, (1, 2), start)
        self.plan, self.model, self.tracker = plan, Model(plan), XorTracker(plan)
        self.reporters = [CentralizedReporter(worker, plan) for worker in range(2)]
        self.known: list[list[int]] = [[start] * len(segments)]
        self.numbers = 0
        self.next_front = 3

    def _send(self, worker: int, segment: int, time: int) -> None:
        self.numbers += 1
        number = (self.numbers * 0x9E3779B97F4A7C15) % 2**64
        self.reporters[worker].ack(segment, time, number)
        self.model.in_flight[number] = (segment, time)

    @precondition(lambda self: self.model.fronts)
    @rule(data=st.data(), ahead=st.integers(0, 3), items=st.integers(0, 2))
    def front(self, data: st.DataObject, ahead: int, items: int) -> None:
        front = data.draw(st.sampled_from(sorted(self.model.fronts)))
        time = self.model.fronts[front] + ahead
        for _ in range(items):
            sources = [segment for segment, feeding in enumerate(self.plan.segments) if not feeding]
            self._send(front % 2, data.draw(st.sampled_from(sources)), time)
        self.model.fronts[front] = time + 1
        self.reporters[front % 2].heartbeat(front, time + 1)

    @precondition(lambda self: self.model.in_flight)
    @rule(data=st.data(), worker=st.integers(0, 1), later=st.lists(st.integers(0, 2), max_size=2))
    def process(self, data: st.DataObject, worker: int, later: list[int]) -> None:
        number = data.draw(st.sampled_from(sorted(self.model.in_flight)))
        segment, time = self.model.in_flight[number]
        below = [segment] + [after for after, feeding in enumerate(self.plan.segments) if segment in feeding]
        for offset in later:
            self._send(worker, data.draw(st.sampled_from(below)), time + offset)
        del self.model.in_flight[number]
        self.reporters[worker].ack(segment, time, number)

    @precondition(lambda self: self.model.fronts)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        front = data.draw(st.sampled_from(sorted(self.model.fronts)))
        self.model.end(front)
        self.reporters[front % 2].unregister(front)

    @rule(ahead=st.none() | st.integers(0, 3))
    def join(self, ahead: int | None) -> None:
        announced = max(self.known[-1])
        front, self.next_front = self.next_front, self.next_front + 1
        time = self.tracker.register(front, None if ahead is None else announced + ahead)
        assert time == announced + (ahead or 0)
        self.model.fronts[front] = time
        self.reporters[front % 2].heartbeat(front, time)

    @rule(worker=st.integers(0, 1))
    def flush(self, worker: int) -> None:
        for _, report in self.reporters[worker].flush(0.0):
            known = self.known[-1]
            for news in self.tracker.receive(report):
                known = [*news.times]
            self.known.append(known)
            assert [*self.tracker.current().times] == known

    @rule()
    def flush_all(self) -> None:
        for worker in (0, 1, 0, 1):  # twice, for ends of fronts that were held back
            self.flush(worker)
        assert self.known[-1] == [self.model.limit(segment) for segment in range(len(self.plan.segments))]

    @invariant()
    def laws(self) -> None:
        if not hasattr(self, "known"):
            return
        for segment, feeding in enumerate(self.plan.segments):
            assert self.known[-1][segment] <= self.model.limit(segment)
            assert all(self.known[-1][segment] <= self.known[-1][upstream] for upstream in feeding)
            assert all(before[segment] <= after[segment] for before, after in pairwise(self.known[-5:]))


TestTrackerMachine = TrackerMachine.TestCase
TestTrackerMachine.settings = settings(max_examples=len(seeds(150)), stateful_step_count=40, deadline=None)

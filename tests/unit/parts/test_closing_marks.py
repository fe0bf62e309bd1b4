"""The end of a front as a mark: at a time of its own, stored before it is used, and the same when it comes again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest

import flamecore as fc
from flamecore.abc.acker import Reporter, SingleListener
from flamecore.abc.operator import Work
from flamecore.abc.source import Batch
from flamecore.model.clock import ClockName
from flamecore.model.messages import MinTimes, Report
from flamecore.model.meta import FrontId, decode_time
from flamecore.model.ordered import CLOSING, IDLE, IdlingMarking, Now, Ordered, Outcome, Timer
from flamecore.model.plan import Plan
from flamecore.model.settings import JobSettings, StateTable
from flamecore.runtime.parts.counters import NodeStats
from flamecore.runtime.parts.front import Front
from flamecore.runtime.parts.worker import Worker
from flamecore.runtime.state.journal import LAST_MARK


@dataclass(eq=False, slots=True, repr=False)
class AtEnd(Ordered):
    def work(self) -> Work:
        return AtEndWork()


class AtEndWork(Work):
    def process(self, key: Any, state: Any, payload: Any, now: Now) -> Outcome:
        return Outcome(payload, [], [Timer(CLOSING, mark=True)])

    def on_time(self, key: Any, state: Any, timer: Timer, now: Now) -> Outcome:
        return Outcome(None, [state])


class Log(Reporter):
    """Writes down what is promised."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def ack(self, segment: int, time: int, xor: int) -> None:
        pass

    def heartbeat(self, front: int, time: int) -> None:
        self.calls.append(("heartbeat", front, time))

    def unregister(self, front: int) -> None:
        self.calls.append(("end", front))

    def flush(self, now: float) -> Sequence[tuple[int, Report]]:
        return []


class Bench:
    def __init__(
        self,
        clock: ClockName,
        *,
        snapshots: bool = True,
        closes: bool = True,
        sources: Sequence[str] = ("numbers",),
        **front: Any,
    ) -> None:
        flow = fc.Flow("ends")
        said, *others = [
            flow.source(name, int).apply(IdlingMarking, name=f"said by {name}", function=abs, closes=closes, idle_us=50)
            for name in sources
        ]
        said.merge(*others).key_by(lambda n: 0).apply(AtEnd, name="end").sink("out")
        settings = JobSettings(workers=1, clock=clock, state=StateTable() if snapshots else None)
        plan = Plan(flow.graph(), tuple(FrontId(name, 0) for name in sources), settings)
        self.log, self.now = Log(), 1000
        fronts = [
            Front(name, number, clock=clock, now_us=lambda: self.now, snapshots=snapshots, **front)
            for number, name in enumerate(plan.fronts, 1)
        ]
        self.front = fronts[0]
        self.worker = Worker(
            0,
            plan,
            reporter=self.log,
            listener=SingleListener(len(plan.segments.inbound), 0),
            random=Random(1),
            fronts=fronts,
        )

    def admit(self, *values: int, number: int = 1) -> None:
        self.worker.admit(number, Batch(values, range(len(values)), []), 0.0)

    def marks(self) -> list[Any]:
        """Return the marks that wait: the time, and the value."""
        marks = self.worker.compiled.ordered["end"].watermark.marks
        return [(decode_time(place), value) for place, _, value in marks]

    def given(self) -> list[Any]:
        """Return the times that are to be stored, and store them."""
        given = self.worker.ingress.promises.take_given_times()
        self.worker.confirm_times(given)
        return [tuple(times) for times in given]

    def promises(self) -> list[Any]:
        calls, self.log.calls = self.log.calls, []
        return calls


def test_by_the_wall_clock_the_time_of_the_end_is_stored_before_it_passes() -> None:
    bench = Bench("wall")
    bench.admit(5, 6)
    assert bench.given() == [(1, 1000, 2)]
    assert bench.promises() == [("heartbeat", 1, 1002)]
    bench.now = 2000
    assert bench.worker.end_front(1) == 2001
    assert bench.promises() == [], "nothing passes the end before its time is stored"
    assert bench.given() == [(1, 2000, LAST_MARK)]
    assert bench.promises() == [("heartbeat", 1, 2001), ("heartbeat", 1, 2001), ("end", 1)]


def test_by_the_sequence_clock_the_records_before_it_are_stored_and_the_end_comes_behind_them() -> None:
    bench = Bench("sequence")
    bench.admit(5, 6)
    bench.promises()
    assert bench.worker.end_front(1) == 3
    assert bench.promises() == []
    assert bench.given() == [(1, 2, 0)]
    assert bench.promises()[-2:] == [("heartbeat", 1, 3), ("end", 1)]


@pytest.mark.parametrize(("closes", "end"), [(True, 3), (False, 2)])
def test_without_snapshots_it_ends_at_once(closes: bool, end: int) -> None:
    bench = Bench("sequence", snapshots=False, closes=closes)
    bench.admit(5, 6)
    assert bench.worker.end_front(1) == end
    assert bench.given() == []
    assert bench.promises()[-2:] == [("heartbeat", 1, end), ("end", 1)]


def test_the_end_comes_again_at_the_time_that_is_stored() -> None:
    bench = Bench("wall", journal=[(2000, LAST_MARK)], position=7)
    bench.now = 9000
    assert bench.worker.end_front(1) == 2001
    assert bench.given() == []


def test_a_front_that_had_ended_says_nothing_again() -> None:
    bench = Bench("wall", ended=True, position=7, start=3000)
    assert bench.worker.end_front(1) == 3000
    assert not bench.worker.compiled.ordered["end"].watermark.marks


def test_a_snapshot_before_the_end_comes_to_it_again_and_one_behind_does_not() -> None:
    for time, found in ((1, (0, 1, False)), (2, (1, 2, False)), (3, (1, 3, True))):
        bench = Bench("sequence")
        bench.admit(5, 6)
        bench.worker.end_front(1)
        ((_, *front),) = bench.worker.cut(time).fronts
        assert tuple(front) == found


def test_an_input_that_has_not_closed_is_named_with_what_it_holds_back() -> None:
    bench = Bench("sequence", snapshots=False, closes=False)
    assert bench.worker.held() == NodeStats()
    assert bench.worker.counts().pending == {}
    bench.admit(5, 6)
    bench.worker.receive("acker/0", MinTimes((9,) * len(bench.worker.plan.segments.inbound)))
    bench.worker.flush(0.0)
    held = bench.worker.held()
    assert (held.held, held.held_for) == ({"end": 1}, {"end": "numbers/0"})
    assert bench.worker.counts().pending == {"end": 1}


@pytest.mark.parametrize(("first", "second", "behind"), [(5, 7, "left"), (7, 5, "right")])
def test_the_input_that_is_behind_the_others_is_named(first: int, second: int, behind: str) -> None:
    bench = Bench("sequence", snapshots=False, closes=False, sources=("left", "right"))
    bench.admit(first)
    bench.admit(second, number=2)
    bench.worker.receive("acker/0", MinTimes((9,) * len(bench.worker.plan.segments.inbound)))
    bench.worker.flush(0.0)
    counts, held = bench.worker.counts(), bench.worker.held()
    assert (counts.watermarks, counts.held_by) == ({"end": 5}, {"end": f"{behind}/0"})
    assert (held.held, held.held_for) == ({"end": 1}, {"end": f"{behind}/0"})


# -- idle fronts -------------------------------------------------------------------------------------------------------


def test_the_time_at_which_a_front_is_idle_is_stored_before_it_passes() -> None:
    bench = Bench("wall", closes=False)
    bench.admit(5, 6)
    bench.given()
    bench.promises()
    bench.now = 2000
    bench.worker.idle_front(1, 49)
    assert bench.given() == []
    bench.worker.idle_front(1, 50)
    bench.worker.idle_front(1, 80)
    bench.worker.heartbeat(1)
    assert bench.promises() == []
    assert bench.given() == [(1, 2000, -1)]
    assert bench.promises() == [("heartbeat", 1, 2001)]
    bench.now = 3000
    bench.admit(4)
    bench.now = 4000
    bench.worker.idle_front(1, 60)
    assert bench.given() == [(1, 3000, 1), (1, 4000, -1)]
    assert bench.marks() == [(1000, 5), (1001, 6), (2000, IDLE), (3000, 4), (4000, IDLE)]


def test_a_front_that_goes_on_is_idle_again_at_the_times_that_are_stored() -> None:
    bench = Bench("wall", closes=False, journal=[(500, -1), (1000, 2), (2000, -1), (3000, 1), (4000, -1)], start=1)
    bench.now = 9000
    bench.worker.heartbeat(1)
    bench.worker.idle_front(1, 60)
    bench.admit(5, 6, 4)
    assert bench.promises()[-1] == ("heartbeat", 1, 4000)
    bench.worker.heartbeat(1)
    assert bench.given() == []
    bench.admit(7)
    assert bench.given() == [(1, 9000, 1)]
    assert bench.marks() == [
        *[(500, IDLE), (1000, 5), (1001, 6), (2000, IDLE), (3000, 4), (4000, IDLE), (9000, 7)],
    ]


def test_a_front_that_ends_was_idle_before() -> None:
    bench = Bench("wall", journal=[(1000, -1), (2000, 1)], position=7, start=1)
    bench.now = 9000
    assert bench.worker.end_front(1) == 2001
    assert bench.marks() == [(1000, IDLE), (2000, CLOSING)]


def test_a_snapshot_between_records_and_idleness_comes_to_it_again() -> None:
    bench = Bench("wall", closes=False)
    bench.admit(5, 6)
    bench.now = 2000
    bench.worker.idle_front(1, 50)
    for time, found in ((1001, (0, 1001, False)), (1002, (1, 2000, False)), (2001, (1, 2001, False))):
        ((_, *front),) = bench.worker.cut(time).fronts
        assert tuple(front) == found

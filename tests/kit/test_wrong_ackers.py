"""The kit for ackers is tested: ackers that are wrong on purpose must each fail in the check meant for them.

They are made of one that is right and as plain as can be: a dict of checksums, and a minimum over its keys.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import ClassVar

import pytest

from flamecore.abc.acker import Acker, AckerPlan, Listener, Reporter, SingleListener, Tracker
from flamecore.errors import TimeRegressionError
from flamecore.model.messages import Ack, MinTimes, Report
from flamecore.testing.checks.ackers import (
    check_acker,
    check_misuse,
    check_simulations,
    check_step_by_step,
    check_subscribers,
)
from flamecore.testing.laws import LawBroken


class PlainReporter(Reporter):
    """Every flush sends all there is; the ends of fronts in a report after it."""

    def __init__(self, worker: int) -> None:
        self.worker = worker
        self.tick = 0
        self.acks: Counter[tuple[int, int]] = Counter()
        self.promises: dict[int, int] = {}
        self.ended: list[int] = []

    def ack(self, segment: int, time: int, xor: int) -> None:
        self.acks[segment, time] ^= xor

    def heartbeat(self, front: int, time: int) -> None:
        if time < self.promises.get(front, time):
            raise TimeRegressionError(f"front {front} went back to {time}")
        self.promises[front] = time

    def unregister(self, front: int) -> None:
        self.ended.append(front)

    def merged(self) -> list[Ack]:
        return [Ack(*key, xor) for key, xor in sorted(self.acks.items(), reverse=True)]

    def flush(self, now: float) -> Sequence[tuple[int, Report]]:
        reports = []
        if self.acks or self.promises:
            self.tick += bool(self.acks)
            tick = self.tick if self.acks else 0
            reports.append(Report(self.worker, tick, tuple(self.merged()), tuple(self.promises.items())))
        if self.ended:
            reports.append(Report(self.worker, unregistered=tuple(self.ended)))
        self.acks.clear()
        self.promises.clear()
        self.ended.clear()
        return [(0, report) for report in reports]


class PlainTracker(Tracker):
    """Counts everything anew at every report."""

    def __init__(self, plan: AckerPlan) -> None:
        super().__init__()
        self.plan = plan
        self.cells: Counter[tuple[int, int]] = Counter()
        self.fronts = dict.fromkeys(plan.fronts, plan.start)
        self.default = plan.start
        self.times = [plan.start] * len(plan.segments)

    def receive(self, report: Report) -> Sequence[MinTimes]:
        for ack in report.acks:
            self.ack(ack)
        for front, time in report.heartbeats:
            self.heartbeat(front, time)
        for front in report.unregistered:
            self.default = max(self.default, self.fronts.pop(front))
        return self.news()

    def ack(self, ack: Ack) -> None:
        if ack.time < self.times[ack.segment]:
            raise TimeRegressionError(f"{ack} is past")
        self.cells[ack.segment, ack.time] ^= ack.xor

    def heartbeat(self, front: int, time: int) -> None:
        if front not in self.fronts or time < self.fronts[front]:
            raise TimeRegressionError(f"front {front} may not promise {time}")
        self.fronts[front] = time

    def minimum(self, segment: int) -> int:
        pending = [time for (at, time), xor in self.cells.items() if at == segment and xor]
        fronts = min(self.fronts.values(), default=self.default)
        return min([fronts, *pending, *(self.times[upstream] for upstream in self.plan.segments[segment])])

    def news(self) -> Sequence[MinTimes]:
        before = list(self.times)
        for segment in range(len(self.times)):
            self.times[segment] = self.minimum(segment)
        return [self.current()] if self.times != before else []

    def register(self, front: int, time: int | None = None) -> int:
        self.fronts[front] = max(self.times) if time is None else time
        if self.fronts[front] < max(self.times):
            raise TimeRegressionError(f"front {front} may not start at {time}")
        return self.fronts[front]

    def current(self) -> MinTimes:
        return MinTimes(tuple(self.times))


class PlainAcker(Acker):
    """Right. The wrong ones change one part."""

    name = "plain"

    def tracker(self, index: int) -> Tracker:
        return PlainTracker(self.plan)

    def reporter(self, worker: int) -> Reporter:
        return PlainReporter(worker)

    def listener(self) -> Listener:
        return SingleListener(len(self.plan.segments), self.plan.start)


def named(case: object) -> str | None:
    """Return the name of a test case."""
    return getattr(case, "__name__", None)


def plain(
    tracker: Callable[[AckerPlan], Tracker] = PlainTracker,
    reporter: Callable[[int], Reporter] = PlainReporter,
    listener: Callable[[int, int], Listener] = SingleListener,
) -> Callable[[AckerPlan], Acker]:
    class Made(PlainAcker):
        def tracker(self, index: int) -> Tracker:
            return tracker(self.plan)

        def reporter(self, worker: int) -> Reporter:
            return reporter(worker)

        def listener(self) -> Listener:
            return listener(len(self.plan.segments), self.plan.start)

    def make(plan: AckerPlan) -> Acker:
        return Made(None, plan)

    right = (PlainTracker, PlainReporter, SingleListener)
    make.__name__ = next((part.__name__ for part in (tracker, reporter, listener) if part not in right), "plain")
    return make


def test_the_right_acker_passes() -> None:
    check_acker(plain())


# ---- trackers


class Tolerant(PlainTracker):
    """Takes acks of times announced as past, so that what is wrong shows at the listeners."""

    def ack(self, ack: Ack) -> None:
        self.cells[ack.segment, ack.time] ^= ack.xor


class PrematureByOne(Tolerant):
    """Takes "nothing below m" for "nothing up to m"."""

    def minimum(self, segment: int) -> int:
        fronts = min(self.fronts.values(), default=self.default)
        return min(fronts, super().minimum(segment) + 1)


class ForgetsUpstream(Tolerant):
    """Bounds every segment by the fronts alone."""

    def minimum(self, segment: int) -> int:
        pending = [time for (at, time), xor in self.cells.items() if at == segment and xor]
        return min([min(self.fronts.values(), default=self.default), *pending])


class AppliesAscending(Tolerant):
    """Applies and tells the acks of a report one by one, lowest time first."""

    def receive(self, report: Report) -> Sequence[MinTimes]:
        news: list[MinTimes] = []
        for ack in reversed(report.acks):
            news += super().receive(report._replace(acks=(ack,), heartbeats=(), unregistered=()))
        return [*news, *super().receive(report._replace(acks=()))]


class HeartbeatsFirst(Tolerant):
    """Applies and tells the heartbeats of a report before its acks."""

    def receive(self, report: Report) -> Sequence[MinTimes]:
        early = super().receive(report._replace(acks=(), unregistered=()))
        return [*early, *super().receive(report._replace(heartbeats=()))]


class RestlessReporter(PlainReporter):
    """Right: says with each report whether its worker is at rest."""

    at_rest = False

    def rest(self, at_rest: bool) -> None:
        self.at_rest = at_rest

    def flush(self, now: float) -> Sequence[tuple[int, Report]]:
        return [(to, report._replace(at_rest=self.at_rest)) for to, report in super().flush(now)]


class LetsWaitersSleep(PlainTracker):
    """Tells a worker that waits only what has changed since the report that said so."""

    def news(self) -> Sequence[MinTimes]:
        last = self.times[-1]
        news = super().news()
        return news if self.times[-1] != last or not self.at_rest else []

    def receive(self, report: Report) -> Sequence[MinTimes]:
        self.at_rest = report.at_rest
        return super().receive(report)


class NeverAdvances(PlainTracker):
    def news(self) -> Sequence[MinTimes]:
        return []


class WaitsForAFrontThatHasEnded(PlainTracker):
    """A tracker that stands still once the last front has ended."""

    def news(self) -> Sequence[MinTimes]:
        return super().news() if self.fronts else []


class RefusesToRepeat(PlainTracker):
    """Takes a heartbeat that promises what is promised already for one that goes back."""

    def heartbeat(self, front: int, time: int) -> None:
        super().heartbeat(front, time)
        if time == self.plan.start:
            raise TimeRegressionError(f"front {front} did not move from {time}")


class Resurrects(PlainTracker):
    """Lets a heartbeat bring back a front that has ended."""

    def heartbeat(self, front: int, time: int) -> None:
        self.fronts[front] = time


class LetsFrontsStartInThePast(PlainTracker):
    def register(self, front: int, time: int | None = None) -> int:
        return max(self.times) if time is None else time


class ForgetsToWaitForNewFronts(Tolerant):
    """Answers a front that joins, and goes on without it."""

    def register(self, front: int, time: int | None = None) -> int:
        answer = super().register(front, time)
        del self.fronts[front]
        return answer

    def heartbeat(self, front: int, time: int) -> None:
        self.fronts.setdefault(front, time)
        super().heartbeat(front, time)


class TellsNewcomersNothing(PlainTracker):
    def subscribe(self, address: str) -> MinTimes:
        super().subscribe(address)
        return MinTimes((self.plan.start,) * len(self.times))


class SubscribesTwice(PlainTracker):
    def subscribe(self, address: str) -> MinTimes:
        self.subscribers.append(address)
        return self.current()


class KeepsWhoLeft(PlainTracker):
    def unsubscribe(self, address: str) -> None:
        pass


# ---- reporters


class LosesReceipts(PlainReporter):
    """Loses the second ack of some numbers, which is the receiver's."""

    seen: ClassVar[Counter[int]] = Counter()

    def ack(self, segment: int, time: int, xor: int) -> None:
        self.seen[xor] += 1
        if self.seen[xor] == 1 or xor % 8 > 1:
            super().ack(segment, time, xor)


class LosesSends(PlainReporter):
    """Loses both acks of some numbers, as if these items had never been."""

    def ack(self, segment: int, time: int, xor: int) -> None:
        if xor % 8 > 1:
            super().ack(segment, time, xor)


class SendsAscending(PlainReporter):
    def merged(self) -> list[Ack]:
        return super().merged()[::-1]


class SendsSingly(PlainReporter):
    """One entry for each ack, not merged."""

    def __init__(self, worker: int) -> None:
        super().__init__(worker)
        self.single: list[Ack] = []

    def ack(self, segment: int, time: int, xor: int) -> None:
        super().ack(segment, time, xor)
        self.single.append(Ack(segment, time, xor))

    def merged(self) -> list[Ack]:
        taken, self.single = self.single, []
        return sorted(taken, reverse=True)


class EndsFrontsBesideAcks(PlainReporter):
    def flush(self, now: float) -> Sequence[tuple[int, Report]]:
        reports = super().flush(now)
        if len(reports) < 2:
            return reports
        return [(0, reports[0][1]._replace(unregistered=reports[1][1].unregistered))]


class EndsFrontsBeforeTheirAcks(PlainReporter):
    """The end of a front overtakes the acks of what it sent."""

    def flush(self, now: float) -> Sequence[tuple[int, Report]]:
        return super().flush(now)[::-1]


class SendsNothings(PlainReporter):
    def flush(self, now: float) -> Sequence[tuple[int, Report]]:
        return super().flush(now) or [(0, Report(self.worker))]


class ForgetsNodeTimes(PlainReporter):
    def flush(self, now: float) -> Sequence[tuple[int, Report]]:
        return [(to, report._replace(tick=min(report.tick, 1))) for to, report in super().flush(now)]


class TakesPromisesBack(PlainReporter):
    """Sends whatever heartbeat it is given, the highest it has seen where that is lower."""

    highest: dict[int, int]

    def __init__(self, worker: int) -> None:
        super().__init__(worker)
        self.highest = {}

    def heartbeat(self, front: int, time: int) -> None:
        self.promises[front] = self.highest[front] = max(time, self.highest.get(front, time))


# ---- listeners


class GoesBack(SingleListener):
    """Falls back by one with every third piece of news."""

    def __init__(self, segments: int, start: int) -> None:
        super().__init__(segments, start)
        self.heard = 0

    def receive(self, tracker: int, news: MinTimes) -> bool:
        self.heard += 1
        if self.heard % 3 == 0:
            self._times = tuple(time - 1 for time in self._times)
            return False
        return super().receive(tracker, news)


class MixesSegments(SingleListener):
    """Takes the highest minimum time for that of all segments."""

    def receive(self, tracker: int, news: MinTimes) -> bool:
        before = self._times
        self._times = tuple(max(time, *news.times) for time in before)
        return self._times != before


class SaysItGrew(SingleListener):
    def receive(self, tracker: int, news: MinTimes) -> bool:
        super().receive(tracker, news)
        return True


class StartsLow(SingleListener):
    """Forgets where the job starts."""

    def __init__(self, segments: int, start: int) -> None:
        super().__init__(segments, start - 1)


SIMULATIONS = [
    ("safe", plain(tracker=PrematureByOne)),
    ("safe", plain(tracker=ForgetsUpstream)),
    ("safe", plain(tracker=AppliesAscending)),
    ("safe", plain(tracker=HeartbeatsFirst)),
    ("safe", plain(tracker=ForgetsToWaitForNewFronts)),
    ("safe", plain(reporter=LosesSends)),
    ("arrives", plain(tracker=NeverAdvances)),
    ("arrives", plain(tracker=WaitsForAFrontThatHasEnded)),
    ("arrives", plain(reporter=LosesReceipts)),
    ("forward", plain(listener=GoesBack)),
    ("forward", plain(listener=StartsLow)),
    ("safe", plain(listener=MixesSegments)),
    ("forward", plain(listener=SaysItGrew)),
    ("reports", plain(reporter=SendsAscending)),
    ("reports", plain(reporter=SendsSingly)),
    ("reports", plain(reporter=EndsFrontsBesideAcks)),
    ("reports", plain(reporter=ForgetsNodeTimes)),
    ("reports", plain(reporter=SendsNothings)),
]

DIRECTED = [
    (check_step_by_step, "legal", plain(tracker=RefusesToRepeat)),
    (check_step_by_step, "safe", plain(tracker=PrematureByOne)),
    (check_step_by_step, "safe", plain(reporter=EndsFrontsBeforeTheirAcks)),
    (check_step_by_step, "arrives", plain(tracker=WaitsForAFrontThatHasEnded)),
    (check_step_by_step, "arrives", plain(tracker=LetsWaitersSleep, reporter=RestlessReporter)),
    (check_misuse, "refused", plain(tracker=Resurrects)),
    (check_misuse, "refused", plain(tracker=Tolerant)),
    (check_misuse, "refused", plain(tracker=LetsFrontsStartInThePast)),
    (check_misuse, "refused", plain(reporter=TakesPromisesBack)),
    (check_subscribers, "arrives", plain(tracker=TellsNewcomersNothing)),
    (check_subscribers, "subscribers", plain(tracker=SubscribesTwice)),
    (check_subscribers, "subscribers", plain(tracker=KeepsWhoLeft)),
]


@pytest.mark.parametrize(("law", "make"), SIMULATIONS, ids=named)
def test_wrong_ackers_fail_in_the_simulation(law: str, make: Callable[[AckerPlan], Acker]) -> None:
    with pytest.raises(LawBroken) as caught:
        check_simulations(make, 300)
    assert caught.value.law == law, caught.value
    assert f"seed {caught.value.seed}" in str(caught.value)


@pytest.mark.parametrize(("check", "law", "make"), DIRECTED, ids=named)
def test_wrong_ackers_fail_in_the_check_meant_for_them(
    check: Callable[[Callable[[AckerPlan], Acker]], None], law: str, make: Callable[[AckerPlan], Acker]
) -> None:
    with pytest.raises(LawBroken) as caught:
        check(make)
    assert caught.value.law == law, caught.value

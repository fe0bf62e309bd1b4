"""Several trackers that share the times (paper 002, "Distributed tracker")."""

from __future__ import annotations

from collections import deque
from typing import Annotated

import msgspec

from flamecore.abc.acker import Acker, AckerPlan, Listener, Reporter, SingleListener, Tracker
from flamecore.abc.hooks import hookimpl
from flamecore.model.messages import Ack, MinTimes, Report
from flamecore.model.meta import MAX_TIME
from flamestream_ackers.reporter import Heartbeats, SteppingReporter
from flamestream_ackers.tracker import XorTracker

Vector = tuple[int, ...]


def rounded(time: int, shard: int, shards: int) -> int:
    """Return the promise "nothing below `time`" rounded up to a time of a shard.

    Args:
        time: Time of the promise.
        shard: Index of the shard. It keeps the acks of every time that is itself modulo `shards`.
        shards: Number of trackers.
    """
    return time + (shard - time) % shards


class ShardedReporter(SteppingReporter):
    """Reporter that sends acks to the shard of their time, and node times to all.

    Node times are sent for each flush that has acks.
    """

    def __init__(self, worker: int, plan: AckerPlan, shards: int) -> None:
        super().__init__(worker, plan)
        self._shards = shards
        self._promised: list[dict[int, int]] = [{} for _ in range(shards)]

    def _reports(
        self, tick: int, acks: tuple[Ack, ...], heartbeats: Heartbeats, ended: tuple[int, ...]
    ) -> list[tuple[int, Report]]:
        shards = self._shards
        parts: list[list[Ack]] = [[] for _ in range(shards)]
        for ack in acks:
            parts[ack.time % shards].append(ack)
        reports = []
        for shard, part in enumerate(parts):
            grown = self._grown(shard, heartbeats) if heartbeats else ()
            if tick or grown or ended:
                reports.append((shard, Report(self._worker, tick, tuple(part), grown, ended)))
            for front in ended:
                self._promised[shard].pop(front, None)
        return reports

    def _grown(self, shard: int, heartbeats: Heartbeats) -> Heartbeats:
        """Return the heartbeats that are news to a shard, rounded up to its times.

        If times go up by one, a heartbeat is news to one shard in `shards`.
        """
        promised = self._promised[shard]
        grown = []
        for front, time in heartbeats:
            # At the end of time there is nothing to round up to, and `time` itself is as true.
            promise = min(rounded(time, shard, self._shards), MAX_TIME)
            if promise != promised.get(front):
                promised[front] = promise
                grown.append((front, promise))
        return tuple(grown)


class _Told:
    """Reports of one shard on one segment, from the accepted one on.

    Only the lowest minimum time that follows a report matters. So a report followed by a lower or equal one is merged
    with it: it keeps its place, the node times at which it is accepted, and takes the lower time.
    """

    __slots__ = ("reports",)

    def __init__(self, vector: Vector, time: int) -> None:
        self.reports: deque[tuple[Vector, int]] = deque([(vector, time)])

    def add(self, vector: Vector, time: int) -> None:
        place, reports = vector, self.reports
        while reports and reports[-1][1] >= time:
            place, _ = reports.pop()
        reports.append((place, time))

    def accept(self, known: Vector) -> int:
        """Drop reports before the latest of known node times; return the least time left."""
        reports = self.reports
        while len(reports) > 1 and all(map(int.__le__, reports[1][0], known)):
            reports.popleft()
        return reports[0][1]


class ConservativeListener(Listener):
    """One minimum time out of the reports of several shards.

    A report gives the items in flight on one shard when it had applied the workers' flushes up to its node times. The
    published rule takes from each shard the latest report whose node times all shards have reached. With two workers
    that is unsound: the − of an item may reach its shard before its +, so that the item shows only in reports between
    one that knows of neither and one that knows of both. Here a shard counts with the *lowest* minimum time from that
    report to its newest one: some report among these knows of exactly one of the two, of the item or an ancestor.

    Reports kept are bounded as items in flight are: while one shard is silent the minimum time stands, and so do the
    fronts when their credit is used up.
    """

    def __init__(self, plan: AckerPlan, shards: int) -> None:
        nothing = (0,) * plan.workers
        self._latest = [nothing] * shards
        self._told = [[_Told(nothing, plan.start) for _ in range(shards)] for _ in plan.segments]
        self._times = [plan.start] * len(plan.segments)

    def receive(self, tracker: int, news: MinTimes) -> bool:
        times, vector = news
        self._latest[tracker] = vector
        known = tuple(map(min, *self._latest))
        grew = False
        for segment, (told, time) in enumerate(zip(self._told, times, strict=True)):
            told[tracker].add(vector, time)
            lowest = min([shard.accept(known) for shard in told])
            if lowest > self._times[segment]:
                self._times[segment], grew = lowest, True
        return grew

    def min_time(self, segment: int) -> int:
        return self._times[segment]


class Sharded(Acker):
    """Several trackers that share the work, for jobs that one cannot follow."""

    name = "sharded"

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
        """Options of the driver.

        Attributes:
            shards: Number of trackers.
        """

        shards: Annotated[int, msgspec.Meta(ge=1)] = 2

    @property
    def trackers(self) -> int:
        shards: int = self.options.shards
        return shards

    def tracker(self, index: int) -> Tracker:
        return XorTracker(self.plan, shard=self.trackers > 1)

    def reporter(self, worker: int) -> Reporter:
        return ShardedReporter(worker, self.plan, self.trackers)

    def listener(self) -> Listener:
        if self.trackers == 1:
            return SingleListener(len(self.plan.segments), self.plan.start)
        return ConservativeListener(self.plan, self.trackers)


@hookimpl
def flamestream_acker() -> type[Acker]:
    """Return the acker class of this module."""
    return Sharded

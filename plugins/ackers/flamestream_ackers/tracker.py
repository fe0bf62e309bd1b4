"""The tracker of every strategy here: ack tables, heartbeats and node times.

There is a table for each segment, a heartbeat for each front, and a node time for each worker (paper 002, "Interface of
the tracker" and "Distributed tracker"). A minimum time m means that nothing *below* m is in flight, where the paper
says "less or equal".
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush, heapreplace
from typing import Final

from flamecore.abc.acker import AckerPlan, Tracker
from flamecore.errors import ConsistencyError, TimeRegressionError
from flamecore.model.messages import MinTimes, Report
from flamestream_ackers.table import AckTable

CAPACITY: Final = 2**64
"""Cells of a table: all times of 64 bits. Memory is bounded by the job's credit, since only cells in use take any."""


class XorTracker(Tracker):
    """Tracker of items in flight, by the XOR of the workers' reports.

    A segment's minimum time is the first time at which its table is not zero, but no more than the minimum times of the
    segments that feed it, or, if none does, than the lowest heartbeat of the fronts. When the last front has ended, the
    highest heartbeat that an ended front has given takes its place, so everything sent is released.

    While all workers are at rest, nobody waits for the minimum time of a segment that feeds another. Its news are told
    with those of a segment that feeds none, or once a worker waits.

    Args:
        plan: The plan of the acker.
        shard: Whether this tracker sees the acks of some times only. Its minimum times may then go back, and its news
            carry the workers' node times, all segments whenever there is a new one, since its listeners judge by these.
    """

    def __init__(self, plan: AckerPlan, *, shard: bool = False) -> None:
        super().__init__()
        self._inbound = tuple(tuple(sorted(feeding)) for feeding in plan.segments)
        self._tables = [AckTable(plan.start, CAPACITY, single=not shard) for _ in plan.segments]
        self._times = [plan.start] * len(plan.segments)
        self._heartbeats = dict.fromkeys(plan.fronts, plan.start)
        # An entry for each front: one below the front's heartbeat is replaced when it comes to the top, as heartbeats
        # only grow. A look at all of them at each end of a front would cost their square.
        self._least = [(plan.start, front) for front in self._heartbeats]
        heapify(self._least)
        self._default = plan.start
        self._bound = plan.start  # lowest heartbeat, or the default
        self._ticks = [0] * plan.workers
        self._shard = shard
        self._joined = False  # a front that joins further on may raise the bound; reported with the next report
        feeding = frozenset().union(*plan.segments)
        self._ends = tuple(segment for segment in range(len(plan.segments)) if segment not in feeding)
        self._restless = set(range(plan.workers))
        self._untold = False  # whether a minimum time has changed since the last news
        self._told = (plan.start,) * len(self._ends)  # of the segments that feed no other

    def receive(self, report: Report) -> Sequence[MinTimes]:
        worker, tick, acks, heartbeats, unregistered, at_rest = report
        if at_rest is (worker in self._restless):  # another state than before
            (self._restless.discard if at_rest else self._restless.add)(worker)
        moved, self._joined = self._joined, False
        if tick:
            if tick != self._ticks[worker] + 1:
                raise self._out_of_step(report)
            self._ticks[worker] = tick
        tables = self._tables
        for segment, time, xor in acks:
            if tables[segment].ack(time, xor):
                moved = True
        if self._heartbeat(heartbeats):
            moved = True
        for front in unregistered:
            self._unregister(front)
            moved = True
        told = bool(tick) and self._shard
        if (moved or told) and self._advance():
            self._untold = True
        if told or (self._untold and self._is_awaited()):
            self._untold = False
            return (self.current(),)
        return ()

    def _is_awaited(self) -> bool:
        """Return whether somebody acts on what has changed since the last news."""
        times = self._times
        ends = tuple([times[segment] for segment in self._ends])
        if not self._restless and ends == self._told:
            return False
        self._told = ends
        return True

    def register(self, front: int, time: int | None = None) -> int:
        # The first segments are furthest: an item of the new front enters there.
        announced = max(self._times)
        if time is None:
            time = announced
        elif time < announced:
            raise TimeRegressionError(
                f"front {front} wants to go on from time {time}, but everything below {announced} is announced as past",
                hint=f"It must go on from {announced} or later, or be registered before the job starts.",
                time=time,
                limit=announced,
            )
        self._heartbeats[front] = time
        heappush(self._least, (time, front))
        self._bound = self._lowest()
        self._joined = True
        return time

    def current(self) -> MinTimes:
        return MinTimes(tuple(self._times), tuple(self._ticks) if self._shard else ())

    def _heartbeat(self, promises: Sequence[tuple[int, int]]) -> bool:
        """Take promises; return whether the lowest one has grown."""
        bound, lowest = self._bound, False
        for front, time in promises:
            last = self._heartbeats.get(front)
            if last is None:
                raise TimeRegressionError(
                    f"front {front} gave heartbeat {time}, but it has ended or was never registered",
                    hint=f"Registered are {sorted(self._heartbeats)}. Register a front before it sends, end it once.",
                    time=time,
                    limit=self._default,
                )
            if time < last:
                raise TimeRegressionError(
                    f"front {front} gave heartbeat {time} after {last}",
                    hint="The global times of a front must grow.",
                    time=time,
                    limit=last,
                )
            self._heartbeats[front] = time
            lowest = lowest or last == bound < time
        if lowest:  # looked for once, however many there are
            self._bound = self._lowest()
        return self._bound != bound

    def _unregister(self, front: int) -> None:
        last = self._heartbeats.pop(front, None)
        if last is None:
            raise ConsistencyError(
                f"front {front} was ended, but it has ended already or was never registered",
                hint=f"Registered are {sorted(self._heartbeats)}. End a front once.",
                front=front,
            )
        self._default = max(self._default, last)
        self._bound = self._lowest()

    def _lowest(self) -> int:
        """Return the lowest heartbeat, or the default if all fronts have ended."""
        least, heartbeats = self._least, self._heartbeats
        while least:
            time, front = least[0]
            actual = heartbeats.get(front)
            if actual == time:
                return time
            if actual is None:
                heappop(least)
            else:
                heapreplace(least, (actual, front))
        return self._default

    def _advance(self) -> bool:
        """Update the minimum times, upstream first; return whether any has changed."""
        changed = False
        times = self._times
        for segment, (feeding, table) in enumerate(zip(self._inbound, self._tables, strict=True)):
            if len(feeding) == 1:
                bound = times[feeding[0]]
            else:
                bound = min([times[index] for index in feeding]) if feeding else self._bound
            time = table.promote(bound)
            if time > bound:  # in a shard, where the bound may have gone back behind the head
                time = bound
            if time != times[segment]:
                times[segment], changed = time, True
        return changed

    def _out_of_step(self, report: Report) -> ConsistencyError:
        last = self._ticks[report.worker]
        return ConsistencyError(
            f"worker {report.worker} reported at node time {report.tick} after {last}",
            hint="Node times go up by one: a report was lost, repeated or overtaken by another.",
            worker=report.worker,
            tick=report.tick,
            limit=last + 1,
        )

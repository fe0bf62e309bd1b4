"""The way of records into a worker.

Its fronts give them times, and wait for each other where they share a state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from flamecore.abc.acker import Reporter
from flamecore.abc.source import Batch
from flamecore.model.batch import Orders, stamped
from flamecore.model.failure import Failure
from flamecore.model.plan import Plan
from flamecore.runtime.operators.compiler import Entrance
from flamecore.runtime.parts.backlog import Backlog
from flamecore.runtime.parts.failures import Failures
from flamecore.runtime.parts.front import Front, LatestTime, Malformed, merge_rejected, split
from flamecore.runtime.parts.front_marks import FrontMarks
from flamecore.runtime.parts.front_merge import merges
from flamecore.runtime.parts.promises import Promises
from flamecore.runtime.state.journal import IDLE_MARK, LAST_MARK, GivenTimes


class Ingress:
    """The fronts of one worker, and the way of their records to its operations.

    Args:
        plan: The job's plan.
        fronts: The fronts, by number.
        entrances: For each source, the way of its records.
        backlog: The items that run before all others.
        failures: The failures of the worker, with malformed records.
        reporter: The worker's side of the acker.

    Attributes:
        admitted: Number of records.
        rejected: Number of malformed records.
        merge_of: For each front that shares a state with others, their merge.
        merges: These merges.
        marks: Marks of the fronts.
        promises: Promises of the fronts.
    """

    def __init__(
        self,
        plan: Plan,
        fronts: Mapping[int, Front],
        entrances: Mapping[str, Entrance],
        backlog: Backlog,
        failures: Failures,
        reporter: Reporter,
    ) -> None:
        self.admitted = 0
        self.rejected = 0
        self._fronts = fronts
        self._entrances = entrances
        self._segment_of = {source.name: plan.segments.of[source.index] for source in plan.graph.sources}
        self._backlog = backlog
        self._failures = failures
        self._clock = plan.settings.clock if plan.snapshots else None
        """The clock of times that are stored; None: none are."""
        self.merge_of = merges(plan.graph, fronts) if plan.settings.barrier else {}
        self.merges = tuple(dict.fromkeys(self.merge_of.values()))
        self.marks = FrontMarks(entrances, fronts.values(), plan.unread)
        self.promises = Promises(reporter, self.merge_of)
        # One for all fronts: of two records read one after the other the second then has the later time, and is not
        # late for a state.
        latest = LatestTime()
        for front in fronts.values():
            front.latest = latest

    def admit(self, number: int, batch: Batch, at: float, policy: str) -> None:
        """Admit a batch of a front; see `Worker.admit`."""
        front = self._fronts[number]
        if front.was_idle:
            self.marks.idle_again(front)
        values, positions = batch.values, batch.positions
        times_left = front.times_left
        if times_left is not None and len(values) + len(batch.rejected) > times_left:
            for piece in split(batch, times_left):
                self.admit(number, piece, at, policy)
            return
        if batch.rejected:
            self.rejected += len(batch.rejected)
            if policy != "skip":
                values, positions = merge_rejected(batch)
        first = front.stamp(positions, at)
        self.admitted += len(batch.values)
        if len(values):
            # One time after the other for one batch, not a reading of the clock for each record: what is
            # consecutive stays a run, and a journal holds it in two numbers.
            if number in self.marks.unread:
                self.marks.begin(front, first)
            # Unless it has given it away, the driver may return any sequence, and may reuse it; a run is kept, and
            # encoded like a list.
            if not batch.fresh or type(values) is not list:
                values = list(values)
            malformed = bool(batch.rejected) and policy != "skip"
            if malformed:
                for place, value in enumerate(values):
                    if isinstance(value, Malformed):
                        values[place] = value.failure(front, first + place, fatal=policy == "fail")
            merge = self.merge_of.get(number)
            if merge is None:
                self._run(front.name.source, stamped(first, len(values), front.suffix), values, malformed)
            else:
                merge.add(number, first, values, malformed=malformed)
        promises = self.promises
        # Times of the wall clock are not the same in a second run, so they are stored before an
        # output may depend on them. Those of the other clock follow from positions.
        if times_left is None and self._clock == "wall" and positions:
            # Nothing is released before the front promises the next time: until then these can be stored.
            promises.give(GivenTimes(number, first, len(positions)), front.next_time)
        else:
            promises.make(number, front.next_time if times_left is None else front.promise())

    def _run(self, source: str, orders: Orders, values: list[Any], malformed: bool) -> None:
        """Run records from the first operation.

        The arguments are those of `Records`.
        """
        entrance = self._entrances[source]
        run = partial(self._run_well_formed, source, entrance) if malformed else entrance.run
        self._backlog.admit(run, self._segment_of[source], orders, values)

    def _run_well_formed(
        self, source: str, entrance: Entrance, orders: Orders, trace: int, values: Sequence[object]
    ) -> None:
        """Run records one by one, and pass malformed ones by."""
        for order, value in zip(orders, values, strict=True):
            if isinstance(value, Failure):
                self._failures.malformed(source, order, value)
            else:
                entrance.step(order, trace, True, value)

    def run_waiting(self, most: int) -> None:
        """Run records that no longer have to wait for other fronts.

        Args:
            most: Most records of one merge.
        """
        for merge in self.merges:
            for records in merge.take(most):
                self._run(*records)

    def heartbeat(self, number: int) -> None:
        """Promise the next time of a front that has nothing to send now."""
        front = self._fronts[number]
        self.marks.idle_again(front)
        if not self.promises.is_unstored(number):
            self.promises.make(number, front.promise())

    def idle(self, number: int, waited_us: float) -> None:
        """Make a front idle if it has waited long enough; see `Worker.idle_front`."""
        front = self._fronts[number]
        time = self.marks.idle(front, waited_us)
        if time is not None and self._clock is not None:
            self.promises.give(GivenTimes(number, time, IDLE_MARK), front.next_time)

    def end(self, number: int) -> int:
        """End a front; see `Worker.end_front`."""
        front = self._fronts[number]
        self.marks.idle_again(front)
        if not front.ended:
            if self._clock == "sequence":
                self.promises.give(GivenTimes(number, front.next_time, 0), front.next_time)
            given = front.times_left is not None
            # Nothing was found behind the end of the job: it remains what it was.
            time = None if front.is_behind_end else self.marks.end(front)
            if time is not None and not given and self._clock == "wall":
                self.promises.give(GivenTimes(number, time, LAST_MARK), front.next_time)
        front.ended = True
        self._close(number)
        self.promises.end(number, front.next_time if self.marks.of(front) else None)  # its last marks have a time
        return front.next_time

    def stop(self, number: int) -> int:
        """Stop a front before its end; see `Worker.stop_front`."""
        front = self._fronts[number]
        self._close(number)
        # Its times are not stored yet: the promise follows when they are, and must not come before.
        if self.promises.is_unstored(number):
            return front.next_time
        end = front.promise()
        self.promises.make(number, end)
        return end

    def _close(self, number: int) -> None:
        """Note that a front reads no more records."""
        if number in self.merge_of:
            self.merge_of[number].close(number)

    def trim(self, time: int) -> None:
        """Drop positions and states of marks below a time, which no snapshot needs."""
        for front in self._fronts.values():
            front.trim(time)
        self.marks.states(time)

    def cut(self, time: int) -> tuple[tuple[int, object, int, bool], ...]:
        """Return the contribution of each front to a snapshot, as of `Cut`."""
        # A front that has ended counts as ended only once its last records are in the snapshot:
        # otherwise a run that goes on from here would not read them again.
        return tuple(
            (number, *front.cut(time), front.ended and front.uncommitted == 0) for number, front in self._fronts.items()
        )

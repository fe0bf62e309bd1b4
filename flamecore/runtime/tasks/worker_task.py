"""The task of a worker: receives messages, calls the worker, and sends.

The worker itself is plain state, driven by calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from heapq import heappop, heappush
from typing import Final, Protocol

from flamecore.abc.source import Batch
from flamecore.abc.transport import Delivery
from flamecore.model.clock import STOPWATCH
from flamecore.model.messages import (
    Busy,
    Committed,
    Delivered,
    Items,
    MinTimes,
    Outgoing,
    Prepare,
    Released,
    Searched,
    Settled,
)
from flamecore.model.meta import MIN_TIME
from flamecore.runtime.operators.rounds import Rounds
from flamecore.runtime.parts.counters import NodeStats
from flamecore.runtime.parts.histogram import Histogram
from flamecore.runtime.parts.worker import Worker
from flamecore.runtime.tasks.door import Door, anything
from flamecore.runtime.tasks.event_loop import clock, ending_error, monotonic
from flamecore.runtime.tasks.front_search import FrontSearch
from flamecore.runtime.tasks.partition_task import PartitionTask
from flamecore.runtime.tasks.sender import Sender
from flamecore.runtime.tasks.stats import DeliveryTimes
from flamecore.runtime.tasks.watch import Watch, watch

_BURST: Final = 64
_BURST_S: Final = 0.005
"""Most messages handled before their outputs are sent, and most seconds for this: others wait for it."""

_STEP_S: Final = 0.02
"""Most seconds that a worker runs waiting items before others have a turn."""


class SnapshotParticipant(Protocol):
    """A worker's side of snapshots (`flamecore.runtime.engine.snapshots.participant`)."""

    def prepare(self, message: Prepare) -> None: ...

    def committed(self, message: Committed) -> None: ...

    def wake(self) -> None: ...

    async def run(self) -> None: ...


class ReturnedCredit:
    """The credit that a worker's fronts get back when rears have delivered.

    Args:
        worker: The worker.
        advanced: Function called with (worker, minimum time) after each delivery.

    Attributes:
        latency: Histogram of the time from a record's admission to the delivery of all its outputs.
    """

    def __init__(self, worker: Worker, advanced: Callable[[int, int], None]) -> None:
        self._worker, self._advanced = worker, advanced
        self.latency = Histogram()
        self._times = DeliveryTimes(worker.plan.rears)
        self._seen = MIN_TIME
        self._noted = False
        # A heap of (time of the first record in flight, front), an entry for each front that has any: a look at every
        # front for each delivery would cost most of the time of a job with many.
        self._heads: list[tuple[int, int]] = []
        self._waiting: set[int] = set()

    def admitted(self, number: int) -> None:
        """Note that records of a front have been admitted."""
        if number not in self._waiting:
            self._wait(number)

    def _wait(self, number: int) -> None:
        first = self._worker.fronts[number].first_in_flight
        if first is not None:
            heappush(self._heads, (first, number))
            self._waiting.add(number)

    def note(self, word: Delivered, now: float) -> None:
        """Note the times of the deliveries that a rear reports at `now`."""
        self._noted = True
        self._times.note(word, now)

    def release(self) -> None:
        """Return the credit of records that all rears have delivered since the last call."""
        if not self._noted:
            return
        self._noted = False
        delivered = self._worker.delivered()
        if delivered <= self._seen:
            return
        self._seen = delivered
        for limit, moment in self._times.until(delivered):
            while self._heads and self._heads[0][0] < limit:
                number = heappop(self._heads)[1]
                self._waiting.remove(number)
                for at, count in self._worker.fronts[number].delivered(limit):
                    self.latency.add(moment - at, count)
                self._wait(number)
        self._advanced(self._worker.index, self._worker.min_time)


class WorkerTask:
    """The task of a worker: messages in, calls, messages out.

    Args:
        worker: The worker.
        sender: Sender of its endpoint.
        advanced: See `ReturnedCredit`.
        searches: Whether its fronts search for records behind the end of the job.

    Attributes:
        search: The search.
        working: The present round of its work. Who has the worker do something enters it, unless a call here does.
    """

    def __init__(
        self, worker: Worker, sender: Sender, advanced: Callable[[int, int], None], *, searches: bool = False
    ) -> None:
        self.worker = worker
        self.sender = sender
        self.search = FrontSearch(worker, sender, is_open=searches)
        self._credit = ReturnedCredit(worker, advanced)
        self.snapshots: SnapshotParticipant | None = None
        self.partitions: dict[str, PartitionTask] = {}
        """Partitions that the worker writes, by address of the rear that would."""
        self.open_fronts: dict[int, None] = {}
        """Numbers of the fronts being read."""
        self._several = len(worker.fronts) > 1
        self._due: asyncio.Handle | None = None
        """The next flush: as soon as the loop comes to it, or at a time."""
        self._due_soon = False
        """True: the next flush is as soon as the loop comes to it; False: at a time."""
        self._failed = False
        self._time = monotonic
        worker.schedule.run_by(clock())
        dealing = worker.compiled.shares is not None
        self._load = LoadMeter(self._tell_load) if dealing else None
        rears, segments = worker.plan.rears, len(worker.plan.segments.inbound)
        self.door = Door(
            sender.endpoint.address,
            {
                **dict.fromkeys((Items, Settled, Busy, Prepare, Committed, Searched), anything),
                MinTimes: lambda news: len(news.times) == segments,
                Delivered: lambda word: word.rear in rears,
            },
        )
        # The last, for it is released by `aclose` alone.
        self._watch = watch(worker.plan.settings.call_limit_s)
        self.working = Working(worker.rounds, self._watch, self._load)

    def counts(self) -> NodeStats:
        """Return the share of this worker in the counters."""
        return replace(self.worker.counts(), latency=self._credit.latency.buckets())

    def greet(self) -> None:
        """Open the channels to the other workers, and report pending timers.

        Then no item waits for a channel to open.
        """
        plan = self.worker.plan
        if plan.opening_of(self.worker.index) is not None:
            self.flush()
        if all(vertex.route is None for vertex in plan.graph.vertices):
            return
        for index in range(plan.workers):
            if index != self.worker.index:
                self.sender.send(f"worker/{index}", Items([], ()))

    def flush(self) -> None:
        """Run waiting items, send the worker's messages, and schedule the next flush when it is due.

        The call is a round of its own if none is at work.
        """
        if self.working.is_on:
            self._flush(None)
        else:
            with self.working:
                self._flush(None)

    def _flush(self, now: float | None) -> None:
        # Messages behind one that could not be sent would be a riddle to others: a tracker that lacks a report would
        # end the job, without the reason.
        if self._failed:
            return
        if now is None:
            now = self._time()
        worker = self.worker
        try:
            self._step(now)
            outgoing = worker.flush(now, stepped=True)
            self.sender.send_all(self._sent(outgoing) if self.partitions else outgoing)
        except BaseException:
            self._failed = True
            raise
        if self.snapshots is not None:
            self.snapshots.wake()
        if self._due is not None:
            self._due.cancel()
            self._due = None
        due = worker.due()
        if due is not None:
            self._due = asyncio.get_running_loop().call_later(max(due - now, 0), self._flush_due)
            self._due_soon = False

    def _sent(self, outgoing: Outgoing) -> Outgoing:
        """Give releases to the partitions; return the messages that leave."""
        rest: Outgoing = []
        for to, message in outgoing:
            if (partition := self.partitions.get(to)) is None:
                rest.append((to, message))
            else:
                assert type(message) is Released
                partition.put(message)
        return rest

    def _step(self, start: float) -> None:
        """Run waiting items, within the time of a step, in which others wait."""
        schedule, rounds = self.worker.schedule, self.worker.rounds
        while schedule.step() and not rounds.is_over and self._time() - start < _STEP_S:
            pass

    @property
    def is_behind(self) -> bool:
        """Return whether records or items are left of a round; the next come behind them."""
        return bool(self.worker.backlog.waiting) and not self._failed

    def admit(self, number: int, batch: Batch, at: float, policy: str) -> None:
        """Admit records of a front it hosts, and send their outputs; see `Worker.admit`.

        Records of several fronts are sent together: small batches would cost a message each.
        """
        with self.working:
            if self.search.is_open:
                self.search.note(batch, policy)
            self.worker.admit(number, batch, at, policy)
            self._credit.admitted(number)
            if not self._several:
                self._flush(None)
            elif self._due is None or not self._due_soon:
                if self._due is not None:
                    self._due.cancel()
                self._due, self._due_soon = asyncio.get_running_loop().call_soon(self._flush_due), True

    def _tell_load(self, worked_s: float, passed_s: float) -> None:
        """Report this worker's load to the hosts of fronts, which deal out items."""
        plan, word = self.worker.plan, Busy(self.worker.index, worked_s, passed_s)
        try:
            self.worker.receive(self.sender.endpoint.address, word)
            for index in {plan.host_of(number) for number in range(1, len(plan.fronts) + 1)} - {word.worker}:
                self.sender.send(f"worker/{index}", word)
        except Exception as error:  # noqa: BLE001 - handed to the job, which ends with it
            self.sender.fail(error)

    def _flush_due(self) -> None:
        try:
            self.flush()
        except BaseException as error:  # noqa: BLE001 - handed to the job, which ends with it
            self.sender.fail(ending_error(error, f"the work of a {type(self).__name__}"))

    async def run(self) -> None:
        """Run until cancelled."""
        endpoint, plain = self.sender.endpoint, self.door.plain
        time = self._time = clock()  # looked up once, and not for each flush
        while True:
            delivery: Delivery | None = await endpoint.receive()
            now = time()
            end = now + _BURST_S
            taken = 0
            # Deliveries return credit, and nothing else: a flush for each would be a fifth of a worker's flushes where
            # lines come one by one.
            due = self.snapshots is not None
            with self.working:
                # Several messages before one flush: reports and hand-overs of all of them leave as
                # one message each.
                while delivery is not None:
                    # The look-up saves a call: with one record a message, asking whom a message is for is a cost that
                    # one can measure.
                    if type(delivery.message) in plain or self.door.admits(*delivery):
                        self._handle(delivery, now)
                    due = due or type(delivery.message) is not Delivered
                    taken += 1
                    now = time()
                    delivery = endpoint.receive_nowait() if taken < _BURST and now < end else None
                if due:
                    self._flush(now)
                self._credit.release()
            if taken == _BURST or now >= end:
                await asyncio.sleep(0)  # more may be there, but first the sent messages must leave

    def _handle(self, delivery: Delivery, now: float) -> None:
        kind = type(delivery.message)
        if self.snapshots is not None and kind is Prepare:
            self.snapshots.prepare(delivery.message)
        elif self.snapshots is not None and kind is Committed:
            self.snapshots.committed(delivery.message)
        elif kind is Searched:
            self.search.end(found=delivery.message.found)
        else:
            if kind is Delivered:
                self._credit.note(delivery.message, now)
            self.worker.receive(*delivery)

    def aclose(self) -> None:
        """Cancel all timers."""
        self._watch.release()
        if self._due is not None:
            self._due.cancel()
        if self._load is not None:
            self._load.aclose()


class Working:
    """A round of a worker's work, as a context.

    Args:
        rounds: The rounds of the worker.
        watch: The watch on them.
        load: The meter of its load, if anybody asks for that.

    Attributes:
        is_on: Whether a round is at work.
    """

    def __init__(self, rounds: Rounds, watch: Watch, load: LoadMeter | None) -> None:
        self._rounds, self._watch, self._load = rounds, watch, load
        self.is_on = False

    def __enter__(self) -> None:
        self.is_on = True
        self._watch.begin(self._rounds)
        if self._load is not None:
            self._load.begin()

    def __exit__(self, *error: object) -> None:
        if self._load is not None:
            self._load.end()
        self._watch.end()
        self.is_on = False


_PERIOD_S: Final = 0.1
"""Seconds between load reports of a worker that has work."""

_QUIET: Final = 0.02
"""Share of the time below which a worker reports its load only once."""


class LoadMeter:
    """A meter of a worker's load, told of the begin and end of each piece of work.

    It reports as long as there is work. Time in which a user's function waits, say for a database, is work too: it
    keeps others waiting.

    Args:
        tell: Function called with (seconds worked, seconds passed) of each period.
    """

    def __init__(self, tell: Callable[[float, float], None]) -> None:
        self._tell = tell
        self._clock = STOPWATCH.get()
        # Set when work begins.
        self._worked: float
        self._began: float
        self._since: float
        self._timer: asyncio.TimerHandle | None = None
        self._silent = True

    def begin(self) -> None:
        """Note that a piece of work begins."""
        if self._timer is None:
            self._wait()
        self._began = self._clock()

    def end(self) -> None:
        """Note that it has ended."""
        self._worked += self._clock() - self._began

    def _wait(self) -> None:
        self._since, self._worked = monotonic(), 0.0
        self._timer = asyncio.get_running_loop().call_later(_PERIOD_S, self._report)

    def _report(self) -> None:
        passed = monotonic() - self._since
        worked = min(self._worked, passed)
        was_silent, self._silent = self._silent, worked < _QUIET * passed
        self._timer = None
        # Two quiet periods in a row end the reports, so an idle job sends nothing; the first quiet
        # one is told, or the others would take it for busy.
        if not (self._silent and was_silent):
            self._wait()
            self._tell(worked, passed)

    def aclose(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()

"""The task of a rear: merges releases, writes to the sink, reports deliveries."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from flamecore.abc.sink import PartitionedSink, Sink, encoders_of
from flamecore.abc.transport import Delivery
from flamecore.model.batch import Lines
from flamecore.model.clock import global_time
from flamecore.model.messages import CONTROL, Delivered, Reached, Released
from flamecore.model.meta import MIN_TIME
from flamecore.model.plan import DEAD_LETTERS, Plan
from flamecore.runtime.parts.collector import Collector, Complete, joined
from flamecore.runtime.parts.counters import NodeStats
from flamecore.runtime.parts.tally import PartitionTally
from flamecore.runtime.tasks.deadlines import CallDeadline, Deadlines
from flamecore.runtime.tasks.door import Door
from flamecore.runtime.tasks.event_loop import monotonic
from flamecore.runtime.tasks.sender import Sender

_PATIENCE_S: Final = 0.005
"""Seconds that the report of a delivery to another process may wait for more."""

_BATCH: Final = 16_384
"""Number of payloads at which a batch is written, even if more releases are there."""

_PLENTY: Final = 1024
"""Credit with which a front never pauses for this wait."""


Opening = Callable[[], Awaitable[None]]
"""Opens a sink, unless it is open."""


class SinkWriter:
    """The sink of a rear, which writes one batch at a time.

    Args:
        name: Name of the sink in the flow.
        sink: The sink.
        deadline: Its deadline.
        delivered_up_to: Time below which it held all outputs when it was opened.
        translate: Function that turns collected payloads into the sink's, for dead letters.
        opening: Function that opens the sink, called before each output; None: it is open.
    """

    def __init__(
        self,
        name: str,
        sink: Sink,
        deadline: CallDeadline,
        delivered_up_to: int,
        translate: Callable[[object], object] | None,
        opening: Opening | None = None,
    ) -> None:
        self._opening = opening
        self.deadline = deadline
        self.delivered_up_to = delivered_up_to
        """Last time given to the sink, or returned by it when it was opened."""
        self._sink = sink
        self._translate = translate
        self._encoded = translate is None and name in encoders_of({name: sink})
        self._store = sink.write_encoded if self._encoded else sink.write
        self._writing = asyncio.Lock()
        self._halting: asyncio.Task[object] | None = None
        self._failed: Exception | None = None

    async def write(self, time: int, orders: Sequence[bytes] | None, payloads: Sequence[object]) -> None:
        """Write a batch.

        Raises:
            SinkError: It fails, or takes too long.
        """
        if self._translate is not None:
            payloads = [self._translate(payload) for payload in payloads]
        elif type(payloads) is not list and not (self._encoded and type(payloads) is Lines):
            payloads = list(payloads)  # only a sink whose encoder makes lines gets lines
        # One batch at a time, also against syncs: a sink stores a batch and its time in one step,
        # and two at once could store them out of order.
        async with self._writing:
            if self.deadline.error is not None:
                raise self.deadline.error
            if self._opening is not None:
                await self._opening()
            # Not held back for a snapshot, and not committed together with one: latency would be the interval of
            # snapshots. After a fault the same outputs come again under the same times, so the time that the sink
            # stores with its batch is enough to leave them out.
            try:
                with self.deadline.during("write a batch", len(payloads)):
                    if orders is None:
                        await self._store(time, payloads)
                    else:
                        await self._sink.write_ordered(time, orders, payloads)
            except Exception as error:
                self._failed = error
                raise
            self.delivered_up_to = max(self.delivered_up_to, time)

    async def sync(self, time: int) -> None:
        """Make outputs below `time` durable, between two batches."""
        async with self._writing:
            # Set before the sync: all outputs below are in the sink, and a sync that fails may have given it the time.
            if self._opening is not None:
                await self._opening()
            self.delivered_up_to = max(self.delivered_up_to, time)
            await self.deadline.call(self._sink.sync(time), "make its output durable")

    async def halt(self) -> None:
        """Wait for the batch being written, and let no other follow.

        Repeated and concurrent calls count as one.

        Raises:
            SinkError: A batch has failed, or takes too long. It may be stored all the same: only reopening the sink
                shows it.
        """
        if self._halting is None:
            self._halting = asyncio.create_task(self._writing.acquire())
        await self.deadline.wait_done(self._halting)
        if self._failed is not None:
            raise self._failed


class DeliveryReports:
    """The reports of a rear's deliveries.

    Args:
        rear: Name of the rear.
        sender: Sender of its endpoint.
        listeners: Addresses that get a report of each delivery.
        away: Addresses in other processes, which get one report of several deliveries a little later.
    """

    def __init__(self, rear: str, sender: Sender, listeners: Sequence[str], away: Sequence[str]) -> None:
        self._rear, self._sender, self._listeners, self._away = rear, sender, listeners, away
        self._untold: list[tuple[int, float]] = []
        self._timer: asyncio.TimerHandle | None = None

    def add(self, time: int) -> None:
        """Report that all outputs below a time are delivered."""
        word = Delivered(self._rear, time)
        for address in self._listeners:
            self._sender.send(address, word)
        if self._away:
            self._untold.append((time, monotonic()))
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(_PATIENCE_S, self._tell)

    def _tell(self) -> None:
        """Report the pending deliveries to other processes."""
        self._timer = None
        now = monotonic()
        # With the age of each delivery: the latency is that of the sink, not of the report, which
        # has waited.
        word = Delivered(self._rear, self._untold[-1][0], tuple([(t, now - at) for t, at in self._untold]))
        self._untold.clear()
        try:
            for address in self._away:
                self._sender.send(address, word)
        except Exception as error:  # noqa: BLE001 - handed to the job, which ends with it
            self._sender.fail(error)

    def aclose(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()


class RearTask:
    """The task of a rear: releases in, batches to the sink, reports to the fronts.

    Args:
        collector: Merge of the releases.
        sink: Sink of the batches.
        sender: Sender of its endpoint.
        listeners: Addresses that get a report of each delivery.
        away: Addresses in other processes, which get one report of several deliveries a little later.
        delivered: Function called with (rear, time, count) after each delivery.
        translate: Function that turns collected payloads into the sink's, for dead letters.
        deadline: Deadline of the sink.
        opening: As for `SinkWriter`.
    """

    def __init__(
        self,
        collector: Collector | PartitionTally,
        sink: Sink,
        sender: Sender,
        *,
        listeners: Sequence[str],
        away: Sequence[str] = (),
        delivered: Callable[[str, int, int], None],
        translate: Callable[[Any], object] | None = None,
        deadline: CallDeadline | None = None,
        opening: Opening | None = None,
    ) -> None:
        self.collector = collector
        deadline = deadline or Deadlines().sink(collector.name)
        deadline.known, deadline.overdue = self._known, sender.fail
        self.writer = SinkWriter(collector.name, sink, deadline, collector.delivered_up_to, translate, opening)
        self.sender = sender
        workers = range(collector.workers)
        self.door = Door(
            sender.endpoint.address,
            {Released: lambda word: word.worker in workers and all(host in workers for _, host in word.away)},
        )
        self._counted = isinstance(sink, PartitionedSink)  # payloads are numbers of outputs
        self.count = 0
        self.reached = collector.delivered_up_to
        """Time below which everything is in the sink."""
        self._reports = DeliveryReports(collector.name, sender, listeners, away)
        self._delivered = delivered

    @property
    def delivered_up_to(self) -> int:
        """Return the last time given to the sink, or returned by it when it was opened."""
        return self.writer.delivered_up_to

    def counts(self) -> NodeStats:
        """Return this rear's share of the counters."""
        name = self.collector.name
        return NodeStats(dead_letters=self.count) if name == DEAD_LETTERS else NodeStats(items_out={name: self.count})

    async def run(self) -> None:
        """Run until cancelled, or until a failed record is reached."""
        endpoint = self.sender.endpoint
        while True:
            parts: list[Complete] = []
            size = 0
            delivery: Delivery | None = await endpoint.receive()
            # Releases that came while the last batch was written make one batch: a slow sink gets fewer, larger ones.
            while delivery is not None:
                part = self._receive(delivery)
                if part is not None:
                    parts.append(part)
                    size += len(part.payloads)
                    if part.failure is not None or size >= _BATCH:
                        break
                delivery = endpoint.receive_nowait()
            if not parts:
                continue
            complete = joined(parts)
            count = sum(map(_number, complete.payloads)) if self._counted else len(complete.payloads)
            if complete.payloads:
                # With the time behind its last payload, not the one reached: a sink with a time
                # that no output has would look like one whose state is lost.
                await self.writer.write(complete.until, complete.orders, complete.payloads)
                self.count += count
            # Reported only once it is written: credit that came back before could fill the memory
            # behind a slow sink.
            self.reached = max(self.reached, complete.time)
            if complete.failure is not None:
                return self.sender.send(CONTROL, Reached(self.collector.name, complete.failure))
            self._reports.add(complete.time)
            self._delivered(self.collector.name, complete.time, count)

    def _receive(self, delivery: Delivery) -> Complete | None:
        return self.collector.receive(delivery.message) if self.door.admits(*delivery) else None

    def _known(self) -> str:
        return (
            f"its output is stored below time {global_time(self.reached)}"
            if self.reached > MIN_TIME
            else "it has stored nothing"
        )

    def aclose(self) -> None:
        """Cancel the timer."""
        self._reports.aclose()


def _number(payload: object) -> int:
    assert type(payload) is int
    return payload


def patient(plan: Plan) -> bool:
    """Return whether fronts have enough credit for delayed reports of deliveries."""
    return plan.settings.max_in_flight >= _PLENTY * len(plan.fronts)

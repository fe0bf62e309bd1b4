"""Brings a rear to life: what workers release is merged, given to the sink, and told of."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from flamecore.abc.sink import Sink, encoders_of
from flamecore.abc.transport import Delivery
from flamecore.model.batch import Lines
from flamecore.model.messages import CONTROL, Delivered, Reached, Released
from flamecore.model.meta import MIN_TIME
from flamecore.model.plan import Plan
from flamecore.runtime.parts.collector import Collector, Complete, joined
from flamecore.runtime.tasks.deadlines import CallDeadline, Deadlines
from flamecore.runtime.tasks.door import Door
from flamecore.runtime.tasks.event_loop import monotonic
from flamecore.runtime.tasks.sender import Sender

_PATIENCE_S: Final = 0.005
"""How long word of what is delivered may wait for more, on its way to another process."""

_BATCH: Final = 16_384
"""Most payloads to which the rest of what is there is added before they are given to a sink."""

_PLENTY: Final = 1024
"""A front with that much credit never stands still for the wait."""


class RearTask:
    """Runs a rear: releases in, merged batches to the sink, word of it back to the fronts.

    Args:
        collector: Merges the releases.
        sink: Takes the batches.
        sender: Its endpoint.
        listeners: Addresses told of what is delivered.
        away: Addresses in other processes told of it a little later, of several deliveries at once.
        delivered: Called with (rear, time, count) after each delivery.
        translate: Turns what is collected into what the sink takes; for dead letters.
        deadline: Of the sink.
    """

    def __init__(
        self,
        collector: Collector,
        sink: Sink,
        sender: Sender,
        *,
        listeners: Sequence[str],
        away: Sequence[str] = (),
        delivered: Callable[[str, int, int], None],
        translate: Callable[[Any], Any] | None = None,
        deadline: CallDeadline | None = None,
    ) -> None:
        self.collector = collector
        self.deadline = deadline or Deadlines().sink(collector.name)
        self.deadline.known, self.deadline.overdue = self._known, sender.fail
        self.sink = sink
        self.sender = sender
        self.door = Door(sender.endpoint.address, {Released: lambda released: 0 <= released.worker < collector.workers})
        self.count = 0
        self.reached = collector.delivered_up_to
        """Everything below this time is in the sink."""
        self.delivered_up_to = collector.delivered_up_to
        """The time that the sink was told last, or that it has told when it was opened."""
        self._writing = asyncio.Lock()
        self._halting: asyncio.Task[Any] | None = None
        self._failed: Exception | None = None
        self._listeners = listeners
        self._away = away
        self._untold: list[tuple[int, float]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._delivered = delivered
        self._translate = translate
        self._encoded = translate is None and collector.name in encoders_of({collector.name: sink})
        self._store = sink.write_encoded if self._encoded else sink.write

    async def run(self) -> None:
        """Until cancelled, or a failed record is reached."""
        endpoint = self.sender.endpoint
        while True:
            parts: list[Complete] = []
            size = 0
            delivery: Delivery | None = await endpoint.receive()
            # What has come while the last batch was written makes one batch: a slow sink has fewer and larger ones.
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
            payloads = complete.payloads
            if payloads:
                if self._translate is not None:
                    payloads = [self._translate(payload) for payload in payloads]
                elif not self._encoded or type(payloads) is not Lines:
                    payloads = list(payloads)  # a driver is given what it has made: lines are made by none unawares
                async with self._writing:
                    await self._write(complete.until, complete.orders, payloads)
                self.count += len(payloads)
            self.reached = max(self.reached, complete.time)
            if complete.failure is not None:
                return self.sender.send(CONTROL, Reached(self.collector.name, complete.failure))
            word = Delivered(self.collector.name, complete.time)
            for address in self._listeners:
                self.sender.send(address, word)
            if self._away:
                self._untold.append((complete.time, monotonic()))
                if self._timer is None:
                    self._timer = asyncio.get_running_loop().call_later(_PATIENCE_S, self._tell)
            self._delivered(self.collector.name, complete.time, len(payloads))

    def _receive(self, delivery: Delivery) -> Complete | None:
        return self.collector.receive(delivery.message) if self.door.admits(*delivery) else None

    async def _write(self, time: int, orders: Sequence[bytes] | None, payloads: Sequence[Any]) -> None:
        if self.deadline.error is not None:
            raise self.deadline.error
        self.deadline.begin("write a batch", len(payloads))
        try:
            if orders is None:
                await self._store(time, payloads)
            else:
                await self.sink.write_ordered(time, orders, payloads)
            self.delivered_up_to = max(self.delivered_up_to, time)
        except Exception as error:
            self._failed = error
            raise
        finally:
            self.deadline.end()

    def _known(self) -> str:
        return f"its output is stored below time {self.reached}" if self.reached > MIN_TIME else "it has stored nothing"

    async def sync(self, time: int) -> None:
        """Make durable what is below `time`, between two batches."""
        async with self._writing:
            # Before it is done: all that is below is in the sink, and a sync that is broken off may have told it so.
            self.delivered_up_to = max(self.delivered_up_to, time)
            await self.deadline.call(self.sink.sync(time), "make its output durable")

    async def halt(self) -> None:
        """Wait for the batch that is being written. No other will be. Several times, also at once, is once.

        Raises:
            SinkError: A batch has failed, or takes too long. It may be there all the same: only opening the sink anew
                can tell.
        """
        if self._halting is None:
            self._halting = asyncio.create_task(self._writing.acquire())
        await self.deadline.wait_done(self._halting)
        if self._failed is not None:
            raise self._failed

    def _tell(self) -> None:
        """Tell those in other processes what they have not been told yet."""
        self._timer = None
        now = monotonic()
        word = Delivered(self.collector.name, self._untold[-1][0], tuple([(t, now - at) for t, at in self._untold]))
        self._untold.clear()
        try:
            for address in self._away:
                self.sender.send(address, word)
        except Exception as error:  # noqa: BLE001 - handed to the job, which ends with it
            self.sender.fail(error)

    def aclose(self) -> None:
        """Cancel what is scheduled."""
        if self._timer is not None:
            self._timer.cancel()


def patient(plan: Plan) -> bool:
    """Whether fronts have so much credit that word of what is delivered may wait a little."""
    return plan.max_in_flight >= _PLENTY * len(plan.fronts)

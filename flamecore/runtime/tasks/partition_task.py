"""The task of a partition, which stores the outputs that its worker releases.

It tells the rear how far they are stored.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import deque
from typing import Final

from flamecore.abc.sink import Sink
from flamecore.errors import JobError
from flamecore.model.batch import Orders, concat, joined
from flamecore.model.failure import Failure
from flamecore.model.messages import Released
from flamecore.model.meta import decode_time, encode_time
from flamecore.runtime.parts.collector import end_of, first_failure
from flamecore.runtime.tasks.deadlines import CallDeadline
from flamecore.runtime.tasks.rear_task import SinkWriter
from flamecore.runtime.tasks.sender import Sender

_BATCH: Final = 16_384
"""Number of payloads at which a batch is written, even if more releases are there."""

_WAITING: Final = 1_000_000
"""Most releases that wait. The credit of the fronts keeps them few; the bound is for a sink that stores nothing."""


class PartitionTask:
    """The task of one worker's partition of a sink.

    Args:
        name: Name of the sink.
        sink: The open sink of the partition.
        delivered_up_to: Time below which the partitions together hold everything: this is not written again.
        sender: Sender of the worker, to the rear.
        deadline: Deadline of the partition.
    """

    def __init__(self, name: str, sink: Sink, delivered_up_to: int, sender: Sender, deadline: CallDeadline) -> None:
        self.rear = f"rear/{name}"
        self.writer = SinkWriter(name, sink, deadline, delivered_up_to, None)
        self.sink = sink
        self._limit = encode_time(delivered_up_to)
        self._sender = sender
        self._waiting: deque[Released] = deque()
        self._there = asyncio.Event()
        self._failures: list[tuple[bytes, Failure]] = []
        deadline.overdue = sender.fail

    def put(self, released: Released) -> None:
        """Take a release of the worker.

        Raises:
            JobError: Too many wait.
        """
        if len(self._waiting) >= _WAITING:
            raise JobError(
                f"{self.rear} has {_WAITING} releases waiting for its partition, which stores none",
                hint="Lower max_in_flight, or look at why its destination is slow.",
            )
        self._waiting.append(released)
        self._there.set()

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            await self._there.wait()
            released = self._taken()
            orders, payloads = joined([one.orders for one in released]), concat([one.payloads for one in released])
            # Repeated after a fault, and not where all of it was made before: the division says what is held.
            if orders and orders[0] < self._limit:
                start = bisect_left(orders, self._limit)
                orders, payloads = orders[start:], payloads[start:]
            failures = [failure for one in released for failure in one.failures]
            self._failures += failures
            # If all partitions went on behind the record that ends the job, the next run would take what they hold for
            # the output. The rear hears of what is stored.
            ending = first_failure(self._failures, encode_time(released[-1].time)) if self._failures else None
            if (count := end_of(orders, ending)) < len(orders):
                orders, payloads = orders[:count], payloads[:count]
            if count:
                await self.writer.write(decode_time(orders[-1]) + 1, orders, payloads)
            last: Orders = [orders[-1]] if count else []
            # Only behind the write: the rear returns credit, and says that outputs are complete. It opens by the ackers
            # alone (`OwnTimes.leave_out`), so there is no more to say of failures.
            word = Released(released[-1].worker, released[-1].time, last, [count] if count else [], failures)
            self._sender.send(self.rear, word)

    def _taken(self) -> list[Released]:
        """Take the releases for one batch."""
        waiting, taken, size = self._waiting, list[Released](), 0
        while waiting and size < _BATCH:
            taken.append(waiting.popleft())
            size += len(taken[-1].payloads)
        if not waiting:
            self._there.clear()
        return taken

    async def make_durable(self) -> None:
        """Make the written output durable.

        Raises:
            SinkError: It fails, or another run has taken over.
        """
        # Not up to the time of the snapshot: that is the whole sink's to say, once the snapshot is announced.
        await self.writer.sync(self.writer.delivered_up_to)
